"""Connections, keys, signals: how clients come and go. Row numbers: see bugs.py."""

import concurrent.futures
import http.client
import json
import signal
import socket
import time
import urllib.parse

import pytest

from servers import Stream, chat, connect, events, metrics, request, text_of, wait_until

WORDS = " ".join(f"word{i}" for i in range(60))


@pytest.fixture
def slow(cluster, write_script, tmp_path):
    """A pair that takes about 20 ms per token."""
    return cluster(write_script(tmp_path, [{"reply": WORDS}], step_ms=20), worker_options=("--kv-memory", "64M"))


def body(**fields):
    return {"messages": [{"role": "user", "content": "go"}], "max_tokens": 400, **fields}


@pytest.mark.quick
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_memory_within_a_second(slow, stream):  # rows 65 and 66
    before = slow.pages_used()
    if stream:
        reader = Stream(slow.url, body())
        iterator = iter(reader)
        for _ in range(3):
            next(iterator)
        reader.close()
    else:
        connection = connect(slow.url)
        connection.request("POST", "/v1/chat/completions", json.dumps(body()), {"Content-Type": "application/json"})
        slow.chosen("decode")
        connection.close()
    slow.wait_settled(before, seconds=1)


@pytest.mark.quick
def test_streams_have_usage_only_in_the_last_chunk_and_end_with_done(slow):
    got = events(chat(slow.url, "go", stream=True, stream_options={"include_usage": True}, max_tokens=10).body)
    assert got[-1] == "[DONE]" and "[DONE]" not in got[:-1]
    assert got[-2]["choices"] == [] and got[-2]["usage"]["completion_tokens"] == 10
    assert all("usage" in event and event["usage"] is None for event in got[:-2])
    assert sum(1 for event in got[:-2] if event["choices"][0]["finish_reason"]) == 1


@pytest.mark.quick
def test_expect_100_continue_is_answered_at_once(slow):  # row 68
    parts = urllib.parse.urlsplit(slow.url)
    payload = json.dumps(body(max_tokens=1, padding="x" * (2 << 20))).encode()
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as sock:
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                     b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(payload))
        start = time.monotonic()
        first = sock.recv(1024)
        assert time.monotonic() - start < 0.5
        assert first.startswith((b"HTTP/1.1 100", b"HTTP/1.1 400"))
        if first.startswith(b"HTTP/1.1 100"):
            sock.sendall(payload)
            reply = http.client.HTTPResponse(sock)
            reply.begin()
            assert reply.status == 200 and reply.read()


def _two_requests(url, idle):
    connection = connect(url)
    for pause in (idle, 0):
        connection.request("POST", "/v1/chat/completions", json.dumps(body(max_tokens=1)), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        assert reply.status == 200 and reply.read()
        time.sleep(pause)
    connection.close()


@pytest.mark.quick
def test_an_idle_connection_outlives_the_usual_five_seconds(slow):  # row 69
    _two_requests(slow.url, 6)


@pytest.mark.full
def test_an_idle_connection_lives_for_an_agents_turn(slow):  # row 69
    _two_requests(slow.url, 80)


@pytest.mark.quick
def test_every_route_asks_for_the_key(launch, write_script, tmp_path):  # row 71
    script = write_script(tmp_path, [{"reply": "x"}])
    server = launch("up", "up", script, "--unified", "1", "--port", "0", "--api-key", "sesame", "--kv-memory", "64M").wait_ready()
    routes = [("POST", "/v1/chat/completions"), ("POST", "/v1/completions"), ("GET", "/v1/models"), ("POST", "/tokenize"),
              ("POST", "/detokenize"), ("GET", "/metrics"), ("POST", "/v1/messages"), ("POST", "/invocations"), ("GET", "/nope"),
              ("GET", "//v1/models"), ("GET", "/v1/../metrics"), ("GET", "/health/../metrics"), ("GET", "/tandem/v1/tokenizer")]
    for method, path in routes:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "sesame"}, {"x-tandem-auth": "sesame"}):
            reply = request(server.url, method, path, {} if method == "POST" else None, headers)
            assert reply.status == 401, (method, path, headers, reply.status)
            assert reply.json()["error"]["type" if path == "/v1/messages" else "code"]  # Anthropic's errors have no code
    for path in ("/health", "/ready"):
        assert request(server.url, "GET", path).status == 200
    reply = request(server.url, "GET", "/v1/models", headers={"Authorization": "Bearer sesame"})
    assert reply.status == 200


@pytest.mark.quick
def test_sigterm_drains_running_streams(slow):  # row 74
    with concurrent.futures.ThreadPoolExecutor() as pool:
        streams = [pool.submit(chat, slow.url, "go", stream=True, max_tokens=40) for _ in range(4)]
        wait_until(lambda: metrics(slow.url)["tandem_num_requests_running"] == 4, 10, "four streams")
        slow.router.signal(signal.SIGTERM)

        def unready():
            return request(slow.url, "GET", "/ready", timeout=2).status == 503

        wait_until(unready, 2, "not ready after SIGTERM")
        late = chat(slow.url, "late", max_tokens=4)
        assert late.status == 503, late.body
        for stream in streams:
            got = events(stream.result(30).body)
            assert got[-1] == "[DONE]"
            assert text_of(got) and got[-2]["choices"][0]["finish_reason"] == "length"
    assert slow.router.process.wait(10) == 0


@pytest.mark.quick
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_sigterm_of_a_worker_drains_its_running_streams(slow, role):
    """The router must not take a worker that drains for a dead one."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        stream = pool.submit(chat, slow.url, "go", stream=True, max_tokens=100)
        decode = slow.roles["decode"][0]
        wait_until(lambda: decode.metrics()["tandem_num_requests_running"] == 1, 10, "the stream where it decodes")
        worker = slow.roles[role][0]
        worker.signal(signal.SIGTERM)
        wait_until(lambda: request(slow.url, "GET", "/ready").status == 503, 5, "not ready without the worker")
        got = events(stream.result(30).body)
        assert got[-1] == "[DONE]"
        assert "choices" in got[-2] and got[-2]["choices"][0]["finish_reason"], got[-2]
    assert worker.process.wait(10) == 0


@pytest.mark.quick
def test_a_fleet_without_workers_says_so(slow):  # row 75
    for process in slow.workers:
        process.kill()
    wait_until(lambda: request(slow.url, "GET", "/ready").status == 503, 5, "not ready without workers")
    start = time.monotonic()
    reply = chat(slow.url, "go")
    assert reply.status == 503 and time.monotonic() - start < 3
    assert reply.json()["error"]["message"]


@pytest.mark.quick
def test_a_frozen_fleet_is_noticed(slow):  # row 75
    for process in slow.workers:
        process.signal(signal.SIGSTOP)
    wait_until(lambda: request(slow.url, "GET", "/ready").status == 503, 10, "not ready with frozen workers")
    reply = chat(slow.url, "go", timeout=20)
    assert reply.status == 503 and reply.headers["Retry-After"]
    for process in slow.workers:
        process.signal(signal.SIGCONT)
    wait_until(lambda: request(slow.url, "GET", "/ready").status == 200, 10, "ready again")
    assert chat(slow.url, "go", max_tokens=3).status == 200
