"""What a client sees of vLLM's pair through our router is what the decode server says alone."""

import concurrent.futures
import json
import os
import random
import time

from servers import Stream, request, wait_until

TOPICS = ("the sea", "a lighthouse", "prime numbers", "an old map", "tea", "winter", "a small robot", "bridges", "honey", "the moon")
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
REQUESTS = int(os.environ.get("TANDEM_PEERS_REQUESTS", "200"))  # fewer where the machine has other work
PATIENCE = 300  # seconds: two servers share two cores here


def question(number):
    return f"Number {number}: write two sentences about {TOPICS[number % len(TOPICS)]}, please."


def body_of(number, path, **fields):
    prompt = {"messages": [{"role": "user", "content": question(number)}]} if path == CHAT else {"prompt": question(number)}
    return {"model": "m", "temperature": 0, "max_tokens": 16, **prompt, **fields}


def told(choice):
    return choice["message"]["content"] if "message" in choice else choice["text"]


def whole(url, path, body):
    reply = request(url, "POST", path, body, timeout=PATIENCE)
    assert reply.status == 200, reply.body
    return reply.json()


def streamed(url, path, body):
    """(text, finish reason, usage) of a stream, which must be well formed."""
    stream = Stream(url, {**body, "stream_options": {"include_usage": True}}, path, timeout=PATIENCE)
    assert stream.open() == 200
    text, reason, usage, done = "", None, None, False
    for event in stream:
        assert not done
        if event == "[DONE]":
            done = True
            continue
        assert "error" not in event and "kv_transfer_params" not in json.dumps(event), event
        if not event["choices"]:
            usage = event["usage"]
            continue
        assert event.get("usage") is None
        choice = event["choices"][0]
        text += (choice.get("delta") or {}).get("content") or choice.get("text") or ""
        reason = choice.get("finish_reason") or reason
    stream.close()
    assert done and usage and reason
    return text, reason, usage


def cached_of(usage):
    return (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


class Mixed:
    """Requests of nine kinds; each check compares with the decode server alone."""

    def __init__(self, pair):
        self.pair = pair
        self.kinds = [self.plain_whole, self.plain_stream, self.plain_whole, self.plain_stream, self.two_choices, self.with_logprobs,
                      self.with_stop, self.refused, self.left]

        self.rounded = []  # numbers of requests that the pair itself answers otherwise than its decode server alone

    def run(self, number):
        kind = self.kinds[number % len(self.kinds)]
        kind(number, CHAT if number // len(self.kinds) % 2 == 0 else TEXT)
        return kind.__name__

    def compare(self, number, path, **fields):
        body = body_of(number, path, **fields)
        ours, alone = whole(self.pair.url, path, body), whole(self.pair.decode.url, path, body)
        assert "kv_transfer_params" not in ours or ours["kv_transfer_params"] is None
        self.same(number, path, body, [(told(c), c["finish_reason"]) for c in ours["choices"]], alone)
        for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert ours["usage"][key] == alone["usage"][key], (key, ours["usage"], alone["usage"])
        return ours, alone

    def same(self, number, path, body, ours, alone):
        """As the decode server alone; where that one rounds otherwise (what else is in a batch changes the bits there), as the pair
        that is driven by hand, without our router; or the first other word was as likely as not."""
        def of(reply):
            return [(told(choice), choice["finish_reason"]) for choice in reply["choices"]]

        if ours == of(alone):
            return
        self.rounded.append(number)
        by_hand = self.pair.by_hand(path, body)
        near = ours == of(by_hand) or all(self.as_likely(path, body, text) for text, _ in ours)
        assert near, (body, ours, of(alone), of(by_hand))

    def as_likely(self, path, body, text):
        """Where the text leaves the decode server's own, what it says instead has nearly the best chance there."""
        asked = {"logprobs": True, "top_logprobs": 5} if path == CHAT else {"logprobs": 5}
        told_of = whole(self.pair.decode.url, path, {**body, **asked})["choices"][0]["logprobs"]
        if path == CHAT:
            steps = [(step["token"], {each["token"]: each["logprob"] for each in step["top_logprobs"]}) for step in told_of["content"]]
        else:
            steps = list(zip(told_of["tokens"], told_of["top_logprobs"]))
        same = ""
        for token, chances in steps:
            if text.startswith(same + token):
                same += token
                continue
            best = max(chances.values())
            return any(text.startswith(same + other) and best - chance < 0.3 for other, chance in chances.items())
        return text == same

    def plain_whole(self, number, path):
        self.compare(number, path)

    def plain_stream(self, number, path):
        body = body_of(number, path)
        text, reason, usage = streamed(self.pair.url, path, body)
        alone = whole(self.pair.decode.url, path, body)
        self.same(number, path, body, [(text, reason)], alone)
        assert usage["completion_tokens"] == alone["usage"]["completion_tokens"]
        assert usage["prompt_tokens"] == alone["usage"]["prompt_tokens"]

    def two_choices(self, number, path):
        # Greedy takes no n > 1 there, and with a temperature neither text is told beforehand.
        ours = whole(self.pair.url, path, body_of(number, path, n=2, temperature=0.7, seed=number))
        assert sorted(choice["index"] for choice in ours["choices"]) == [0, 1]
        assert path == TEXT or all(map(told, ours["choices"]))  # after a bare text the model may end at once
        alone = whole(self.pair.decode.url, path, body_of(number, path))
        assert ours["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]
        assert ours["usage"]["completion_tokens"] <= 32

    def with_logprobs(self, number, path):
        asked = {"logprobs": True, "top_logprobs": 2} if path == CHAT else {"logprobs": 2}
        ours, alone = self.compare(number, path, **asked)
        def values(reply):
            found = reply["choices"][0]["logprobs"]
            return [token["logprob"] for token in found["content"]] if path == CHAT else found["token_logprobs"]
        if number in self.rounded:
            return
        # What else is in a batch changes the bits there (bfloat16): most are the same, none is another token's.
        apart = sorted(abs(mine - theirs) for mine, theirs in zip(values(ours), values(alone), strict=True))
        assert apart and apart[len(apart) // 2] < 0.15 and apart[-1] < 0.5, apart

    def with_stop(self, number, path):
        ours, _ = self.compare(number, path, stop=[" ", "."], max_tokens=24)
        assert " " not in told(ours["choices"][0])

    def refused(self, number, path):
        wrong = [{"max_tokens": -1}, {"temperature": "hot"}, {"model": "nobody"},
                 {"prompt": "x " * 6000} if path == TEXT else {"messages": [{"role": "user", "content": "x " * 6000}]}][number // 18 % 4]
        reply = request(self.pair.url, "POST", path, {**body_of(number, path), **wrong}, timeout=60)
        assert 400 <= reply.status < 500, (wrong.keys(), reply.status, reply.body[:300])
        assert reply.json()["error"]["message"]

    def left(self, number, path):
        """A client that leaves: before an answer, or in the middle of one."""
        rng = random.Random(number)
        stream = Stream(self.pair.url, {**body_of(number, path, max_tokens=600), "ignore_eos": True}, path, timeout=60)
        if rng.randrange(2):
            assert stream.open() == 200
            for count, _ in enumerate(stream):
                if count > rng.randrange(4):
                    break
        else:
            time.sleep(rng.random() * 0.3)
        stream.close()


def test_mixed_requests_answer_as_the_decode_server_alone(pair):
    mixed = Mixed(pair)
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        kinds = list(pool.map(mixed.run, range(REQUESTS)))
    print(f"{pair.mode}: " + ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)) + f" in {time.monotonic() - began:.0f} s; "
          f"{len(mixed.rounded)} differ from the decode server alone: as the pair driven by hand, or by a word that was as likely")
    assert len(mixed.rounded) <= REQUESTS * 0.25
    pair.wait_idle()


def test_each_client_that_leaves_leaves_nothing_running(pair):
    """Long answers cut at many moments, one after the other: both servers are idle within seconds each time."""
    slowest = 0
    for number in range(12):
        stream = Stream(pair.url, {**body_of(1000 + number, CHAT, max_tokens=2000), "ignore_eos": True}, timeout=60)
        time.sleep(number * 0.04)
        if number >= 6:
            stream.open()
            next(iter(stream))
        stream.close()
        began = time.monotonic()
        pair.wait_idle(5)
        slowest = max(slowest, time.monotonic() - began)
    print(f"{pair.mode}: both idle {slowest:.2f} s after a client left, at most")


def test_cached_tokens_are_those_of_the_prefill_server(pair):
    """A conversation that grows: what usage says was cached is what prefill's own counter of hits says."""
    pair.wait_idle()
    history = [{"role": "user", "content": "Remember this list. " + " ".join(f"item {i}," for i in range(120))}]
    seen = []
    for turn in range(4):
        before = pair.prefill.metric("vllm:prefix_cache_hits_total")
        body = {"model": "m", "temperature": 0, "max_tokens": 12, "messages": history}
        if turn % 2:
            text, _, usage = streamed(pair.url, CHAT, body)
        else:
            reply = whole(pair.url, CHAT, body)
            text, usage = told(reply["choices"][0]), reply["usage"]
        hits = pair.prefill.metric("vllm:prefix_cache_hits_total") - before
        assert cached_of(usage) == hits, (turn, usage, hits)
        assert cached_of(usage) < usage["prompt_tokens"]
        seen.append((usage["prompt_tokens"], cached_of(usage)))
        history += [{"role": "assistant", "content": text}, {"role": "user", "content": f"And what else, for the {turn}th time? " + "Go on. " * 40}]
    assert seen[0][1] == 0 and all(cached > 0 for _, cached in seen[1:]), seen
    print(f"{pair.mode}: (prompt, cached) tokens of the turns: {seen}")


def answer(pair, number):
    try:
        return request(pair.url, "POST", CHAT, body_of(number, CHAT), timeout=60)
    except OSError as failure:
        return failure


def survives(pair, engine):
    """kill -9 while requests run; every one of them ends; after the restart all is as before."""
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        running = [pool.submit(answer, pair, 2000 + number) for number in range(3)]
        time.sleep(0.2)
        engine.kill()
        replies = [each.result(90) for each in running] + [answer(pair, 2100)]
    for reply in replies:
        assert not isinstance(reply, Exception), reply
        assert reply.status == 200 or (reply.status >= 500 and reply.json()["error"]["message"]), (reply.status, reply.body)
    print(f"{pair.mode}: {engine.role} killed: {[reply.status for reply in replies]}")
    engine.start()
    engine.wait_ready()
    wait_until(lambda: answer(pair, 2200).status == 200, 60, "an answer after the restart")
    for number in range(2201, 2207):
        reply = answer(pair, number)
        assert reply.status == 200, reply.body
        alone = whole(pair.decode.url, CHAT, body_of(number, CHAT))
        mine = reply.json()["choices"][0]
        Mixed(pair).same(number, CHAT, body_of(number, CHAT), [(told(mine), mine["finish_reason"])], alone)
    pair.wait_idle()


def test_a_killed_decode_server_comes_back(pair):
    survives(pair, pair.decode)


def test_a_killed_prefill_server_comes_back(pair):
    survives(pair, pair.prefill)
