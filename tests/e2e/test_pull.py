"""`tandem pull` against a local server with a hub's layout."""

import hashlib
import os
import random
import signal
import subprocess

import pytest

from hub import Hub, certificate
from servers import chat, request, wait_until

BIG = random.Random(7).randbytes(3_000_000)


@pytest.fixture
def hub(tmp_path):
    made = []

    def make(files=None, **options):
        repositories = {"acme/tiny": files or {"tiny.Q4_K_M.gguf": BIG, "tiny.Q8_0.gguf": BIG[:1000], "README.md": b"hello"}}
        options.setdefault("large", [path for path in repositories["acme/tiny"] if path.endswith((".gguf", ".safetensors"))])
        made.append(Hub(repositories, **options))
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.fixture
def models(tmp_path):
    return tmp_path / "models"


@pytest.fixture
def pull(binary, models):
    def run(hub, *arguments, env=None, **options):
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "SSL_", "TANDEM_M"))}
        options.setdefault("timeout", 60)
        return subprocess.run([str(binary), "pull", *map(str, arguments)], capture_output=True, text=True, check=False,
                              env={**clean, "HF_ENDPOINT": hub.url, "TANDEM_MODELS": str(models), **(env or {})}, **options)

    return run


def files(models):
    root = models / "acme" / "tiny"
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.mark.quick
@pytest.mark.parametrize("name,expected", [
    ("acme/tiny:Q8_0", "tiny.Q8_0.gguf"), ("acme/tiny:q4_k_m", "tiny.Q4_K_M.gguf"), ("acme/tiny", "tiny.Q4_K_M.gguf"),
    ("acme/tiny:tiny.Q8_0.gguf", "tiny.Q8_0.gguf")])
def test_a_file_is_chosen_by_name_or_mark(hub, pull, models, name, expected):
    server = hub()
    done = pull(server, name)
    assert done.returncode == 0, done.stderr
    assert files(models) == {expected}
    assert (models / "acme" / "tiny" / expected).read_bytes() == server.repositories["acme/tiny"][expected]
    assert "checksum is right" in done.stdout and "100 %" in done.stdout
    again = pull(server, name)
    assert again.returncode == 0 and "is there" in again.stdout


@pytest.mark.quick
def test_safetensors_come_with_their_documents(hub, pull, models):
    wanted = {"model-00001-of-00002.safetensors": BIG[:70000], "model-00002-of-00002.safetensors": BIG[70000:150000],
              "model.safetensors.index.json": b"{}", "config.json": b"{}", "tokenizer.json": b'{"a":1}', "tokenizer.model": b"m",
              "chat_template.jinja": b"x", "merges.txt": b"a b"}
    rest = {"README.md": b"r", "pytorch_model.bin": b"p", "original/model.safetensors": b"o", "consolidated.safetensors": b"c", "x.py": b"y"}
    done = pull(hub({**wanted, **rest}), "acme/tiny")
    assert done.returncode == 0, done.stderr
    assert files(models) == set(wanted)


@pytest.mark.quick
def test_the_parts_of_a_split_file_come_together(hub, pull, models):
    parts = {f"big-Q8_0-0000{i}-of-00003.gguf": BIG[i * 100:i * 100 + 100] for i in (1, 2, 3)}
    done = pull(hub({**parts, "other.gguf": b"x"}), "acme/tiny:Q8_0")
    assert done.returncode == 0, done.stderr
    assert files(models) == set(parts)


@pytest.mark.quick
def test_cut_downloads_go_on_where_they_stopped(hub, pull, models):
    server = hub()
    server.cuts = [1_000_000, 500_000, 300_000]
    done = pull(server, "acme/tiny:Q4_K_M")
    assert done.returncode == 0, done.stderr
    assert (models / "acme/tiny/tiny.Q4_K_M.gguf").read_bytes() == BIG
    ranges = [headers.get("Range") for part, _, headers in server.seen if part == "store"]
    assert ranges[0] is None and len(ranges) == 4 and all(r and int(r[6:-1]) > 0 for r in ranges[1:]), ranges
    assert done.stderr.count("trying again") == 3


@pytest.mark.quick
def test_a_killed_pull_is_taken_up_by_the_next(hub, pull, models, binary):
    server = hub()
    server.pause = 0.02
    process = subprocess.Popen([str(binary), "pull", "acme/tiny:Q4_K_M"], stdout=subprocess.DEVNULL,
                               env={**os.environ, "HF_ENDPOINT": server.url, "TANDEM_MODELS": str(models)})
    part = wait_until(lambda: next(iter((models / "acme/tiny").glob("*.part")), None) if models.exists() else None, 10, "a part")
    wait_until(lambda: part.stat().st_size > 200_000, 10, "some bytes")
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    server.pause = 0
    assert pull(server, "acme/tiny:Q4_K_M").returncode == 0
    assert server.seen[-1][2]["Range"] != "bytes=0-" and files(models) == {"tiny.Q4_K_M.gguf"}
    assert (models / "acme/tiny/tiny.Q4_K_M.gguf").read_bytes() == BIG


@pytest.mark.quick
def test_a_server_without_ranges_starts_over(hub, pull, models):
    server = hub()
    server.ranges, server.cuts = False, [1_000_000]
    assert pull(server, "acme/tiny:Q4_K_M").returncode == 0
    assert (models / "acme/tiny/tiny.Q4_K_M.gguf").read_bytes() == BIG


@pytest.mark.quick
def test_wrong_bytes_never_get_the_name(hub, pull, models):
    server = hub()
    server.sha256["tiny.Q8_0.gguf"] = "ab" * 32
    done = pull(server, "acme/tiny:Q8_0")
    assert done.returncode == 1 and "checksum" in done.stderr
    assert files(models) == set()


@pytest.mark.quick
def test_a_damaged_beginning_is_fetched_again(hub, pull, models):
    server = hub()
    folder = models / "acme/tiny"
    folder.mkdir(parents=True)
    digest = hashlib.sha256(BIG).hexdigest()
    (folder / f"tiny.Q4_K_M.gguf.{digest[:16]}.part").write_bytes(b"?" * 1_500_000)
    done = pull(server, "acme/tiny:Q4_K_M")
    assert done.returncode == 0 and "checksum" in done.stderr
    assert (folder / "tiny.Q4_K_M.gguf").read_bytes() == BIG


@pytest.mark.quick
def test_the_token_goes_to_the_hub_only(hub, pull):
    server = hub(token="hf_secret")
    done = pull(server, "acme/tiny:Q8_0", env={"HF_TOKEN": "hf_secret"})
    assert done.returncode == 0, done.stderr
    assert {part for part, _, _ in server.seen} == {"api", "store"}
    for part, path, headers in server.seen:
        assert headers.get("Authorization") == ("Bearer hf_secret" if part == "api" else None), path
    assert "hf_secret" not in done.stdout + done.stderr


@pytest.mark.quick
@pytest.mark.parametrize("arguments,env,words", [
    (["acme/tiny:Q8_0"], {}, ["HF_TOKEN"]), (["acme/tiny:Q8_0"], {"HF_TOKEN": "wrong"}, ["accept its terms", "HF_TOKEN"])])
def test_refusals_say_what_to_do(hub, pull, arguments, env, words):
    done = pull(hub(token="right"), *arguments, env=env)
    assert done.returncode == 1 and all(word in done.stderr for word in words), done.stderr


@pytest.mark.quick
@pytest.mark.parametrize("arguments,words", [
    (["acme/none"], ["There is no model acme/none", "--revision"]), (["acme/tiny", "--revision", "v9"], ["revision v9"]),
    (["acme/tiny:Q5_0"], ["tiny.Q4_K_M.gguf, tiny.Q8_0.gguf"]), (["acme/tiny:gguf"], ["Several files fit"])])
def test_what_is_not_there_is_named(hub, pull, arguments, words):
    done = pull(hub(), *arguments)
    assert done.returncode == 1 and all(word in done.stderr for word in words), done.stderr


@pytest.mark.quick
def test_a_busy_hub_is_asked_again_and_an_absent_one_is_told(hub, pull):
    server = hub()
    server.gate["status"] = 503
    assert pull(server, "acme/tiny:Q8_0").returncode == 0
    server.close()
    done = pull(server, "acme/tiny:Q8_0")
    assert done.returncode == 1 and "cannot connect" in done.stderr


@pytest.mark.quick
def test_two_pulls_at_once_fetch_once(hub, pull, models, binary):
    server = hub()
    server.pause = 0.01
    env = {**os.environ, "HF_ENDPOINT": server.url, "TANDEM_MODELS": str(models)}
    both = [subprocess.Popen([str(binary), "pull", "acme/tiny:Q4_K_M"], stdout=subprocess.PIPE, text=True, env=env) for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("waiting for it" in out for out in outputs) == 1
    assert sum(1 for part, _, _ in server.seen if part == "store") == 1


@pytest.mark.quick
def test_paths_from_the_hub_cannot_leave_the_directory(hub, pull, models):
    done = pull(hub({"../../evil.gguf": b"x", "tiny.gguf": b"y"}), "acme/tiny")
    assert done.returncode == 1 and "not safe" in done.stderr
    assert not (models.parent / "evil.gguf").exists()


@pytest.mark.quick
def test_a_full_disk_is_told(hub, pull, tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", full], capture_output=True, check=False).returncode:
        done = pull(hub(), "acme/tiny:Q4_K_M", "--models-dir", "/dev/null/x")
        assert done.returncode == 1 and "cannot make the directory" in done.stderr
        return
    try:
        done = pull(hub(), "acme/tiny:Q4_K_M", "--models-dir", full)
        assert done.returncode == 1 and "has room for" in done.stderr
    finally:
        subprocess.run(["umount", full], check=True)


@pytest.mark.quick
def test_tls_needs_a_certificate_that_is_good(hub, pull, tmp_path, models):
    pair = certificate(tmp_path)
    server = hub(tls=pair)
    refused = pull(server, "acme/tiny:Q8_0")
    assert refused.returncode == 1 and "certificate" in refused.stderr
    done = pull(server, "acme/tiny:Q4_K_M", env={"SSL_CERT_FILE": pair[0]})
    assert done.returncode == 0, done.stderr
    assert (models / "acme/tiny/tiny.Q4_K_M.gguf").read_bytes() == BIG
    other = hub(tls=certificate(tmp_path, "elsewhere.example"))
    wrong = pull(other, "acme/tiny:Q8_0", env={"SSL_CERT_FILE": str(tmp_path / "elsewhere.example.pem")})
    assert wrong.returncode == 1 and "certificate" in wrong.stderr


@pytest.mark.quick
def test_a_pulled_model_is_served_by_its_name(hub, pull, models, launch, model):
    server = hub({"smol.Q4_1.gguf": model.read_bytes(), "README.md": b"x"})
    assert pull(server, "acme/tiny").returncode == 0
    up = launch("up", "up", "--model", "acme/tiny", "--unified", "1", "--port", "0", "--kv-memory", "64M",
                env={"TANDEM_MODELS": str(models)}).wait_ready()
    assert request(up.url, "GET", "/v1/models").json()["data"][0]["id"] == "acme/tiny"
    assert chat(up.url, "hi", max_tokens=3).status == 200
    missing = launch("missing", "up", "--model", "acme/none:Q8_0", "--port", "0", env={"TANDEM_MODELS": str(models)})
    assert missing.process.wait(10) == 1
    wait_until(lambda: "tandem pull acme/none:Q8_0" in missing.log(), 5, missing.log)
