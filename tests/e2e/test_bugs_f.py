"""Reports, section F: connections and failing engines. Rows 65, 66, 68, 69, 71, 74 and 77 are in test_connections.py and test_edge.py."""

import concurrent.futures
import signal
import socket
import time
import urllib.parse

import pytest

from bugs import WINDOW, expect_error, start_pair, unharmed
from servers import chat, events, request, text_of, wait_until

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def pair(module_launch, write_script, tmp_path_factory):
    """A pair that takes 10 ms for each token, and a sick answer: its third token is not a number."""
    replies = [{"when": "sick at once", "reply": "you never see this", "nan_at": 0},
               {"when": "sick", "reply": "you see a little of this", "nan_at": 2},
               {"when": "long", "reply": "word " * 60}, {"reply": "all is well"}]
    script = write_script(tmp_path_factory.mktemp("script"), replies, context_length=WINDOW, step_ms=10)
    return start_pair(module_launch, script)


@pytest.fixture(autouse=True)
def after(pair):
    yield from unharmed(pair)


def test_a_connection_that_will_close_says_so_first(pair):  # row 69
    parts = urllib.parse.urlsplit(pair.url)
    for head, closes in ((b"", False), (b"Connection: close\r\n", True), (b"Connection: keep-alive\r\n", False)):
        with socket.create_connection((parts.hostname, parts.port), timeout=5) as sock:
            sock.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n")
            reply = sock.recv(65536)
            assert reply.startswith(b"HTTP/1.1 200")
            assert (b"connection: close" in reply.lower()) == closes
            sock.settimeout(0.5)
            if closes:
                assert sock.recv(10) == b""
            else:
                with pytest.raises(TimeoutError):
                    sock.recv(10)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_frozen_engine_shows_in_the_health_within_seconds(pair, role):  # row 75
    (worker,) = pair.roles[role]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        worker.signal(signal.SIGSTOP)
        try:
            waiting = [pool.submit(chat, pair.url, f"{role} {i} " + "word " * 200, max_tokens=8, timeout=60) for i in range(3)]
            wait_until(lambda: request(pair.url, "GET", "/health").status == 503, 8, "health says so")
            refused = [reply.result(30) for reply in waiting]  # never silence
            if role == "decode":  # without prefill, a decode worker still answers what is short
                refused.append(chat(pair.url, "late " * 100, max_tokens=8))
            for reply in refused:
                if role == "prefill" and reply.status == 200:  # decode went on alone
                    continue
                expect_error(reply, 503)
                assert reply.headers["Retry-After"]
        finally:
            worker.signal(signal.SIGCONT)
            wait_until(lambda: request(pair.url, "GET", "/ready").status == 200, 10, "well again")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["sick at once", "sick"])
def test_logits_that_are_no_numbers_fail_one_request_only(pair, kind, stream):  # row 79
    def counted():
        return sum(process.metrics()["tandem_non_finite_outputs_total"] for process in pair.workers)

    before = counted()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        others = [pool.submit(chat, pair.url, "long", temperature=0) for _ in range(3)]
        time.sleep(0.1)
        reply = chat(pair.url, kind, stream=stream)
        if stream and reply.status == 200:
            got = events(reply.body)
            assert got[-1] == "[DONE]" and got[-2]["error"]["message"]
            assert "!!" not in text_of(got[:-2])
        else:
            expect_error(reply, 500, code="non_finite_logits")
            assert reply.headers["x-should-retry"] == "false"
        for other in others:
            answered = other.result(30).json()["choices"][0]
            assert answered["finish_reason"] == "stop" and answered["message"]["content"] == "word " * 60
    assert counted() == before + 1
