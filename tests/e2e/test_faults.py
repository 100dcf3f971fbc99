"""Workers that die or freeze: the client gets the whole answer or a proper error, never another user's text."""

import concurrent.futures
import signal
import time

import pytest

from servers import Stream, chat, events, text_of, wait_until

pytestmark = pytest.mark.quick

LONG = "tell me everything " * 20


def fact_request(i, length=30):
    """A prompt with a fact of its own, which the scripted reply repeats from the KV pages."""
    return {"messages": [{"role": "user", "content": f"{'padding ' * length}remember fact-{i:04d}x please"}], "max_tokens": 48,
            "temperature": 0}


def echo_script(write_script, tmp_path, **options):
    return write_script(tmp_path, [{"reply": "you said {echo:0} and nothing else at all"}], **options)


def expect_fact(i, reply):
    assert reply.status == 200, reply.body
    text = reply.json()["choices"][0]["message"]["content"]
    assert text == f"you said fact-{i:04d}x and nothing else at all", (i, text)


def ask(url, i, length=30, timeout=60):
    body = fact_request(i, length)
    return chat(url, body.pop("messages"), timeout=timeout, **body)


def test_a_decode_worker_killed_before_the_first_byte_is_replaced(cluster, write_script, tmp_path):
    pair = cluster(echo_script(write_script, tmp_path, row_ms=5), decode=2, worker_options=("--kv-memory", "64M"))
    for stream in (False, True):
        if stream:
            # The first loop has used one decode worker up: a fresh pair.
            pair = cluster(echo_script(write_script, tmp_path, row_ms=5), decode=2, worker_options=("--kv-memory", "64M"))
        with concurrent.futures.ThreadPoolExecutor() as pool:
            body = fact_request(1, 200)
            answer = pool.submit(chat, pair.url, body.pop("messages"), stream=stream, **body)
            victim = pair.chosen("decode")
            victim.kill()
            reply = answer.result(30)
        assert reply.status == 200, reply.body
        text = text_of(events(reply.body)) if stream else reply.json()["choices"][0]["message"]["content"]
        assert text == "you said fact-0001x and nothing else at all"
        pair.wait_settled()
        expect_fact(2, ask(pair.url, 2))


def test_a_decode_worker_killed_mid_stream_is_an_error_within_a_second(cluster, write_script, tmp_path):
    pair = cluster(write_script(tmp_path, [{"reply": "word " * 200}], step_ms=20), decode=2, worker_options=("--kv-memory", "64M"))
    stream = Stream(pair.url, {"messages": [{"role": "user", "content": "go"}], "max_tokens": 300})
    iterator = iter(stream)
    for _ in range(4):
        next(iterator)
    pair.chosen("decode").kill()
    killed = time.monotonic()
    rest = list(iterator)
    assert time.monotonic() - killed < 1
    assert rest[-1] == "[DONE]" and rest[-2]["error"]["message"]
    pair.wait_settled()
    assert chat(pair.url, "go", max_tokens=4).status == 200


def test_the_only_prefill_worker_killed_mid_transfer_is_an_error_within_a_second(cluster, write_script, tmp_path):
    pair = cluster(echo_script(write_script, tmp_path, row_ms=10), worker_options=("--kv-memory", "64M", "--prefill-chunk", "16"))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        answer = pool.submit(ask, pair.url, 1, 300)
        victim = pair.chosen("prefill")
        victim.kill()
        killed = time.monotonic()
        reply = answer.result(10)
        assert time.monotonic() - killed < 1
    assert reply.status >= 500 and reply.json()["error"]["message"]
    pair.wait_settled()


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("client_leaves", [True, False])
def test_a_frozen_worker_never_touches_pages_that_others_reuse(cluster, write_script, tmp_path, role, client_leaves):
    """Freeze a worker mid-transfer, abort, let others use the memory again, thaw it: every fact stays its owner's."""
    pair = cluster(echo_script(write_script, tmp_path, row_ms=4), prefill=2, decode=2,
                   worker_options=("--kv-memory", "4M", "--prefill-chunk", "16"))
    victims = [Stream(pair.url, fact_request(9000 + i, 200)) for i in range(3)]
    frozen = pair.chosen(role)
    frozen.signal(signal.SIGSTOP)
    if client_leaves:
        for victim in victims:
            victim.close()
    survivors = [p for p in pair.workers if p is not frozen]

    def storm(first):
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            for i, reply in enumerate(pool.map(lambda i: ask(pair.url, i, 40), range(first, first + 18)), first):
                if reply.status == 200:
                    expect_fact(i, reply)
                else:  # sent to the frozen worker before anyone knew
                    assert reply.status in (502, 503, 504), reply.body

    storm(100)
    frozen.signal(signal.SIGCONT)
    storm(200)
    for i, victim in enumerate(victims):
        if client_leaves:
            continue
        status = victim.open()
        got = list(victim)
        if status == 200 and got[-1] == "[DONE]" and not any(isinstance(e, dict) and "error" in e for e in got):
            assert text_of(got) == f"you said fact-{9000 + i:04d}x and nothing else at all"
        victim.close()
    wait_until(lambda: ask(pair.url, 300).status == 200, 15, "the fleet serves again")
    pair.wait_settled(seconds=30)
    assert all(p.alive() for p in survivors)
    for i in range(310, 330):
        expect_fact(i, ask(pair.url, i, 40))


def test_up_restarts_a_dead_worker(launch, write_script, tmp_path):
    import os

    from servers import children
    up = launch("up", "up", echo_script(write_script, tmp_path), "--port", "0", "--kv-memory", "64M").wait_ready()
    workers = children(up.pid)
    assert len(workers) == 2, workers
    decode = next(pid for pid, line in workers.items() if "decode" in line)
    os.kill(decode, signal.SIGKILL)
    wait_until(lambda: len(children(up.pid)) == 2 and decode not in children(up.pid), 10, "a new worker")
    wait_until(lambda: ask(up.url, 5).status == 200, 20, "it serves")
    expect_fact(6, ask(up.url, 6))
