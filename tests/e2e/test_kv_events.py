"""KV events: what workers and mocks publish, read by a peer that we did not write; what the router makes of such a
peer's events, and of our own: a prompt goes where its beginning is, whoever brought it there."""

import contextlib
import itertools
import signal
import socket
import threading
import time

import msgpack
import pytest
import zmq

from mocks import SLOW, Mocks
from servers import SECRET, Process, metrics, request, wait_until

pytestmark = pytest.mark.quick
BLOCK = 16
AUTH = {"x-tandem-auth": SECRET}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Listener:
    """A subscriber as vLLM's users write it."""

    def __init__(self, endpoint):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.connect(endpoint)
        self.socket.subscribe(b"")
        self.socket.RCVTIMEO = 10000 * SLOW

    def next(self):
        topic, sequence, payload = self.socket.recv_multipart()
        return topic.decode(), int.from_bytes(sequence, "big"), msgpack.unpackb(payload)

    def events(self, kind, seconds=10):
        """Waits for a batch that has an event of that kind."""
        deadline = time.monotonic() + seconds * SLOW
        while time.monotonic() < deadline:
            _, _, batch = self.next()
            found = [e for e in batch[1] if (e["type"] if isinstance(e, dict) else e[0]) == kind]
            if found:
                return found
        raise AssertionError(f"no {kind}")

    def replay(self, endpoint, start):
        with self.context.socket(zmq.DEALER) as asking:
            asking.RCVTIMEO = 10000 * SLOW
            asking.connect(endpoint)
            asking.send_multipart([b"", start.to_bytes(8, "big")])
            out = []
            while True:
                _, sequence, payload = asking.recv_multipart()
                number = int.from_bytes(sequence, "big", signed=True)
                if number == -1:
                    return out
                out.append((number, msgpack.unpackb(payload)))

    def close(self):
        self.context.destroy(linger=0)


class VllmPublisher:
    """vLLM's side: a PUB socket, a ROUTER that repeats, 64-bit hashes of its own."""

    def __init__(self, maps=True, hashes="int", topic="kv@pod@m", ports=None, ring=1000):
        self.maps, self.hash_form, self.topic, self.ring = maps, hashes, topic, ring
        self.context = zmq.Context()
        self.ports = ports or (free_port(), free_port())
        self.publisher = self.context.socket(zmq.PUB)
        self.replayer = self.context.socket(zmq.ROUTER)
        for made, port in zip((self.publisher, self.replayer), self.ports):
            made.setsockopt(zmq.LINGER, 0)
            made.bind(f"tcp://127.0.0.1:{port}")
        self.next, self.buffer, self.lock, self.stopped = 0, [], threading.Lock(), False
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    @property
    def source(self):
        return f"tcp://127.0.0.1:{self.ports[0]},tcp://127.0.0.1:{self.ports[1]}"

    def _serve(self):
        while not self.stopped:
            with contextlib.suppress(zmq.ZMQError):
                if not self.replayer.poll(50):
                    continue
                who, delimiter, start = self.replayer.recv_multipart()
                with self.lock:
                    for sequence, payload in self.buffer:
                        if sequence >= int.from_bytes(start, "big"):
                            self.replayer.send_multipart([who, delimiter, sequence.to_bytes(8, "big"), payload])
                    self.replayer.send_multipart([who, delimiter, (-1).to_bytes(8, "big", signed=True), b""])

    def name(self, number):
        return number.to_bytes(32, "big") if self.hash_form == "bytes" else number

    def publish(self, events, rank=None, lost=False, topic=None):
        batch = [time.time(), events] + ([rank] if rank is not None else [])
        payload = msgpack.packb(batch)
        with self.lock:
            if not lost:
                self.publisher.send_multipart([(topic or self.topic).encode(), self.next.to_bytes(8, "big"), payload])
            self.buffer = (self.buffer + [(self.next, payload)])[-self.ring:]
            self.next += 1

    def stored(self, tokens, first_hash, parent=None, medium="GPU"):
        hashes = [self.name(first_hash + i) for i in range(len(tokens) // BLOCK)]
        parent = None if parent is None else self.name(parent)
        if not self.maps:
            return ["BlockStored", hashes, parent, tokens, BLOCK, None, medium, None]
        return {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens, "block_size": BLOCK,
                "lora_id": None, "medium": medium, "lora_name": None, "group_idx": 0, "kv_cache_spec_kind": "full_attention", "new_field": 1}

    def removed(self, hashes, medium="GPU"):
        hashes = [self.name(h) for h in hashes]
        return {"type": "BlockRemoved", "block_hashes": hashes, "medium": medium} if self.maps else ["BlockRemoved", hashes, medium]

    def cleared(self):
        return {"type": "AllBlocksCleared"} if self.maps else ["AllBlocksCleared"]

    def end(self):
        self.stopped = True
        self.thread.join(5)
        self.context.destroy(linger=0)


@contextlib.contextmanager
def engines(binary, directory, *arguments):
    """The mocks, and by URL where each publishes."""
    made = Mocks(binary, directory / "mocks.log", *arguments)
    try:
        yield made.all
    finally:
        made.end()


@contextlib.contextmanager
def router(binary, directory, *arguments):
    process = Process(binary, ["router", "--port", "0", *arguments], directory / "router.log", env={"TANDEM_SECRET": SECRET})
    try:
        yield process.wait_ready()
    finally:
        process.end()


COUNTER = itertools.count(1)


def fresh_tokens(blocks):
    start = next(COUNTER) * 10000
    return list(range(start, start + blocks * BLOCK))


def counts(all_engines):
    return [engine.state()["requests"] for engine in all_engines]


def complete(url, tokens, model="mock-model"):
    reply = request(url, "POST", "/v1/completions", {"model": model, "prompt": tokens, "max_tokens": 1})
    assert reply.status == 200, reply.body
    return reply.json()


def goes_to(url, all_engines, tokens):
    """Which engine a prompt goes to."""
    before = counts(all_engines)
    complete(url, tokens)
    after = counts(all_engines)
    moved = [i for i in range(len(after)) if after[i] != before[i]]
    assert len(moved) == 1, (before, after)
    return moved[0]


def known(url, name="tandem_router_prefix_entries"):
    return metrics(url)[name]


def test_an_independent_subscriber_follows_a_worker(launch, model):
    port = free_port()
    worker = launch("worker", "worker", model, "--port", "0", "--kv-events", f"tcp://127.0.0.1:{port}",
                    "--kv-events-replay", "tcp://127.0.0.1:0")
    worker.wait_ready()
    told = request(worker.url, "GET", "/tandem/v1/info").json()["kv_events"]
    assert told["endpoint"] == f"tcp://127.0.0.1:{port}"
    listener = Listener(told["endpoint"])
    try:
        time.sleep(0.3)
        tokens = list(range(1000, 1000 + 5 * BLOCK))
        complete(worker.url, tokens, "default")
        stored = []
        while len(stored) < 5:
            for event in listener.events("BlockStored"):
                assert event["block_size"] == BLOCK and event["medium"] == "GPU"
                for i, name in enumerate(event["block_hashes"]):
                    parent = event["parent_block_hash"] if i == 0 else event["block_hashes"][i - 1]
                    stored.append((name, parent, event["token_ids"][i * BLOCK:(i + 1) * BLOCK]))
        assert [tokens_of for _, _, tokens_of in stored[:5]] == [tokens[i:i + BLOCK] for i in range(0, 5 * BLOCK, BLOCK)]
        assert all(len(name) == 32 for name, _, _ in stored)
        assert [parent for _, parent, _ in stored] == [None] + [name for name, _, _ in stored[:-1]]
        # From the beginning, for one that comes late; the first message says that nothing is here.
        past = listener.replay(told["replay_endpoint"], 0)
        assert [number for number, _ in past] == list(range(len(past)))
        assert past[0][1][1] == [{"type": "AllBlocksCleared"}]
        assert listener.replay(told["replay_endpoint"], len(past)) == []
        request(worker.url, "POST", "/tandem/v1/kv/drop", {})
        removed = [name for event in listener.events("BlockRemoved") for name in event["block_hashes"]]
        assert set(removed) <= {name for name, _, _ in stored}
    finally:
        listener.close()


@pytest.mark.parametrize("dialect,arrays", [("vllm-nixl", False), ("vllm-nixl", True), ("sglang", False), ("sglang", True)])
def test_an_independent_subscriber_follows_the_mocks(binary, tmp_path, dialect, arrays):
    form = ["--kv-event-arrays"] if arrays else []
    with engines(binary, tmp_path, "--dialect", dialect, "--unified", 1, "--kv-events", "tcp://127.0.0.1:0", *form) as (engine,):
        listener = Listener(engine.events.split(",")[0])
        try:
            time.sleep(0.3)
            tokens = fresh_tokens(3)
            complete(engine.url, tokens)
            seen = []
            while len(seen) < 3 * BLOCK:
                for event in listener.events("BlockStored"):
                    fields = event if isinstance(event, dict) else dict(zip(
                        ("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"), event))
                    assert isinstance(event, list if arrays else dict)
                    assert all(isinstance(name, int) for name in fields["block_hashes"])
                    seen += fields["token_ids"]
            assert seen == tokens
        finally:
            listener.close()


@pytest.mark.parametrize("maps,hashes", [(True, "int"), (True, "bytes"), (False, "int"), (False, "bytes")])
def test_the_router_follows_a_publisher_of_vllms(binary, tmp_path, maps, hashes):
    publishers = [VllmPublisher(maps, hashes) for _ in range(2)]
    try:
        with engines(binary, tmp_path, "--dialect", "openai", "--unified", 2) as pair:
            feeds = [f"{engine.url}={publisher.source}" for engine, publisher in zip(pair, publishers)]
            with router(binary, tmp_path, "--connector", "plain", "--worker", *[e.url for e in pair], "--kv-events", *feeds) as front:
                url = front.url
                for home in (0, 1, 1, 0, 1, 0):
                    publisher, entries = publishers[home], known(url)
                    text = fresh_tokens(40)
                    first = next(COUNTER) * 1000 + (1 << 63)
                    publisher.publish([publisher.stored(text[:20 * BLOCK], first)])
                    publisher.publish([publisher.stored(text[20 * BLOCK:], first + 20, parent=first + 19)])
                    wait_until(lambda: known(url) >= entries + 40, 10 * SLOW, lambda: front.log())
                    assert goes_to(url, pair, text + fresh_tokens(1)) == home
                # A lost message is asked for.
                publisher, entries = publishers[1], known(url)
                text, first = fresh_tokens(40), next(COUNTER) * 1000
                publisher.publish([publisher.stored(text[:20 * BLOCK], first)], lost=True)
                publisher.publish([publisher.stored(text[20 * BLOCK:], first + 20, parent=first + 19)])
                wait_until(lambda: known(url) >= entries + 40, 10 * SLOW, lambda: front.log())
                assert metrics(url)["tandem_router_kv_gaps"] >= 1
                assert metrics(url)["tandem_router_kv_replayed"] >= 1
                assert goes_to(url, pair, text + fresh_tokens(1)) == 1
                # What follows nothing known is left out and counted; removals and clears are followed.
                orphans = known(url, "tandem_router_kv_unknown_parents")
                publisher.publish([publisher.stored(fresh_tokens(2), 1, parent=999)])
                wait_until(lambda: known(url, "tandem_router_kv_unknown_parents") == orphans + 2, 10 * SLOW, "orphans")
                entries = known(url)
                publisher.publish([publisher.removed([first + i for i in range(40)])])
                wait_until(lambda: known(url) <= entries - 40, 10 * SLOW, "removals")
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
                assert metrics(front.url)["tandem_router_kv_resets"] >= 1
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


@pytest.mark.parametrize("dialect,connector", [("vllm-nixl", "plain"), ("sglang", "sglang"), ("tandem", "tandem")])
def test_a_prompt_that_came_past_the_router_is_found(binary, tmp_path, dialect, connector):
    """vLLM's publishers are named to the router, SGLang's and Tandem's tell where they are."""
    with engines(binary, tmp_path, "--dialect", dialect, "--unified", 2, "--kv-events", "tcp://127.0.0.1:0") as pair:
        feeds = ["--kv-events", *[f"{e.url}={e.events}" for e in pair]] if dialect == "vllm-nixl" else []
        with router(binary, tmp_path, "--connector", connector, "--worker", *[e.url for e in pair], *feeds) as front:
            wait_until(lambda: known(front.url, "tandem_router_kv_feeds") == 2, 10 * SLOW, lambda: front.log())
            for home in (0, 1, 0, 1, 1, 0):
                # (Tandem's router tokenizes: ids beyond its mocks' vocabulary are refused.)
                text = fresh_tokens(40) if dialect != "tandem" else [(7 * next(COUNTER) + i * i) % 256 for i in range(40 * BLOCK)]
                entries = known(front.url)
                complete(pair[home].url, text)
                wait_until(lambda: known(front.url) >= entries + 40, 10 * SLOW, lambda: front.log())
                assert goes_to(front.url, pair, text + text[:5]) == home
            # A restarted engine has nothing, and nothing is expected of it.
            restarted = next(COUNTER) % 2
            request(pair[restarted].url, "POST", "/mock/restart", {})
            complete(pair[1 - restarted].url, text)
            wait_until(lambda: known(front.url, "tandem_router_kv_resets") >= 1, 15 * SLOW, lambda: front.log())


def test_text_is_looked_up_by_its_tokens_when_the_router_has_the_tokenizer(binary, tmp_path):
    with engines(binary, tmp_path / "", "--dialect", "tandem", "--unified", 1) as (donor,):
        spec = tmp_path / "tokenizer.json"
        spec.write_bytes(request(donor.url, "GET", "/tandem/v1/tokenizer").body)
    with engines(binary, tmp_path, "--dialect", "sglang", "--unified", 2, "--kv-events", "tcp://127.0.0.1:0", "--byte-tokens") as pair:
        with router(binary, tmp_path, "--connector", "sglang", "--worker", *[e.url for e in pair], "--tokenizer", spec) as front:
            wait_until(lambda: known(front.url, "tandem_router_kv_feeds") == 2, 10 * SLOW, lambda: front.log())
            for home in (0, 1, 1, 0, 0, 1):
                talk = [{"role": "user", "content": f"conversation {next(COUNTER)} " + "about nothing in particular " * 30}]
                entries = known(front.url)
                body = {"model": "mock-model", "messages": talk, "max_tokens": 1}
                assert request(pair[home].url, "POST", "/v1/chat/completions", body).status == 200
                wait_until(lambda: known(front.url) >= entries + 40, 10 * SLOW, lambda: front.log())
                talk += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "go on"}]
                before = counts(pair)
                assert request(front.url, "POST", "/v1/chat/completions", body).status == 200
                after = counts(pair)
                assert after[home] == before[home] + 1, (home, before, after)


def test_a_conversation_begun_on_a_real_worker_goes_on_there_until_it_restarts(launch, model):
    ports = [free_port() for _ in range(2)]

    def start(index):
        return launch(f"worker{index}", "worker", model, "--port", str(ports[index]), "--kv-events", "tcp://127.0.0.1:0",
                      env={"TANDEM_SECRET": SECRET})

    workers = [start(i) for i in range(2)]
    for worker in workers:
        worker.wait_ready()
    front = launch("router", "router", "--port", "0", "--worker", *[w.url for w in workers], env={"TANDEM_SECRET": SECRET})
    front.wait_ready()
    wait_until(lambda: known(front.url, "tandem_router_kv_feeds") == 2, 10 * SLOW, lambda: front.log())

    for home in (0, 1, 1, 0):
        talk = [{"role": "user", "content": f"Story number {next(COUNTER)}: " + "the ship went on over the sea. " * 30}]
        entries = known(front.url)
        body = {"model": "default", "messages": talk, "max_tokens": 8, "temperature": 0}
        first = request(workers[home].url, "POST", "/v1/chat/completions", body, headers=AUTH).json()
        wait_until(lambda: known(front.url) > entries + 10, 10 * SLOW, lambda: front.log())
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
