"""KV events for tests: a subscriber and a publisher as users of vLLM write them, mocks that publish, and prompts of
token ids that nobody had before."""

import contextlib
import itertools
import threading
import time

import msgpack
import zmq

from mocks import SLOW, Mocks
from servers import SECRET, Process, free_port, metrics, request

BLOCK = 16


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
