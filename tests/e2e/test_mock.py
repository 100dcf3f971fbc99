"""`tandem mock` against a router that we did not write: what keeps the mocks honest."""

import concurrent.futures
import contextlib
import importlib.util
import json
import subprocess
import sys

import pytest

from mocks import Mocks
from servers import Stream, free_port, request, text_of, wait_until

pytestmark = pytest.mark.quick
PROMPTS = [f"please tell the story of number {i} from its beginning" for i in range(24)]


@contextlib.contextmanager
def mocks(binary, directory, *arguments):
    """[(role, url, bootstrap port or None)] of the engines of one process."""
    made = Mocks(binary, directory / "mock.log", *arguments)
    try:
        yield [(engine.role, engine.url, engine.bootstrap) for engine in made.all]
    finally:
        made.end()


@contextlib.contextmanager
def published_router(name, directory, engines):
    """sglang-router or vllm-router, as PyPI has them."""
    package = name.replace("-", "_")
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the package {name} is not installed")
    port = free_port()
    command = [sys.executable, "-m", f"{package}.launch_router", "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port()),
               "--policy", "round_robin", "--pd-disaggregation" if name == "sglang-router" else "--vllm-pd-disaggregation"]
    for role, url, bootstrap in engines:
        command += ["--prefill", url, *([str(bootstrap)] if name == "sglang-router" else [])] if role == "prefill" else ["--decode", url]
    with open(directory / f"{name}.log", "w", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"

    def ready():
        with contextlib.suppress(OSError):
            return request(url, "GET", "/readiness", timeout=2).status == 200
        return False

    try:
        wait_until(ready, 60, f"{name} is not ready")
        yield url
    finally:
        process.terminate()
        process.wait(20)


def state(url):
    return request(url, "GET", "/mock/state").json()


def settled(engines):
    """Nothing runs, and no room, lease or wait is left."""
    def clean():
        states = [state(url) for _, url, _ in engines]
        return all(s["running"] == s["rooms"]["open"] == s["rooms"]["waiting"] == 0 for s in states)
    wait_until(clean, 10, lambda: [state(url) for _, url, _ in engines])


def body(prompt, **fields):
    return {"model": "mock-model", "messages": [{"role": "user", "content": prompt}], **fields}


def as_alone(url, alone, prompt):
    """What the engine `alone` says, which is what the router at `url` has to say, whole and streamed."""
    expected = request(alone, "POST", "/v1/chat/completions", body(prompt)).json()["choices"][0]["message"]["content"]
    reply = request(url, "POST", "/v1/chat/completions", body(prompt))
    assert reply.status == 200, reply.body
    assert reply.json()["choices"][0]["message"]["content"] == expected
    assert text_of(list(Stream(url, body(prompt)))) == expected
    return expected


def test_a_published_router_drives_the_sglang_mocks_unchanged(binary, tmp_path):
    with mocks(binary, tmp_path, "--dialect", "sglang", "--prefill", 2, "--decode", 2, "--unified", 1,
               "--step", "1ms", "--piece", "-1") as engines, \
            published_router("sglang-router", tmp_path, [e for e in engines if e[0] != "unified"]) as url:
        alone = engines[-1][1]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(lambda prompt: as_alone(url, alone, prompt), PROMPTS))) == len(PROMPTS)
        batch = request(url, "POST", "/v1/completions", {"model": "mock-model", "prompt": PROMPTS[:3], "max_tokens": 4}).json()
        assert len({choice["text"] for choice in batch["choices"]}) == 3 and batch["usage"]["completion_tokens"] == 12
        several = request(url, "POST", "/v1/chat/completions", body(PROMPTS[0], n=3)).json()
        assert len({choice["message"]["content"] for choice in several["choices"]}) == 3
        scored = request(url, "POST", "/generate", {"text": PROMPTS[0], "return_logprob": True,
                                                    "sampling_params": {"max_new_tokens": 4}}).json()["meta_info"]
        assert len(scored["input_token_logprobs"]) == scored["prompt_tokens"]
        settled(engines)
        counts = [state(u) for _, u, _ in engines]
        assert sum(s["rooms"]["taken"] for s in counts) == 2 * len(PROMPTS) + 3 + 3 + 1
        assert all(s["requests"] > 0 for s in counts)


def test_a_published_router_drives_the_vllm_mocks_unchanged(binary, tmp_path):
    with mocks(binary, tmp_path, "--dialect", "vllm-nixl", "--prefill", 2, "--decode", 2, "--unified", 1, "--step", "1ms") as engines, \
            published_router("vllm-router", tmp_path, [e for e in engines if e[0] != "unified"]) as url:
        alone = engines[-1][1]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(lambda prompt: as_alone(url, alone, prompt), PROMPTS))) == len(PROMPTS)
        settled(engines)
        counts = [state(u) for _, u, _ in engines]
        assert sum(s["rooms"]["taken"] for s in counts) == 2 * len(PROMPTS)
        assert all(s["requests"] > 0 for s in counts)


def test_a_leg_without_its_partner_hangs_until_somebody_cuts_it(binary, tmp_path):
    with mocks(binary, tmp_path, "--dialect", "sglang", "--prefill", 1, "--decode", 1, "--partner-timeout", "1s") as engines:
        (_, prefill, bootstrap), (_, decode, _) = engines
        room = {"bootstrap_host": "127.0.0.1", "bootstrap_port": bootstrap, "bootstrap_room": 2**63 - 1}
        reply = request(prefill, "POST", "/v1/chat/completions", body("alone", **room))
        assert reply.status == 500 and b"no decode server came" in reply.body
        reply = request(decode, "POST", "/v1/chat/completions", body("alone", **{**room, "bootstrap_room": 7}))
        assert reply.status == 500
        counts = state(prefill)
        assert counts["rooms"]["aborted"] == 1 and counts["rooms"]["unclaimed"] == 1
        settled(engines)


def test_faults_are_set_while_it_runs(binary, tmp_path):
    with mocks(binary, tmp_path, "--dialect", "openai", "--unified", 3, "--step", "0", "--fault", "status=503#1") as engines:
        for _, url, _ in engines:
            assert request(url, "POST", "/v1/chat/completions", body("x")).status == 503
            assert request(url, "POST", "/v1/chat/completions", body("x")).status == 200
            reply = request(url, "POST", "/mock/faults", {"faults": ["garbage#1"]})
            assert reply.status == 200
            with pytest.raises(json.JSONDecodeError):
                request(url, "POST", "/v1/chat/completions", body("x")).json()
            assert request(url, "POST", "/mock/faults", {"faults": ["no such fault"]}).status == 400
            before = state(url)["engine_id"]
            assert request(url, "POST", "/mock/restart", {}).json()["engine_id"] != before


def test_wrong_options_are_explained(binary):
    run = subprocess.run([str(binary), "mock", "--fault", "explode"], capture_output=True, text=True, timeout=20)
    assert run.returncode == 2 and "die-mid-stream" in run.stderr


def test_thousands_live_in_one_process(binary, tmp_path):
    with mocks(binary, tmp_path, "--dialect", "sglang", "--count", 3000, "--role", "unified", "--step", "0") as engines:
        assert len({url for _, url, _ in engines}) == 3000
        for _, url, _ in engines[::500]:
            assert request(url, "POST", "/v1/chat/completions", body("one of many")).status == 200


def test_static_engines_serve_many_paced_streams(binary, tmp_path):
    with mocks(binary, tmp_path, "--dialect", "sglang", "--unified", 1, "--static", "--step", "50ms", "--reply-tokens", 4) as engines:
        url = engines[0][1]
        streams = [Stream(url, body("anything")) for _ in range(300)]
        texts = {text_of(list(stream))[:5] for stream in streams}
        assert texts == {"tick "}
        for stream in streams:
            stream.close()
        assert state(url)["running"] == 0
