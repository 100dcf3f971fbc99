"""Conversations whose answers are known beforehand, and something that kills and freezes the processes that give them."""

import http.client
import random
import signal
import threading
import time

from servers import Stream, request, wait_until

REFUSED = (429, 500, 502, 503, 504)
LONGEST_FREEZE = 2.5
PATIENCE = 60  # of one request


class Conversation:
    """One client with one conversation at a time. `next_turn(rng)` gives (messages, the answer's text)."""

    def __init__(self, chaos, number, next_turn, **fields):
        self.chaos, self.number, self.next_turn, self.fields = chaos, number, next_turn, fields
        self.rng = random.Random(f"{chaos.seed}/{number}")
        self.answered = self.refused = self.left = self.broken = self.cut = 0

    def run(self):
        while not self.chaos.over.is_set():
            self.turn(*self.next_turn(self.rng))
            if self.rng.randrange(4) == 0:
                time.sleep(self.rng.random() * 0.2)

    def turn(self, messages, expected):
        """Whatever happens, what is said is the beginning of what must be said; and it ends."""
        rng, begin, text = self.rng, time.monotonic(), ""
        leave_after = rng.randrange(20) if rng.randrange(5) < 2 else None
        routers = self.chaos.router_lives
        stream = None
        try:
            stream = Stream(self.chaos.cluster.url, {"messages": messages, "temperature": 0, **self.fields}, timeout=PATIENCE)
            if leave_after == 0:
                time.sleep(rng.random() * 0.1)
                self.left += 1
                return
            status = stream.open()
            if status != 200:
                assert status in REFUSED, (status, stream.reply.read())
                self.refused += 1
                time.sleep(0.05 + 0.1 * rng.random())  # as Retry-After asks, in this test's time
                return
            ended = False
            for count, event in enumerate(stream, 1):
                if event == "[DONE]":
                    ended = True
                    break
                if "error" in event:
                    text = None
                    continue
                assert text is not None, "text after an error"
                for choice in event["choices"]:
                    text += choice["delta"].get("content") or ""
                assert expected.startswith(text), f"conversation {self.number} read {text!r} instead of {expected!r}"
                if leave_after and count >= leave_after:
                    self.left += 1
                    return
            if not ended:
                raise http.client.IncompleteRead(b"")
            if text is None:
                self.broken += 1
            else:
                assert text == expected, f"conversation {self.number} read {text!r} instead of {expected!r}"
                self.answered += 1
        except (ConnectionError, http.client.HTTPException) as failure:
            # Only a router's own death may cut a connection.
            assert routers != self.chaos.router_lives or self.chaos.router_away, repr(failure)
            self.cut += 1
            time.sleep(0.1)
        finally:
            assert time.monotonic() - begin < PATIENCE, f"conversation {self.number} waited for {time.monotonic() - begin} s"
            if stream is not None:
                stream.close()


class Chaos:
    """Kills and freezes workers and the router of `cluster` at moments and in an order that `seed` chooses."""

    def __init__(self, cluster, seed):
        self.cluster, self.seed = cluster, seed
        self.over = threading.Event()
        self.router_lives = 0
        self.router_away = False  # from its death until it listens again
        self.kills, self.freezes = {}, {}

    def run(self, seconds):
        rng = random.Random(self.seed)
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.over.is_set():
            time.sleep(0.3 + rng.random())
            role = rng.choice(("prefill", "decode", "prefill", "decode", "router"))
            process = self.cluster.router if role == "router" else rng.choice(self.cluster.roles[role])
            if rng.randrange(3) == 0:
                self.kills[role] = self.kills.get(role, 0) + 1
                self.router_lives += role == "router"
                self.router_away = role == "router"
                process.kill()
                time.sleep(rng.random() * 0.5)
                self.cluster.restart(process)
                self.router_lives += role == "router"
                self.router_away = False
            else:
                self.freezes[role] = self.freezes.get(role, 0) + 1
                process.signal(signal.SIGSTOP)
                time.sleep(rng.choice((0.05, 0.5, LONGEST_FREEZE)) * rng.random())
                process.signal(signal.SIGCONT)
        self.over.set()


def storm(cluster, conversations, chaos, seconds):
    """All at once for so long, then calm. Raises what any of them found."""
    failures = []

    def guarded(work, *arguments):
        try:
            work(*arguments)
        except BaseException as failure:  # handed to the main thread
            failures.append(failure)
            chaos.over.set()

    threads = [threading.Thread(target=guarded, args=(each.run,)) for each in conversations]
    threads.append(threading.Thread(target=guarded, args=(chaos.run, seconds)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 2 * PATIENCE)
    assert not any(thread.is_alive() for thread in threads), "a request never ended"
    if failures:
        raise failures[0]
    total = {what: sum(getattr(each, what) for each in conversations) for what in ("answered", "refused", "left", "broken", "cut")}
    print(f"{total}, killed {chaos.kills}, frozen {chaos.freezes}")
    assert all(process.alive() for process in [*cluster.workers, cluster.router])
    wait_until(lambda: request(cluster.url, "GET", "/ready").status == 200, 15, "ready after the storm")
    cluster.wait_settled(seconds=15)
    wait_until(lambda: all(process.metrics()["tandem_handoffs_open"] == 0 for process in cluster.workers), 15, "no handoff is open")
    return total
