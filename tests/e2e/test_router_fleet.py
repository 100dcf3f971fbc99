"""The fleet while it runs: its routes, its table in the configuration file, https on the way in, heartbeats."""

import contextlib
import json
import ssl
import subprocess
import time
import urllib.error
import urllib.request

import pytest

from mocks import SLOW, Mocks, chat_body
from servers import Process, Stream, request, wait_until

pytestmark = pytest.mark.quick
CHAT = "/v1/chat/completions"
CLIENT, OPERATOR = {"Authorization": "Bearer client"}, {"Authorization": "Bearer operator"}


@pytest.fixture
def engines(binary, tmp_path):
    made = Mocks(binary, tmp_path / "mocks.log", "--dialect", "openai", "--unified", 2, "--step", "1ms")
    yield made
    made.end()


@contextlib.contextmanager
def router(binary, tmp_path, *arguments, connector="plain", name="router"):
    process = Process(binary, ["router", "--connector", connector, "--port", "0", *arguments], tmp_path / f"{name}.log")
    try:
        yield process
    finally:
        process.end()


def workers(url):
    return request(url, "GET", "/router/workers", headers=CLIENT).json()["workers"]


def test_workers_come_and_go(binary, tmp_path, engines):
    first, second = (engine.url for engine in engines.all)
    with router(binary, tmp_path, "--worker", first, "--api-key", "client", "--admin-key", "operator") as process:
        url = process.wait_ready().url
        new = {"url": second, "connector": "plain", "dp_size": 1}
        assert request(url, "GET", "/router/workers").status == 401
        assert request(url, "POST", "/router/workers", new, CLIENT).status == 401, "it changes the fleet"
        added = request(url, "POST", "/router/workers", new, OPERATOR)
        assert added.status in (200, 201) and added.json()["id"] == 1, added.body
        assert request(url, "POST", "/router/workers", {"url": "ftp://nowhere"}, OPERATOR).status == 400
        refused = request(url, "POST", "/router/workers", {**new, "dp_size": 0}, OPERATOR)
        assert refused.status == 400 and (refused.json()["error"]["code"], refused.json()["error"]["param"]) == ("bad_worker", "dp_size")
        wait_until(lambda: [worker["state"] for worker in workers(url)] == ["up", "up"], 5, "the second is up")
        assert request(url, "POST", "/router/workers/0/drain", {}, OPERATOR).json()["draining"] is True
        for i in range(4):
            reply = request(url, "POST", CHAT, chat_body(f"drained {i}", max_tokens=2), CLIENT)
            assert reply.status == 200 and reply.headers["x-tandem-worker"] == second, reply.body
        assert request(url, "POST", "/router/workers/0/undrain", {}, OPERATOR).json()["draining"] is False
        assert request(url, "DELETE", "/router/workers/1", headers=OPERATOR).status == 200
        wait_until(lambda: [worker["id"] for worker in workers(url)] == [0], 5, "the second is gone")
        reply = request(url, "POST", CHAT, chat_body("left alone", max_tokens=2), CLIENT)
        assert reply.status == 200 and reply.headers["x-tandem-worker"] == first
        assert request(url, "POST", "/router/workers/7/drain", {}, OPERATOR).status == 404


def test_nobody_changes_a_fleet_without_a_key(binary, tmp_path, engines):
    with router(binary, tmp_path, "--worker", engines.all[0].url) as process:
        reply = request(process.wait_ready().url, "POST", "/router/workers", {"url": engines.all[1].url})
        assert 400 <= reply.status < 500, reply.body


def test_workers_are_tables_of_the_configuration_file(binary, tmp_path, engines):
    file = tmp_path / "router.toml"
    file.write_text("".join(f'[[workers]]\nurl = "{engine.url}"\nrole = "unified"\nconnector = "plain"\ngroup = "g{i}"\n'
                            for i, engine in enumerate(engines.all)))
    process = Process(binary, ["router", "--port", "0", "--config", file, "--api-key", "client"], tmp_path / "router.log")
    try:
        told = workers(process.wait_ready().url)
        assert [(worker["url"], worker["group"]) for worker in told] == [(engine.url, f"g{i}") for i, engine in enumerate(engines.all)]
    finally:
        process.end()


def test_a_silent_stream_is_kept_alive_by_comments(binary, tmp_path, engines):
    with router(binary, tmp_path, "--worker", engines.all[0].url, "--heartbeat", "100ms") as process:
        url = process.wait_ready().url
        engines.faults("stall")
        stream = Stream(url, chat_body("silence", max_tokens=8), timeout=20)
        assert stream.open() == 200
        lines = [stream.reply.readline() for _ in range(6)]
        stream.close()
        engines.faults()
        assert [line for line in lines if line.strip()] == [b": keep-alive\n"] * 3, lines


def test_https_on_both_sides(binary, tmp_path, engines):
    """A router that serves https, behind another one that trusts nobody but whom `--worker-ca` names."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"],
                   check=True, capture_output=True)
    with router(binary, tmp_path, "--worker", engines.all[0].url, "--tls-cert", tmp_path / "cert.pem", "--tls-key", tmp_path / "key.pem") as process:
        url = process.wait_listening().url
        trust = ssl.create_default_context(cafile=tmp_path / "cert.pem")

        def ask():
            body = json.dumps(chat_body("in private", max_tokens=2)).encode()
            call = urllib.request.Request(url + CHAT, body, {"Content-Type": "application/json"})
            with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(call, context=trust, timeout=10) as reply:
                return reply.status == 200 and json.load(reply)["choices"]
            return False

        wait_until(ask, 5, "an answer over https")
        with router(binary, tmp_path, "--worker", url, "--worker-ca", tmp_path / "cert.pem", name="trusting") as front:
            front.wait_ready()
            reply = request(front.url, "POST", CHAT, chat_body("twice in private", max_tokens=2))
            assert reply.status == 200 and reply.json()["choices"], reply.body
        with router(binary, tmp_path, "--worker", url, name="strict") as front:
            front.wait_listening()
            wait_until(lambda: "certificate" in front.log(), 5, lambda: front.log())
            assert request(front.url, "POST", CHAT, chat_body("to a stranger", max_tokens=2)).status == 503


def test_after_a_failed_pair_leg_one_rank_is_asked_who_it_is_and_the_others_only_of_another_process(binary, tmp_path):
    """Each answer takes 0.2 s: sixteen ranks one after another would be 3.2 s."""
    ranks = 16
    mocks = Mocks(binary, tmp_path / "ranks.log", "--dialect", "vllm-nixl-push", "--prefill", 1, "--decode", 1, "--dp-size", ranks,
                  "--prefill-rate", 5, "--step", "1ms", "--lease", "1s", "--record", 200)
    try:
        fleet = tmp_path / "fleet.json"
        fleet.write_text(json.dumps({"workers": [{"url": e.url, "role": e.role, "dp_size": ranks} for e in mocks.all]}))
        with router(binary, tmp_path, "--workers-file", fleet, "--health-interval", "20s", connector="vllm-nixl-push") as front:
            front.wait_ready()
            prefill, decode = mocks.all
            body = {"model": "mock-model", "prompt": "hi", "max_tokens": 1}

            def probes():
                return sum('"prompt":"."' in each["body"] for each in prefill.requests())

            def ask():
                before, began = probes(), time.monotonic()
                reply = request(front.url, "POST", "/v1/completions", body)
                assert reply.status == 200, (reply.body, front.log())
                return probes() - before, time.monotonic() - began

            assert probes() == ranks
            assert ask()[0] == 0
            decode.faults("status=500#1")
            assert ask()[0] == 1, "the same process as before"
            prefill.restart()
            asked, seconds = ask()
            assert asked == ranks, asked
            assert seconds < 2.4 * SLOW, seconds
            assert ask()[0] == 0
    finally:
        mocks.end()


def test_the_fleet_follows_a_file(binary, tmp_path, engines):
    first, second = (engine.url for engine in engines.all)
    file = tmp_path / "fleet.json"

    def write(*listed):
        fresh = tmp_path / "fleet.new"
        fresh.write_text(json.dumps({"workers": list(listed)}))
        fresh.replace(file)

    def answers():
        reply = request(url, "POST", CHAT, chat_body("who", max_tokens=2))
        return reply.headers.get("x-tandem-worker") if reply.status == 200 else reply.status

    missing = subprocess.run([str(binary), "router", "--workers-file", str(file), "--port", "0"], capture_output=True, text=True, timeout=20)
    assert missing.returncode != 0 and "fleet.json" in missing.stderr, missing.stderr
    write({"url": first})
    with router(binary, tmp_path, "--workers-file", file) as process:
        url = process.wait_ready().url
        assert answers() == first
        write({"url": second})
        wait_until(lambda: [(each["url"], each["state"]) for each in request(url, "GET", "/router/workers").json()["workers"]] ==
                   [(second, "up")], 10, "the second in the place of the first")
        assert answers() == second
        write({"url": second, "ready": False}, {"url": first})
        wait_until(lambda: answers() == first, 10, "the second is drained")
        assert [each["draining"] for each in request(url, "GET", "/router/workers").json()["workers"] if each["url"] == second] == [True]
        file.write_text('{"workers": [{"url": 7}')
        wait_until(lambda: "--workers-file" in process.log(), 10, "the log says what is wrong")
        assert answers() == first, "a broken list changes nothing"
        write({"url": second, "ready": True})
        wait_until(lambda: answers() == second, 10, "the list is whole again")
