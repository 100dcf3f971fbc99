"""What the router makes of KV events: of a publisher that we did not write, of the mocks' and of our own workers'. A
prompt goes where its beginning is, whoever brought it there."""

import itertools
import json
import os
import pathlib
import random
import signal
import tempfile

import pytest

from kv_events import BLOCK, COUNTER, VllmPublisher, complete, counts, engines, fresh_tokens, goes_to, known, router
from mocks import SLOW
from servers import SECRET, children, free_port, metrics, request, wait_until

pytestmark = pytest.mark.quick
AUTH = {"x-tandem-auth": SECRET}
STORED = "tandem_router_kv_stored_total"


@pytest.mark.parametrize("maps,hashes", [(True, "int"), (False, "bytes")])
def test_the_router_follows_a_publisher_of_vllms(binary, tmp_path, maps, hashes):
    publishers = [VllmPublisher(maps, hashes) for _ in range(2)]
    try:
        with engines(binary, tmp_path, "--dialect", "openai", "--unified", 2) as pair:
            feeds = [f"{engine.url}={publisher.source}" for engine, publisher in zip(pair, publishers)]
            with router(binary, tmp_path, "--connector", "plain", "--worker", *[e.url for e in pair], "--kv-events", *feeds) as front:
                url = front.url
                for home in (0, 1, 1, 0, 1, 0):
                    publisher, stored = publishers[home], known(url, STORED)
                    text = fresh_tokens(40)
                    first = next(COUNTER) * 1000 + (1 << 63)
                    publisher.publish([publisher.stored(text[:20 * BLOCK], first)])
                    publisher.publish([publisher.stored(text[20 * BLOCK:], first + 20, parent=first + 19)])
                    wait_until(lambda: known(url, STORED) == stored + 40, 10 * SLOW, lambda: front.log())
                    assert goes_to(url, pair, text + fresh_tokens(1)) == home
                # A lost message is asked for.
                publisher, stored = publishers[1], known(url, STORED)
                text, first = fresh_tokens(40), next(COUNTER) * 1000
                publisher.publish([publisher.stored(text[:20 * BLOCK], first)], lost=True)
                publisher.publish([publisher.stored(text[20 * BLOCK:], first + 20, parent=first + 19)])
                wait_until(lambda: known(url, STORED) == stored + 40, 10 * SLOW, lambda: front.log())
                assert metrics(url)["tandem_router_kv_gaps_total"] >= 1
                assert metrics(url)["tandem_router_kv_replayed_total"] >= 1
                assert goes_to(url, pair, text + fresh_tokens(1)) == 1
                # What follows nothing known is left out and counted; removals and clears are followed.
                orphans = known(url, "tandem_router_kv_unknown_parents_total")
                publisher.publish([publisher.stored(fresh_tokens(2), 1, parent=999)])
                wait_until(lambda: known(url, "tandem_router_kv_unknown_parents_total") == orphans + 2, 10 * SLOW, "orphans")
                publisher.publish([publisher.removed([first + i for i in range(40)])])
                wait_until(lambda: known(url, "tandem_router_kv_removed_total") == 40, 10 * SLOW, "removals")
                publishers[0].publish([publishers[0].cleared()])
                publisher.publish([publisher.cleared()])
                # What the router expects of its own requests goes by itself.
                wait_until(lambda: known(url) == 0, 15 * SLOW, "clears")
    finally:
        for publisher in publishers:
            publisher.end()


def test_a_restarted_publisher_counts_from_zero_and_what_it_told_is_void(binary, tmp_path):
    publisher = VllmPublisher()
    try:
        with engines(binary, tmp_path, "--dialect", "openai", "--unified", 2) as pair:
            feed = f"{pair[1].url}={publisher.source}"
            with router(binary, tmp_path, "--connector", "plain", "--worker", *[e.url for e in pair], "--kv-events", feed) as front:
                old = fresh_tokens(30)
                publisher.publish([publisher.stored(old, 100)])
                wait_until(lambda: known(front.url) == 30, 10 * SLOW, lambda: front.log())
                publisher.end()
                publisher = VllmPublisher(ports=publisher.ports)
                new = fresh_tokens(12)
                publisher.publish([publisher.stored(new, 100)])
                wait_until(lambda: known(front.url) == 12, 15 * SLOW, lambda: str(known(front.url)) + front.log())
                assert metrics(front.url)["tandem_router_kv_resets_total"] >= 1
                assert goes_to(front.url, pair, new + fresh_tokens(1)) == 1
    finally:
        publisher.end()


def test_ranks_and_topics_are_told_apart(binary, tmp_path):
    publisher = VllmPublisher()
    try:
        with engines(binary, tmp_path, "--dialect", "openai", "--unified", 2) as pair:
            feed = f"{pair[1].url}={publisher.source}"
            with router(binary, tmp_path, "--connector", "plain", "--worker", *[e.url for e in pair], "--kv-events", feed) as front:
                text = fresh_tokens(10)
                for rank in (0, 1):
                    publisher.publish([publisher.stored(text, 50)], rank=rank)
                wait_until(lambda: known(front.url) == 20, 10 * SLOW, lambda: front.log())
                publisher.publish([publisher.removed(list(range(50, 60)))], rank=0)
                wait_until(lambda: known(front.url) == 10, 10 * SLOW, lambda: front.log())
                assert known(front.url, "tandem_router_prefix_blocks") == 10
                assert goes_to(front.url, pair, text + fresh_tokens(1)) == 1
    finally:
        publisher.end()


def asked_rank(engine, before):
    """The one rank that was asked since its counts were `before`."""
    moved = [rank for rank, (old, new) in enumerate(zip(before, engine.state()["ranks"])) if new != old]
    assert len(moved) == 1, moved
    return moved[0]


@pytest.mark.parametrize("dialect", ["sglang", "vllm-nixl"])
def test_of_data_parallel_ranks_the_one_that_holds_the_prompt_is_asked(binary, tmp_path, dialect):
    """SGLang's servers tell how many ranks they have and where each publishes; of vLLM's the operator says it."""
    options = ["--dialect", dialect, "--unified", 2, "--dp-size", 3, "--kv-events", "tcp://127.0.0.1:0"]
    with engines(binary, tmp_path, *options) as pair:
        fleet = tmp_path / "fleet.json"
        told = {"dp_size": 3} if dialect == "vllm-nixl" else {}
        fleet.write_text(json.dumps({"workers": [
            {"url": e.url, "connector": dialect, **told, **({"kv_events": e.events} if told else {})} for e in pair]}))
        with router(binary, tmp_path, "--workers-file", fleet) as front:
            wait_until(lambda: known(front.url, "tandem_router_kv_feeds") == 6, 10 * SLOW, lambda: front.log())
            for home, rank in ((0, 2), (1, 0), (1, 1), (0, 0), (1, 2), (0, 1)):
                text = fresh_tokens(40)
                stored = known(front.url, STORED)
                body = {"model": "mock-model", "prompt": text, "max_tokens": 1}
                fields, headers = ({"routed_dp_rank": rank}, {}) if dialect == "sglang" else ({}, {"X-data-parallel-rank": str(rank)})
                assert request(pair[home].url, "POST", "/v1/completions", {**body, **fields}, headers=headers).status == 200
                wait_until(lambda: known(front.url, STORED) >= stored + 40, 10 * SLOW, lambda: front.log())
                before = pair[home].state()["ranks"]
                complete(front.url, text + fresh_tokens(1))
                assert asked_rank(pair[home], before) == rank, (home, rank)


@pytest.mark.parametrize("connector", ["sglang", "vllm-nixl", "vllm-nixl-push"])
def test_a_conversation_stays_with_one_rank_of_its_prefill_and_many_use_them_all(binary, tmp_path, connector):
    """Without events too: the router knows what it gave to whom."""
    with engines(binary, tmp_path, "--dialect", connector, "--prefill", 1, "--decode", 1, "--dp-size", 3, "--prefill-rate", 0, "--step", 0, "--lease", "1s") as pair:
        fleet = tmp_path / "fleet.json"
        fleet.write_text(json.dumps({"workers": [{"url": e.url, "role": e.role, "connector": connector, "dp_size": 3} for e in pair]}))
        with router(binary, tmp_path, "--workers-file", fleet) as front:
            wait_until(lambda: request(front.url, "GET", "/ready").status == 200, 10 * SLOW, lambda: front.log())
            used = []
            for session in range(24):
                text, ranks = f"session {session}: " + "once upon a time " * 600, set()
                for _ in range(2):
                    body = {"model": "mock-model", "prompt": text, "max_tokens": 1}
                    headers = {"x-session-affinity": str(session)}
                    before = pair[0].state()["ranks"]
                    reply = request(front.url, "POST", "/v1/completions", body, headers=headers)
                    assert reply.status == 200, reply.body
                    ranks.add(asked_rank(pair[0], before))
                    usage = reply.json()["usage"]
                    text += "and then " * 60
                assert len(ranks) == 1
                assert usage["prompt_tokens_details"]["cached_tokens"] > 0.85 * usage["prompt_tokens"]
                used.append(ranks.pop())
            assert set(used) == {0, 1, 2}, used
            assert sum(pair[1].state()["ranks"]) == 48
            # (A push's prefill was asked who it is, for nobody.)
            wait_until(lambda: not any(e.state()["rooms"]["open"] + e.state()["rooms"]["waiting"] for e in pair), 10 * SLOW, "rooms")


@pytest.mark.parametrize("dialect,connector", [("vllm-nixl", "plain"), ("sglang", "sglang"), ("tandem", "tandem")])
def test_a_prompt_that_came_past_the_router_is_found(binary, tmp_path, dialect, connector):
    """vLLM's publishers are named to the router, SGLang's and Tandem's tell where they are."""
    with engines(binary, tmp_path, "--dialect", dialect, "--unified", 2, "--kv-events", "tcp://127.0.0.1:0") as pair:
        feeds = ["--kv-events", *[f"{e.url}={e.events}" for e in pair]] if dialect == "vllm-nixl" else []
        with router(binary, tmp_path, "--connector", connector, "--worker", *[e.url for e in pair], *feeds) as front:
            wait_until(lambda: known(front.url, "tandem_router_kv_feeds") == 2, 10 * SLOW, lambda: front.log())
            for home in (0, 1, 0, 1, 1, 0):
                # (Tandem's router tokenizes: ids beyond its mocks' vocabulary are refused.)
                text = fresh_tokens(40) if dialect != "tandem" else random.Random(next(COUNTER)).choices(range(256), k=40 * BLOCK)
                stored = known(front.url, STORED)
                complete(pair[home].url, text)
                wait_until(lambda: known(front.url, STORED) >= stored + 40, 10 * SLOW, lambda: front.log())
                assert goes_to(front.url, pair, text + text[:5]) == home
            # A restarted engine has nothing, and nothing is expected of it.
            restarted = next(COUNTER) % 2
            request(pair[restarted].url, "POST", "/mock/restart", {})
            complete(pair[1 - restarted].url, text)
            wait_until(lambda: known(front.url, "tandem_router_kv_resets_total") >= 1, 15 * SLOW, lambda: front.log())


def test_a_conversations_text_is_tokenized_once_and_its_ids_go_to_the_worker(binary, tmp_path):
    with engines(binary, tmp_path, "--dialect", "tandem", "--unified", 1, "--record", 4) as (engine,):
        with router(binary, tmp_path, "--worker", engine.url) as front:
            def cache(name):
                return metrics(front.url)[f"tandem_router_tokenizer_cache_{name}"]

            talk = [{"role": "system", "content": "rules " * 400}, {"role": "user", "content": "a question " * 100}]
            sent = []
            for turn in range(3):
                hits, misses = cache("hit_bytes_total"), cache("miss_bytes_total")
                text = sum(len(message["content"]) for message in talk if len(message["content"]) >= 128)  # shorter ones are not kept
                body = {"model": "mock-model", "messages": talk, "max_tokens": 4}
                reply = request(front.url, "POST", "/v1/chat/completions", body)
                assert reply.status == 200, reply.body
                fresh = len(talk[-1]["content"]) if turn else text
                assert cache("hit_bytes_total") - hits >= text - fresh
                assert cache("miss_bytes_total") - misses <= fresh + 200
                told = request(front.url, "POST", "/tokenize", {"model": "mock-model", "messages": talk}).json()["tokens"]
                sent.append(json.loads(engine.requests()[-1]["body"])["tandem"]["prompt_token_ids"])
                assert sent[-1] == told
                talk += [reply.json()["choices"][0]["message"], {"role": "user", "content": f"and {turn} more " * 50}]
            shared = sum(1 for _ in itertools.takewhile(lambda both: both[0] == both[1], zip(sent[0], sent[1])))
            assert shared > 2000  # what came before is the same ids again
            assert 0 < cache("bytes") < 1 << 20


def test_text_is_looked_up_by_its_tokens_when_the_router_has_the_tokenizer(binary, tmp_path):
    with engines(binary, tmp_path, "--dialect", "tandem", "--unified", 1) as (donor,):
        spec = tmp_path / "tokenizer.json"
        spec.write_bytes(request(donor.url, "GET", "/tandem/v1/tokenizer").body)
    with engines(binary, tmp_path, "--dialect", "sglang", "--unified", 2, "--kv-events", "tcp://127.0.0.1:0", "--byte-tokens") as pair:
        with router(binary, tmp_path, "--connector", "sglang", "--worker", *[e.url for e in pair], "--tokenizer", spec) as front:
            wait_until(lambda: known(front.url, "tandem_router_kv_feeds") == 2, 10 * SLOW, lambda: front.log())
            for home in (0, 1, 1, 0, 0, 1):
                talk = [{"role": "user", "content": f"conversation {next(COUNTER)} " + "about nothing in particular " * 30}]
                stored = known(front.url, STORED)
                body = {"model": "mock-model", "messages": talk, "max_tokens": 1}
                assert request(pair[home].url, "POST", "/v1/chat/completions", body).status == 200
                wait_until(lambda: known(front.url, STORED) >= stored + 40, 10 * SLOW, lambda: front.log())
                talk += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "go on"}]
                before = counts(pair)
                assert request(front.url, "POST", "/v1/chat/completions", body).status == 200
                after = counts(pair)
                assert after[home] == before[home] + 1, (home, before, after)


def test_a_conversation_begun_on_a_worker_of_ours_goes_on_there_until_it_restarts(launch, write_script, tmp_path):
    script = write_script(tmp_path, [{"reply": "And so they sailed on."}])
    ports = [free_port() for _ in range(2)]

    def start(index):
        return launch(f"worker{index}", "worker", script, "--port", str(ports[index]), "--kv-memory", "64M", "--kv-events", "tcp://127.0.0.1:0",
                      env={"TANDEM_SECRET": SECRET})

    workers = [start(i) for i in range(2)]
    for worker in workers:
        worker.wait_ready()
    front = launch("router", "router", "--port", "0", "--worker", *[w.url for w in workers], env={"TANDEM_SECRET": SECRET})
    front.wait_ready()
    wait_until(lambda: known(front.url, "tandem_router_kv_feeds") == 2, 10 * SLOW, lambda: front.log())

    for home in (0, 1, 1, 0):
        talk = [{"role": "user", "content": f"Story number {next(COUNTER)}: " + "the ship went on over the sea. " * 30}]
        stored = known(front.url, STORED)
        body = {"model": "default", "messages": talk, "max_tokens": 8, "temperature": 0}
        first = request(workers[home].url, "POST", "/v1/chat/completions", body, headers=AUTH).json()
        wait_until(lambda: known(front.url, STORED) > stored + 10, 10 * SLOW, lambda: front.log())
        talk += [first["choices"][0]["message"], {"role": "user", "content": "And then?"}]
        second = request(front.url, "POST", "/v1/chat/completions", body).json()
        cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached > 0.8 * first["usage"]["prompt_tokens"], (home, second["usage"])
    # The process dies and another one comes: nothing of its is known, the other's is.
    workers[1].signal(signal.SIGKILL)
    workers[1].process.wait(10)
    workers[1] = start(1)
    workers[1].wait_ready()
    one = metrics(workers[0].url, AUTH)["tandem_kv_events_stored_blocks"] - metrics(workers[0].url, AUTH)["tandem_kv_events_removed_blocks"]
    wait_until(lambda: known(front.url) <= one + 1, 20 * SLOW, lambda: f"{known(front.url)} {one}\n{front.log()}")


def test_up_knows_what_its_workers_hold_and_forgets_it_when_one_is_started_again(launch, write_script, tmp_path):
    script = write_script(tmp_path, [{"reply": "And so they sailed on."}])
    up = launch("up", "up", script, "--unified", "2", "--port", "0", "--kv-memory", "64M").wait_ready()
    wait_until(lambda: known(up.url, "tandem_router_kv_feeds") == 2, 10 * SLOW, lambda: up.log())
    talks = []
    for number in range(4):
        talk = [{"role": "user", "content": f"Story number {number}: " + "the ship went on over the sea. " * 30}]
        stored = known(up.url, STORED)
        first = request(up.url, "POST", "/v1/chat/completions", {"model": "default", "messages": talk, "max_tokens": 8, "temperature": 0}).json()
        wait_until(lambda: known(up.url, STORED) > stored + 10, 10 * SLOW, lambda: up.log())
        talks.append([*talk, first["choices"][0]["message"], {"role": "user", "content": "And then?"}])
    assert len(list(pathlib.Path(tempfile.gettempdir()).glob("tandem-up-*/*.events"))) >= 2, "told where only this user can listen"

    def cached(talk):
        reply = request(up.url, "POST", "/v1/chat/completions", {"model": "default", "messages": talk, "max_tokens": 8, "temperature": 0}).json()
        return reply["usage"]["prompt_tokens_details"]["cached_tokens"] / reply["usage"]["prompt_tokens"]

    assert min(cached(talk) for talk in talks) > 0.8
    held = known(up.url)
    before = children(up.pid)
    for worker in before:
        os.kill(worker, signal.SIGKILL)
    wait_until(lambda: len(set(children(up.pid)) - set(before)) == 2 and request(up.url, "GET", "/ready").status == 200, 20 * SLOW, lambda: up.log())
    # What is known of the new processes is what they told: one look-up finds nothing, the next one what that request brought.
    wait_until(lambda: known(up.url, "tandem_router_kv_feeds") == 2 and known(up.url) == 0, 20 * SLOW, lambda: f"{held} {known(up.url)}\n{up.log()}")
    assert cached(talks[0]) == 0
    assert cached(talks[0]) > 0.8
