"""Reports, section G: KV memory and transfers. Row 88 (ids that collide) is in src/kv/index/prefix_index_test.cc."""

import concurrent.futures
import random
import signal
import threading
import time

import pytest

from bugs import WINDOW, expect_error, start_pair, tokens_of, unharmed, words
from servers import SECRET, Cluster, Stream, chat, events, request, wait_until

pytestmark = pytest.mark.quick

SAID = "all is {echo:0} and nothing else at all"


@pytest.fixture(scope="module")
def pair(module_launch, write_script, tmp_path_factory):
    """Prefill takes 2 ms for each token, so that tests can act in the middle of a transfer."""
    script = write_script(tmp_path_factory.mktemp("script"), [{"reply": SAID}], context_length=WINDOW, row_ms=2)
    return start_pair(module_launch, script)


@pytest.fixture
def after(pair):
    yield from unharmed(pair)


def fact(number):
    return f"fact-{number:05d}x"


def ask(url, number, length=0, **fields):
    """A prompt like no other of about so many tokens, with a fact of its own."""
    padding = " ".join(f"{number}-{i}" for i in range(length // 4))
    return chat(url, f"{padding} remember {fact(number)} please", **{"max_tokens": 40, "temperature": 0, **fields})


def expect_fact(reply, number):
    assert reply.status == 200, reply.body
    choice = reply.json()["choices"][0]
    assert choice["message"]["content"] == SAID.replace("{echo:0}", fact(number)), (number, choice)


def open_handoffs(process):
    return process.metrics()["tandem_handoffs_open"]


def test_what_a_stop_string_left_in_the_cache_changes_no_later_answer(up):  # row 80
    opening = [{"role": "user", "content": "Count slowly from one to ten, in words, with a comma after each."}]

    def answer(messages, salt, **fields):
        reply = chat(up.url, messages, temperature=0, logprobs=True, cache_salt=salt, **fields)
        assert reply.status == 200, reply.body
        return reply.json()

    whole = answer(opening, "first", max_tokens=24)["choices"][0]["message"]["content"]
    stop = whole[len(whole) // 2:len(whole) // 2 + 3]  # in the middle of words as often as not
    for _ in range(3):
        stopped = answer(opening, "warm", max_tokens=24, stop=[stop])["choices"][0]
        assert stopped["finish_reason"] == "stop" and stopped["message"]["content"] == whole[:whole.index(stop)]
    for said in (stopped["message"]["content"], whole):
        target = opening + [{"role": "assistant", "content": said}, {"role": "user", "content": "And now backwards, please."}]
        cold, warm = (answer(target, salt, max_tokens=16) for salt in (f"cold {len(said)}", "warm"))
        assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        assert warm["choices"] == cold["choices"]  # text and logprobs, to the last digit
    assert answer(opening, "warm", max_tokens=24)["choices"][0]["message"]["content"] == whole


def test_a_full_cache_never_gives_one_conversation_anothers_blocks(cluster, write_script, tmp_path):  # row 86
    # 64 pages of 16 tokens on each side: two conversations at once push out several older ones.
    tight = cluster(write_script(tmp_path, [{"reply": SAID}]), worker_options=("--kv-memory", "128K"))
    for number in range(12):
        expect_fact(ask(tight.url, number, 150), number)
    evictions = {p.name: p.metrics()["tandem_kv_evictions_total"] for p in tight.workers}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for number in range(100, 124, 2):
            pairs = [number, number + 1]
            for i, reply in zip(pairs, pool.map(lambda i: ask(tight.url, i, 150), pairs)):
                expect_fact(reply, i)
                assert reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"] < 32, "only the template's words are shared"
        # Old ones and new ones together; what is said to come from the cache is theirs.
        again = [5, 121, 11, 122, 0, 123]
        for i, reply in zip(again, pool.map(lambda i: ask(tight.url, i, 150), again)):
            expect_fact(reply, i)
    assert all(p.metrics()["tandem_kv_evictions_total"] > evictions[p.name] for p in tight.workers)
    tight.wait_settled()


def test_a_prompt_over_the_limit_is_refused_and_decode_never_starts(pair, after):  # row 89
    (decode,) = pair.roles["decode"]
    (prefill,) = pair.roles["prefill"]
    before = decode.metrics()["tandem_handoffs_received_total"]
    for stream in (False, True):
        for length in (WINDOW + 40, 4 * WINDOW):
            reply = chat(pair.url, words(length, pair.url) + fact(1), stream=stream, max_tokens=8)
            expect_error(reply, 400, code="context_length_exceeded")
    # The same from the workers themselves, should a router ask them nevertheless.
    ids = (tokens_of(pair.url, " word") * (WINDOW + 40))[:WINDOW + 40]
    ticket = {"id": "ab" * 16, "attempt": 1, "prefill_address": "unix:/nowhere/none.sock"}
    for worker, leg in ((prefill, "prefill"), (decode, "decode")):
        body = {"model": "default", "prompt": "x", "max_tokens": 8, "tandem": {"leg": leg, "handoff": ticket, "prompt_token_ids": [ids]}}
        reply = request(worker.url, "POST", "/v1/completions", body, headers={"x-tandem-auth": SECRET})
        expect_error(reply, 400, code="context_length_exceeded")
    assert decode.metrics()["tandem_handoffs_received_total"] == before
    assert decode.pages_used() == 0 and open_handoffs(decode) == 0


def test_a_prompt_that_prefills_memory_cannot_hold_is_an_error_and_no_text(launch, write_script, tmp_path):  # row 89
    # The window allows it, prefill's memory does not: 32 pages of 16 tokens.
    script = write_script(tmp_path, [{"reply": SAID}])
    tight = Cluster(launch, script, worker_options=("--kv-memory", "64K"))
    (decode,) = tight.roles["decode"]
    for stream in (False, True):
        reply = ask(tight.url, 7, 900, stream=stream)
        assert reply.status >= 400 and reply.json()["error"]["message"], reply.body
        assert decode.metrics()["tandem_handoffs_received_total"] == 0
    tight.wait_settled(seconds=2)
    expect_fact(ask(tight.url, 8), 8)


def abandon(url, number, wait, length=300):
    """Asks, waits, leaves."""
    padding = " ".join(f"{number}-{i}" for i in range(length // 4))
    stream = Stream(url, {"messages": [{"role": "user", "content": f"{padding} remember {fact(number)} please"}], "max_tokens": 40})
    time.sleep(wait)
    stream.close()


def test_requests_cancelled_in_prefill_free_decode_within_a_second(pair, after):  # row 91
    def seconds_for(first):
        begin = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for i, reply in enumerate(pool.map(lambda i: ask(pair.url, first + i, 60), range(6))):
                expect_fact(reply, first + i)
        return time.monotonic() - begin

    (decode,) = pair.roles["decode"]
    calm = seconds_for(1000)
    rng = random.Random(91)
    done = threading.Event()

    def client(seed):
        number = 2000 + 100 * seed
        while not done.is_set():
            number += 1
            if number % 2:
                abandon(pair.url, number, 0.05 + 0.2 * rng.random())
            else:
                reply = ask(pair.url, number, 60)
                if reply.status == 200:
                    expect_fact(reply, number)
                else:
                    assert reply.status in (429, 503), reply.body

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        clients = [pool.submit(client, seed) for seed in range(8)]
        time.sleep(2)
        done.set()
        for each in clients:
            each.result(30)
    wait_until(lambda: open_handoffs(decode) == 0 and decode.pages_used() == 0, 1, lambda: f"{open_handoffs(decode)} handoffs open")
    after_storm = seconds_for(3000)
    assert after_storm < 2 * calm + 0.5, (calm, after_storm)


@pytest.mark.parametrize("stream", [False, True])
def test_a_transfer_that_breaks_is_an_error_and_not_a_finish(cluster, write_script, tmp_path, stream):  # row 92
    broken = cluster(write_script(tmp_path, [{"reply": SAID}], row_ms=5), worker_options=("--kv-memory", "64M", "--prefill-chunk", "16"))
    (decode,) = broken.roles["decode"]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        answer = pool.submit(ask, broken.url, 1, 300, stream=stream)
        wait_until(lambda: decode.metrics()["tandem_kv_pages_used"] > 0, 10, "memory granted to the transfer")
        broken.chosen("prefill").kill()
        reply = answer.result(20)
    assert b"finish_reason\":\"" not in reply.body and b"fact-" not in reply.body, reply.body
    if reply.status == 200:
        got = events(reply.body)
        assert stream and got[-1] == "[DONE]" and got[-2]["error"]["message"]
    else:
        expect_error(reply, 503)
        assert reply.headers["Retry-After"]
    wait_until(lambda: decode.pages_used() == 0, 2, "decode's pages are free")


def test_200_clients_that_leave_after_50_ms_keep_no_blocks(pair, after):  # row 93
    for process in pair.workers:
        assert process.pages_used() == 0
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda i: abandon(pair.url, 5000 + i, 0.05), range(200)))
    wait_until(lambda: all(p.pages_used() == 0 and open_handoffs(p) == 0 for p in pair.workers), 5,
               lambda: {p.name: (p.pages_used(), open_handoffs(p)) for p in pair.workers})
    expect_fact(ask(pair.url, 9), 9)


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
def test_a_prefill_worker_that_restarts_is_met_anew(cluster, write_script, tmp_path, how):  # row 95
    pair = cluster(write_script(tmp_path, [{"reply": SAID}]), worker_options=("--kv-memory", "64M"))
    (decode,) = pair.roles["decode"]
    expect_fact(ask(pair.url, 1, 100), 1)
    numbers = iter(range(2, 1000))
    for _ in range(2):
        (prefill,) = pair.roles["prefill"]
        prefill.signal(getattr(signal, how))
        prefill.process.wait(10)
        pair.restart(prefill)
        before = decode.metrics()["tandem_handoffs_received_total"]

        def met(before=before):
            for number in (1, next(numbers)):
                reply = ask(pair.url, number, 400)
                if reply.status == 503:  # the router has not asked the new process yet where it hands over
                    expect_error(reply, 503)
                    assert reply.headers["Retry-After"]
                    time.sleep(0.2)
                    return False
                expect_fact(reply, number)
            return decode.metrics()["tandem_handoffs_received_total"] > before

        wait_until(met, 20, "a handoff from the new process")
        assert decode.alive()
    pair.wait_settled()
