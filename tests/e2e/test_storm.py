"""Many clients that come and go: nothing leaks."""

import concurrent.futures
import os
import random
import time

import pytest

from servers import Stream, chat, request, wait_until

CLIENTS = 64
# A sanitizer makes everything several times slower and keeps freed memory for a while; it looks for leaks itself, at exit.
SANITIZED = bool(os.environ.get("TANDEM_SANITIZED"))
SENTENCE = "you said {echo:0} " + " ".join(f"w{i}" for i in range(40))


def one_client(url, seed, until):
    """Requests until the time is over; about half are left at a random moment. Returns (answered, left)."""
    rng = random.Random(seed)
    answered = left = 0
    while time.monotonic() < until:
        fact = f"fact-{seed:03d}-{rng.randrange(10**6):06d}"
        body = {"messages": [{"role": "user", "content": f"{'x ' * rng.randrange(120)}note {fact} now"}], "max_tokens": 100, "temperature": 0}
        stream = Stream(url, body, timeout=120)
        leave_after = rng.randrange(60) if rng.randrange(2) else None
        text = ""
        try:
            if leave_after == 0:
                left += 1
                continue
            status = stream.open()
            if status == 429 or status == 503:
                continue
            assert status == 200, status
            for count, event in enumerate(stream, 1):
                if event == "[DONE]":
                    assert text.startswith(f"you said {fact} "), (fact, text)
                    answered += 1
                    break
                assert "error" not in event, event
                for choice in event["choices"]:
                    text += choice["delta"].get("content") or ""
                if leave_after and count >= leave_after:
                    left += 1
                    break
            assert f"you said {fact}".startswith(text[:len(f"you said {fact}")]), (fact, text)
        finally:
            stream.close()
    return answered, left


def storm(pair, seconds):
    for i in range(4):  # what grows once, grows before the first look
        assert chat(pair.url, f"note fact-{i} now", max_tokens=4).status == 200
    with concurrent.futures.ThreadPoolExecutor(CLIENTS + 1) as pool:
        def run(duration):
            until = time.monotonic() + duration
            done = list(pool.map(lambda seed: one_client(pair.url, seed, until), range(CLIENTS)))
            return [sum(column) for column in zip(*done)]

        run(min(3, seconds))
        processes = [*pair.workers, pair.router]
        pair.wait_settled(seconds=15)
        files = {p.name: p.open_files() for p in processes}
        memory = {p.name: p.private_bytes() for p in processes}
        answered, left = run(seconds)
    enough = CLIENTS // 4 if SANITIZED else CLIENTS
    assert answered > enough and left > enough, (answered, left)
    assert seconds < 60 or SANITIZED or left > 1000, (answered, left)
    pair.wait_settled(seconds=15)
    for process in processes:
        assert process.alive()
        # Pooled connections come and go with how many requests happened to overlap; a leak grows with every request.
        wait_until(lambda p=process: p.open_files() <= files[p.name] + 16, 15,
                   lambda p=process: f"{p.name}: {p.open_files()} files open, {files[p.name]} before")
        grown = process.private_bytes() - memory[process.name]
        print(f"{process.name}: {grown >> 10} KiB more, {process.open_files()} files open ({files[process.name]} before)")
        assert SANITIZED or grown < 24 << 20, f"{process.name} grew by {grown >> 20} MiB"
    assert request(pair.url, "GET", "/ready").status == 200
    return answered, left


@pytest.fixture
def pair(cluster, write_script, tmp_path):
    return cluster(write_script(tmp_path, [{"reply": SENTENCE}], step_ms=2), worker_options=("--kv-memory", "32M"))


@pytest.mark.quick
def test_64_clients_that_come_and_go_leak_nothing(pair):
    print(storm(pair, 6))


@pytest.mark.soak
def test_two_minutes_of_64_clients_leak_nothing(pair):
    print(storm(pair, 120))
