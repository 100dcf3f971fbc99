"""The commands as a person types them: help, errors, inspect, chat, the configuration file, and what README shows."""

import json
import pathlib
import re
import subprocess

import pytest

from servers import chat, request

pytestmark = pytest.mark.quick
ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(binary, *arguments, timeout=60, **options):
    return subprocess.run([str(binary), *map(str, arguments)], capture_output=True, text=True, timeout=timeout, **options)


def test_every_command_in_the_help_has_help_with_examples(binary):
    listed = run(binary, "--help")
    assert listed.returncode == 0
    commands = re.findall(r"^  (\w+) +\w", listed.stdout, re.M)
    assert set(commands) == {"up", "chat", "worker", "router", "inspect", "pull", "eval", "parse", "bench", "mock", "simulate", "kv"}
    actions = [["kv", action] for action in ("stat", "ls", "verify", "drop", "bench")]
    actions += [["simulate", action] for action in ("kv", "router")]
    for command in [[command] for command in commands if command not in ("kv", "simulate")] + actions:
        shown = run(binary, *command, "--help")
        assert shown.returncode == 0 and "--config" in shown.stdout and "Examples:" in shown.stdout, command


@pytest.mark.parametrize("arguments, named", [
    (["nonsense"], "nonsense"),
    (["up"], "MODEL"),
    (["up", "absent.gguf"], "absent.gguf"),
    (["up", "m.gguf", "--prefill", "0"], "--prefill"),
    (["up", "m.gguf", "--kv-memory", "much"], "--kv-memory"),
    (["worker", "m.gguf", "--role", "both"], "--role"),
    (["router", "--prefill", "http://127.0.0.1:1"], "--decode"),
    (["router", "--worker", "ftp://x"], "ftp://x"),
    (["worker", "m.gguf", "--role", "decode"], "TANDEM_SECRET"),
    (["router", "--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:1"], "TANDEM_SECRET"),
    (["inspect", "README.md"], "GGUF"),
    (["simulate", "tiers"], "simulate kv"),
    (["simulate", "kv", "--break", "I99"], "--break"),
    (["up", "m.gguf", "--config", "absent.toml"], "absent.toml"),
])
def test_a_mistake_is_named_and_ends_with_a_status(binary, arguments, named):
    ended = run(binary, *arguments, cwd=ROOT)
    assert ended.returncode in (1, 2)
    assert named in ended.stderr, ended.stderr
    assert "terminate" not in ended.stderr


def test_inspect_shows_the_model(binary, model):
    shown = run(binary, "inspect", model)
    assert shown.returncode == 0
    assert "architecture     llama" in shown.stdout and "49152" in shown.stdout and "chat template    yes" in shown.stdout


def test_chat_holds_a_conversation_and_shows_what_it_cost(binary, up):
    ended = run(binary, "chat", up.url, "--message", "Name three primary colors.", "--message", "Name one of them again.",
                "--temperature", "0", "--max-tokens", "40")
    assert ended.returncode == 0, ended.stderr
    rows = re.findall(r"^ +(\d) +(\d+) +(\d+) +(\d+) +([\d.]+) ms +([\d.]+) ms +(.+)$", ended.stdout, re.M)
    assert len(rows) == 2, ended.stdout
    (_, prompt, cached, answer, *_, moved), second = rows
    assert int(cached) == 0 and not moved.strip().startswith("0 ")
    # Everything of turn one that fills whole blocks of 16 is reused, what decode generated included.
    assert int(second[2]) >= (int(prompt) + int(answer) - 1) // 16 * 16 - 16 > int(prompt) // 16 * 16 - 16
    refused = run(binary, "chat", "http://127.0.0.1:9", "--message", "x")
    assert refused.returncode == 1 and refused.stderr


def test_the_configuration_file_has_the_names_of_the_flags(launch, write_script, tmp_path):
    config = tmp_path / "tandem.toml"
    config.write_text('port = 0\napi-key = ["sesame"]\n[up]\nunified = 1\nkv-memory = "32M"\nserved-model-name = "named"\n')
    up = launch("up", "up", write_script(tmp_path, [{"reply": "hi"}]), "--config", config).wait_ready()
    assert request(up.url, "GET", "/v1/models").status == 401
    reply = request(up.url, "GET", "/v1/models", headers={"Authorization": "Bearer sesame"})
    assert reply.json()["data"][0]["id"] == "named"


def test_the_request_in_the_readme_works(up):
    body = re.search(r"curl .*?-d '(\{.*?\})'\n", (ROOT / "README.md").read_text(), re.S)[1]
    reply = request(up.url, "POST", "/v1/chat/completions", json.loads(body))
    assert reply.status == 200 and reply.body.rstrip().endswith(b"data: [DONE]")


def test_two_passes_in_flight_change_nothing(launch, model, up):
    ahead = launch("ahead", "up", model, "--port", "0", "--steps-in-flight", "2").wait_ready()
    for seed in range(4):
        body = {"model": "default", "prompt": f"Once upon a time, {seed}", "max_tokens": 40, "seed": seed, "stop": ["\n\n"]}
        texts = [request(url, "POST", "/v1/completions", body).json()["choices"][0]["text"] for url in (up.url, ahead.url)]
        assert texts[0] == texts[1]


def test_up_starts_where_the_temporary_folder_has_a_long_name(launch, write_script, tmp_path):
    """Its workers tell the router what they hold through sockets in a folder, whose addresses hold a hundred bytes."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    up = launch("up", "up", write_script(tmp_path, [{"reply": "Hello."}]), "--port", "0", env={"TMPDIR": str(folder)}).wait_ready()
    assert chat(up.url, "hi").status == 200
