"""Workers that die or freeze: the client gets the whole answer or a proper error, never another user's text."""

import concurrent.futures
import signal
import time

import pytest

from servers import Stream, chat, events, text_of, wait_until

quick = pytest.mark.quick


def fact_request(i, length=30):
    """A prompt like no other, with a fact of its own, which the scripted reply repeats from the KV pages."""
    padding = " ".join(f"{i}-{k}" for k in range(length // 4))
    return {"messages": [{"role": "user", "content": f"{padding} remember fact-{i:04d}x please"}], "max_tokens": 48,
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


@quick
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


@quick
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


@quick
def test_the_only_prefill_worker_killed_mid_transfer_is_an_error_within_a_second(cluster, write_script, tmp_path):
    pair = cluster(echo_script(write_script, tmp_path, row_ms=10), worker_options=("--kv-memory", "64M", "--prefill-chunk", "16"))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        answer = pool.submit(ask, pair.url, 1, 300)
        (decode,) = pair.roles["decode"]
        wait_until(lambda: decode.pages_used(), 10, "memory granted to the transfer")
        pair.chosen("prefill").kill()
        killed = time.monotonic()
        reply = answer.result(10)
        assert time.monotonic() - killed < 1
    assert reply.status >= 500 and reply.json()["error"]["message"]
    pair.wait_settled()


def open_handoffs(process):
    return process.metrics()["tandem_handoffs_open"]


# Where in the transfer the freezes fall, in seconds after both sides have met.
ONCE, OFTEN = (0.1,), (0, 0.05, 0.1, 0.2, 0.3, 0.5)


@pytest.mark.parametrize("client_leaves, role, moments", [
    pytest.param(True, "prefill", ONCE, marks=quick, id="the-client-leaves-prefill"),
    pytest.param(False, "decode", ONCE, marks=quick, id="the-client-stays-decode"),
    *[pytest.param(leaves, role, OFTEN, marks=pytest.mark.full, id=f"often-{leaves}-{role}")
      for leaves in (True, False) for role in ("prefill", "decode")]])
def test_a_frozen_worker_never_touches_pages_that_others_reuse(cluster, write_script, tmp_path, role, client_leaves, moments):
    """Freeze a worker mid-transfer, abort, let others use the memory again, thaw it: every fact stays its owner's."""
    # 64 pages of 16 tokens on each worker: every storm below goes through all of them.
    pair = cluster(echo_script(write_script, tmp_path, row_ms=2), prefill=2, decode=2,
                   worker_options=("--kv-memory", "128K", "--prefill-chunk", "16"))
    numbers = iter(range(1000, 9000))

    def storm():
        batch = [next(numbers) for _ in range(10)]
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            for i, reply in zip(batch, pool.map(lambda i: ask(pair.url, i, 120), batch)):
                if reply.status == 200:
                    expect_fact(i, reply)
                else:  # sent to the frozen worker before anyone knew
                    assert reply.status in (502, 503, 504), reply.body

    for moment in moments:
        ids = [next(numbers) for _ in range(3)]
        victims = [Stream(pair.url, fact_request(i, 200)) for i in ids]
        # Both sides know each other and memory is granted.
        wait_until(lambda: any(open_handoffs(p) and p.pages_used() for p in pair.roles["decode"]), 10, "a handoff")
        frozen = pair.chosen(role)
        time.sleep(moment)
        frozen.signal(signal.SIGSTOP)
        if client_leaves:
            for victim in victims:
                victim.close()
        storm()
        frozen.signal(signal.SIGCONT)
        storm()
        for i, victim in zip(ids, victims):
            if client_leaves:
                continue
            status = victim.open()
            got = list(victim)
            if status == 200 and not any(isinstance(e, dict) and "error" in e for e in got):
                assert got[-1] == "[DONE]" and text_of(got) == f"you said fact-{i:04d}x and nothing else at all"
            victim.close()
        wait_until(lambda: ask(pair.url, next(numbers)).status == 200, 15, "the fleet serves again")
        pair.wait_settled(seconds=30)
    assert sum(p.metrics()["tandem_kv_evictions_total"] for p in pair.workers) > 0, "no page was ever used again"
    assert all(p.alive() for p in pair.workers)
    for _ in range(10):
        i = next(numbers)
        expect_fact(i, ask(pair.url, i, 120))


@quick
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
