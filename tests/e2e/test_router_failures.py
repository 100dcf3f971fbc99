"""Each kind of backend when something goes wrong: who is told what, what dies with what, and that nothing is left.

Row numbers are those of the collection of public reports (the tests of Tandem's own workers are in test_bugs_*.py).
"""

import concurrent.futures
import http.client
import json
import signal
import socket
import time
import urllib.parse

import pytest

from mocks import KINDS, PAIRS, SLOW, Fleet, Truth, chat_body
from servers import Stream, events, metrics, request, text_of, wait_until

pytestmark = pytest.mark.quick
CHAT = "/v1/chat/completions"
TOGETHER = [name for name in PAIRS if KINDS[name].together]


@pytest.fixture(scope="module")
def truth(binary, tmp_path_factory):
    made = Truth(binary, tmp_path_factory.mktemp("truth"))
    yield made
    made.end()


@pytest.fixture(scope="module", params=list(KINDS))
def fleet(request, binary, tmp_path_factory):
    made = Fleet(binary, tmp_path_factory.mktemp("failures"), request.param,
                 mock_options=("--step", "3ms", "--prefill-rate", 4000, "--record", 16, "--lease", "1s"),
                 router_options=("--health-interval", "100ms"))
    yield made
    made.end()


@pytest.fixture(autouse=True)
def unharmed(fleet, truth):
    """After every test: no faults, nothing left, everybody healthy, an ordinary answer."""
    yield
    fleet.mocks.faults()
    fleet.settle()
    wait_until(lambda: request(fleet.url, "GET", "/health").status == 200, 15, lambda: fleet.router.log())
    body = chat_body("an ordinary request")

    def answered():
        reply = request(fleet.url, "POST", CHAT, body)
        return reply.status == 200 and reply.json()["choices"][0]["message"]["content"] == truth.text(body)

    wait_until(answered, 15, lambda: fleet.router.log())
    assert fleet.router.alive()


def pairs_only(fleet):
    if not fleet.kind.pair:
        pytest.skip("of pairs")


def ask(fleet, prompt, fault=None, timeout=30, **fields):
    return request(fleet.url, "POST", CHAT, chat_body(prompt, **fields), {"x-mock-fault": fault} if fault else None, timeout)


def error_of(reply):
    error = reply.json()["error"]
    assert error["message"], reply.body
    return error


def test_a_refusal_is_handed_on_word_for_word(fleet):
    """4xx of either leg, with the other leg cut at once (row 89: decode never goes on alone)."""
    roles = ("prefill", "decode") if fleet.kind.pair else ("unified",)
    for role in roles:
        began = time.monotonic()
        reply = ask(fleet, f"{role} refuses", f"{role}:status=422")
        assert reply.status == 422 and error_of(reply)["code"] == "mock_fault", reply.body
        assert time.monotonic() - began < 1.5 * SLOW
        fleet.settle(1.5)


def test_another_worker_is_asked_when_one_fails_before_its_first_byte(fleet, truth):
    """A failure or a death that a healthy worker can make good is not seen by the client."""
    for role in ("prefill", "decode") if fleet.kind.pair else ("unified",):
        for fault in ("status=503#1", "status=500#1", "refuse#1"):
            for stream in (False, True):
                fleet.mocks.of(role)[0].faults(fault)
                fleet.mocks.of(role)[1].faults()
                for i in range(2):
                    body = chat_body(f"{role} {fault} {stream} {i}", stream=stream)
                    reply = request(fleet.url, "POST", CHAT, body)
                    assert reply.status == 200, (role, fault, stream, reply.body, fleet.router.log())
                    text = text_of(events(reply.body)) if stream else reply.json()["choices"][0]["message"]["content"]
                    assert text == truth.text(chat_body(f"{role} {fault} {stream} {i}")), (role, fault)


def test_each_attempt_has_new_ids(fleet):
    pairs_only(fleet)
    for engine in fleet.prefill:
        engine.faults("status=500#1")
    for i in range(3):
        assert ask(fleet, f"attempt {i}").status in (200, 502, 503)
    seen = []
    for engine in fleet.prefill:
        for each in engine.requests():
            if '"attempt ' in each["body"]:
                body = json.loads(each["body"])
                handoff = {"sglang": lambda b=body: b["bootstrap_room"], "vllm-mooncake": lambda b=body: b["kv_transfer_params"]["transfer_id"],
                           "trtllm": lambda b=body: b["disaggregated_params"]["disagg_request_id"]}
                of = handoff.get(fleet.kind.dialect, lambda e=each: e["headers"]["x-request-id"])
                seen.append(of())
    assert len(seen) > 3 and len(set(seen)) == len(seen), seen


def cut_at_once(fleet, fault, failing, freed, since):
    """From the last failure of one role to the last cut of a leg of the other; all engines are in one process with one clock."""
    failed = max(engine.state()["last_fault_ns"] for engine in getattr(fleet, failing))
    cut = max(engine.state()["last_disconnect_ns"] for engine in getattr(fleet, freed))
    assert failed > since
    # The answer leg's connection may have come after the failure; then there was nothing to cut.
    print(f"{fleet.kind.connector} {fault}: {freed} cut after {(cut - failed) / 1e6:.2f} ms" if cut > since else "nothing to cut")
    assert cut - failed < 50e6 * SLOW, (cut - failed) / 1e6


def test_a_dead_prefill_frees_decode_at_once(fleet):
    """Row 91 and the issue's 50 ms: decode hangs on a partner that will never come, until the router cuts it."""
    if not (fleet.kind.pair and fleet.kind.together):
        pytest.skip("of legs that are sent together")
    for fault in ("prefill:status=400", "prefill:refuse", "prefill:status=500"):
        began = time.monotonic()
        since = time.monotonic_ns()
        reply = ask(fleet, f"{fault} here", fault)
        assert reply.status >= 400, reply.body
        assert error_of(reply)
        assert time.monotonic() - began < 2 * SLOW
        wait_until(lambda: all(e.state()["running"] == 0 for e in fleet.decode), 0.25 * SLOW, lambda: fleet.mocks.leaks())
        cut_at_once(fleet, fault, "prefill", "decode", since)


def test_a_dead_decode_frees_prefill_at_once(fleet):
    """The other way round: prefill has a second of work before it when decode refuses or dies."""
    if not (fleet.kind.pair and fleet.kind.together):
        pytest.skip("of legs that are sent together")
    for fault in ("decode:status=400", "decode:refuse"):
        since = time.monotonic_ns()
        reply = ask(fleet, f"{fault} here " + "long " * int(3200 * SLOW), fault)
        assert reply.status >= 400 and error_of(reply), reply.body
        wait_until(lambda: all(e.state()["running"] == 0 for e in fleet.prefill), 0.5 * SLOW, lambda: fleet.mocks.leaks())
        cut_at_once(fleet, fault, "decode", "prefill", since)


def test_a_client_that_leaves_aborts_by_the_routers_own_id(fleet):
    """SGLang's engines compare ids by prefix: one that the client chose could end others' requests too, and only its connection is closed."""
    if fleet.kind.connector != "sglang":
        pytest.skip("of engines with an abort call")

    def left(marker, **fields):
        client = Stream(fleet.url, chat_body(marker, max_tokens=4000, **fields))
        client.open()
        next(iter(client))
        client.close()

    def rids(target, marker=""):
        return [json.loads(each["body"])["rid"] for engine in fleet.decode for each in engine.requests()
                if each["target"] == target and marker in each["body"]]

    before = set(rids("/abort_request"))  # of other tests
    left("by the client's id", rid="a")
    left("by the router's id")
    wait_until(lambda: set(rids("/abort_request")) - before, 2 * SLOW, lambda: fleet.router.log())
    fleet.settle(2)
    (minted,) = rids(CHAT, "by the router's id")
    assert set(rids("/abort_request")) - before == {minted} and len(minted) == 32
    assert rids(CHAT, "by the client's id") == ["a"]


def test_an_aborted_transfer_is_an_error_not_a_short_answer(fleet):
    """Row 92."""
    pairs_only(fleet)
    fleet.mocks.faults("abort-transfer", roles=("prefill",))
    for stream in (False, True):
        reply = ask(fleet, "aborted", stream=stream)
        assert reply.status >= 500 and error_of(reply), reply.body


def test_a_decode_that_dies_mid_stream_ends_in_an_error_frame(fleet, truth):
    """Rows 51 and 53: never a short answer that looks whole."""
    role = "decode" if fleet.kind.pair else "unified"
    body = chat_body("dies in the middle")
    for fault in ("die-mid-stream", "truncate", "error-frame"):
        reply = request(fleet.url, "POST", CHAT, {**body, "stream": True}, {"x-mock-fault": f"{role}:{fault}"})
        got = events(reply.body)
        text = text_of(got)
        assert reply.status == 200 and text and truth.text(body).startswith(text) and text != truth.text(body), (fault, reply.body)
        errors = [event["error"] for event in got if isinstance(event, dict) and "error" in event]
        assert len(errors) == 1 and errors[0]["message"], (fault, reply.body)
        assert got[-1] == "[DONE]"
        assert reply.body.endswith(b"\n\n")
    whole = ask(fleet, "dies in the middle of a whole answer", f"{role}:die-mid-stream")
    assert whole.status in (502, 503) and error_of(whole)


def test_an_answer_that_its_engine_gave_up_is_an_error(fleet):
    """Row 53: vLLM, SGLang and TensorRT-LLM say so in the finish reason alone, with status 200."""
    role = "decode" if fleet.kind.pair else "unified"
    body = chat_body("given up")
    for path, asked in ((CHAT, body), ("/v1/completions", {"model": body["model"], "prompt": "given up", "max_tokens": 8})):
        reply = request(fleet.url, "POST", path, {**asked, "stream": True}, {"x-mock-fault": f"{role}:abort"})
        got = events(reply.body)
        errors = [event["error"] for event in got if isinstance(event, dict) and "error" in event]
        assert len(errors) == 1 and "abort" in errors[0]["message"], reply.body
        assert b'"finish_reason":"' not in reply.body.replace(b" ", b"") and got[-1] == "[DONE]"
        whole = request(fleet.url, "POST", path, asked, {"x-mock-fault": f"{role}:abort"})
        assert whole.status in (502, 503) and error_of(whole), whole.body


def test_a_prefill_whose_answer_stalls_delays_nobody(fleet, truth):
    """The first decode byte, and the last, do not wait for prefill's HTTP answer."""
    if fleet.kind.connector != "sglang":
        pytest.skip("of engines whose prefill answer is not needed")
    body = chat_body("prefill's answer stalls", stream=True, stream_options={"include_usage": True})
    stream = Stream(fleet.url, body, headers={"x-mock-fault": "prefill:stall-mid-stream"})
    began = time.monotonic()
    assert stream.open() == 200
    got, first = [], None
    for event in stream:
        if first is None and isinstance(event, dict) and event["choices"]:
            first = time.monotonic() - began
        got.append(event)
    stream.close()
    assert text_of(got) == truth.text(chat_body("prefill's answer stalls"))
    assert got[-1] == "[DONE]" and first < 0.5 * SLOW
    assert time.monotonic() - began < 4 * SLOW


def test_usage_is_the_truth_of_both_legs(fleet):
    """Prompt and cached tokens are prefill's, the answer's are decode's; zero when nothing was cached, whatever decode thinks."""
    prompt = f"{fleet.kind.connector} " + "every word of this is cached the second time " * 12
    for turn in range(2):
        for api in (CHAT, "/v1/completions"):
            for stream in (False, True):
                fields = {"prompt": prompt + api} if api != CHAT else {"messages": [{"role": "user", "content": prompt + api}]}
                body = {"model": "mock-model", "max_tokens": 6, **fields}
                if stream:
                    body.update(stream=True, stream_options={"include_usage": True})
                reply = request(fleet.url, "POST", api, body)
                assert reply.status == 200, reply.body
                if stream:
                    told = [event["usage"] for event in events(reply.body) if isinstance(event, dict) and event.get("usage")]
                    assert len(told) == 1, reply.body
                    last = [event for event in events(reply.body) if isinstance(event, dict)][-1]
                    assert last["choices"] == [] and last["usage"] == told[0]  # row 50
                    usage = told[0]
                else:
                    usage = reply.json()["usage"]
                cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
                assert usage["completion_tokens"] == 6 and usage["total_tokens"] == usage["prompt_tokens"] + 6, usage
                assert cached < usage["prompt_tokens"] and cached % 16 == 0, (turn, api, stream, usage)
                if turn == 0 and not stream:
                    assert cached == 0, (api, usage)
                elif turn == 1 and len(fleet.mocks.of("prefill", "unified")) == 1:
                    assert cached > 0, (api, usage)
                assert b"kv_transfer_params" not in reply.body and b"disaggregated_params" not in reply.body


def test_usage_of_other_apis_is_the_truth_too(fleet):
    """Responses and Messages, whole and streamed, in whichever event the count stands; `/generate` of SGLang's."""
    prompt = f"{fleet.kind.connector} " + "cached when it comes a second time " * 16

    def documents(reply, stream):
        assert reply.status == 200, reply.body
        lines = reply.body.decode().splitlines() if stream else [f"data: {reply.body.decode()}"]
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]

    def told(path, stream):
        if path == "/generate":
            reply = request(fleet.url, "POST", path, {"text": prompt, "stream": stream, "sampling_params": {"max_new_tokens": 6}})
            metas = [each["meta_info"] for each in documents(reply, stream)]
            return [(meta["prompt_tokens"], meta["cached_tokens"], meta["completion_tokens"]) for meta in metas]
        limit, content = ("max_output_tokens", {"input": prompt}) if path == "/v1/responses" else \
            ("max_tokens", {"messages": [{"role": "user", "content": prompt}]})
        reply = request(fleet.url, "POST", path, {"model": "mock-model", limit: 6, "stream": stream, **content})
        every = documents(reply, stream)
        found = [each[key]["usage"] for each in every for key in ("response", "message") if (each.get(key) or {}).get("usage")]
        found += [each["usage"] for each in every if each.get("usage")]
        assert found, reply.body
        return [(usage.get("input_tokens"), (usage.get("input_tokens_details") or {}).get("cached_tokens", usage.get("cache_read_input_tokens")),
                 usage.get("output_tokens")) for usage in found]

    for path in ("/v1/responses", "/v1/messages", *(["/generate"] if fleet.kind.dialect == "sglang" else [])):
        for stream in (False, True):
            first, again = told(path, stream), told(path, stream)
            for count in (first, again):
                counted = [each[0] for each in count if each[0] is not None]
                assert len(set(counted)) == 1 and counted[0] > 100, (path, stream, count)
                assert all((each[1] or 0) < counted[0] for each in count), (path, stream, count)
                assert count[-1][2] == 6, (path, stream, count)


def test_who_asked_for_no_usage_gets_none(fleet):
    got = events(ask(fleet, "no usage, please", stream=True).body)
    assert got[-1] == "[DONE]" and not any(event.get("usage") for event in got[:-1]) and all(event["choices"] for event in got[:-1])


def test_streams_survive_any_splitting(binary, tmp_path, fleet, truth):
    """Frames that arrive in pieces of one byte, of seven and of random sizes."""
    if fleet.kind.connector not in ("sglang", "vllm-nixl", "plain"):
        pytest.skip("how bytes are relayed does not depend on the handoff")
    for piece in (1, 7, -1):
        other = Fleet(binary, tmp_path, fleet.kind.connector, 1, 1, ("--step", "1ms", "--piece", piece), name=f"piece{piece}")
        try:
            for i in range(4):
                body = chat_body(f"piece {piece} of {i}")
                reply = request(other.url, "POST", CHAT, {**body, "stream": True, "stream_options": {"include_usage": True}})
                assert text_of(events(reply.body)) == truth.text(body)
                assert reply.body.endswith(b"data: [DONE]\n\n")
        finally:
            other.end()


def leave(fleet, after, stream=True, events_first=None, **fields):
    """A client that closes its connection `after` seconds, or after so many events."""
    client = Stream(fleet.url, {**chat_body(f"left after {after} {events_first} " + "word " * 200, max_tokens=60, **fields), "stream": stream})
    if events_first is None:
        time.sleep(after)
    else:
        client.open()
        for count, _ in enumerate(client):
            if count >= events_first:
                break
    client.close()


def test_clients_that_leave_at_every_moment_leave_nothing(fleet):
    """Rows 65, 66 and 93: with a stream and without, before prefill, in it, in the transfer, in decode."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(leave, fleet, i * 0.005, i % 2 == 0) for i in range(32)]
        jobs += [pool.submit(leave, fleet, 0, True, count) for count in range(8)]
        for job in jobs:
            job.result()
    fleet.settle(3)


def test_a_gone_client_frees_its_engines_within_a_step(fleet):
    """Row 65: within a second, by the engines' own count."""
    client = Stream(fleet.url, chat_body("gone soon", max_tokens=4000))
    client.open()
    next(iter(client))
    assert sum(engine.state()["running"] for engine in fleet.decode) == 1
    client.close()
    wait_until(lambda: sum(engine.state()["running"] for engine in fleet.mocks.all) == 0, 1 * SLOW, lambda: fleet.mocks.leaks())


def test_an_abort_storm_is_over_when_it_ends(fleet):
    """Row 91: half of the requests are cancelled during prefill; afterwards all is as fast as before."""
    def one(i):
        if i % 2:
            return leave(fleet, 0.01 + (i % 7) * 0.004, i % 4 == 1)
        reply = ask(fleet, f"calm in the storm {i}", max_tokens=4)
        assert reply.status == 200, reply.body
        return None

    began = time.monotonic()
    assert ask(fleet, "before the storm", max_tokens=4).status == 200
    usual = time.monotonic() - began
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        list(pool.map(one, range(72)))
    fleet.settle(2)
    began = time.monotonic()
    assert ask(fleet, "after the storm", max_tokens=4).status == 200
    assert time.monotonic() - began < usual + 0.5 * SLOW


def test_a_restarted_engine_is_met_anew(fleet, truth):
    """Row 95: engine ids that the router keeps are dropped when their engine is another."""
    for engine in fleet.mocks.all:
        engine.restart()
        for i in range(6):
            body = chat_body(f"after {engine.address} was restarted {i}")
            reply = request(fleet.url, "POST", CHAT, body)
            assert reply.status == 200, (engine, i, reply.body, fleet.router.log())
            assert reply.json()["choices"][0]["message"]["content"] == truth.text(body)
        if fleet.kind.connector in ("vllm-mooncake", "vllm-nixl-push"):
            time.sleep(0.3)  # the router looks at them each 100 ms; two that are strangers at once are too many for one request


def test_a_wrong_usage_breaks_nothing(fleet, truth):
    body = chat_body("usage that cannot be")
    role = "decode" if fleet.kind.pair else "unified"
    for stream in (False, True):
        reply = request(fleet.url, "POST", CHAT, {**body, "stream": stream, **({"stream_options": {"include_usage": True}} if stream else {})},
                        {"x-mock-fault": f"{role}:wrong-usage"})
        assert reply.status == 200
        text = text_of(events(reply.body)) if stream else reply.json()["choices"][0]["message"]["content"]
        assert text == truth.text(body)


def test_a_slow_reader_of_requests_holds_up_only_itself(fleet):
    """An engine that takes its time to read a large body: others go past it."""
    big = chat_body("read slowly", padding="x" * (1 << 20), max_tokens=2)
    role = "prefill" if fleet.kind.pair else "unified"
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        slow = pool.submit(request, fleet.url, "POST", CHAT, big, {"x-mock-fault": f"{role}:slow-read"}, 60)
        began = time.monotonic()
        for i in range(5):
            assert ask(fleet, f"past it {i}", max_tokens=2).status == 200
        assert time.monotonic() - began < 2 * SLOW
        assert slow.result().status == 200


def test_a_client_that_does_not_read_costs_a_bounded_buffer(fleet):
    """Answers that nobody reads stop at the engine, not in the router's memory."""
    if fleet.kind.connector != "plain":
        pytest.skip("the relay is the same for all")
    parts = urllib.parse.urlsplit(fleet.url)
    for engine in fleet.decode:
        assert engine.state()["running"] == 0
    before = fleet.router.private_bytes()
    sockets = []
    for i in range(8):
        sock = socket.create_connection((parts.hostname, parts.port))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = json.dumps(chat_body(f"unread {i}", stream=True, max_tokens=20000, n=16)).encode()
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
                     + str(len(body)).encode() + b"\r\n\r\n" + body)
        sockets.append(sock)
    time.sleep(2)
    grown = fleet.router.private_bytes() - before
    for sock in sockets:
        sock.close()
    assert grown < 8 << 20, f"{grown >> 10} KiB for 8 streams"


def test_health_stays_prompt_in_a_burst(fleet):
    """Row 77."""
    if fleet.kind.connector != "sglang":
        pytest.skip("the same for all")
    slowest = 0.0
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        jobs = [pool.submit(ask, fleet, f"burst {i}", max_tokens=3) for i in range(200)]
        while not all(job.done() for job in jobs):
            began = time.monotonic()
            assert request(fleet.url, "GET", "/health").status == 200
            slowest = max(slowest, time.monotonic() - began)
            time.sleep(0.02)
        assert all(job.result().status == 200 for job in jobs)
    # This process shares its two cores with 64 threads of its own.
    assert slowest < 1.0 * SLOW, slowest


def test_a_large_body_is_asked_for_or_refused_at_once(fleet):
    """Row 68: Expect: 100-continue."""
    if fleet.kind.connector != "plain":
        pytest.skip("the same for all")
    parts = urllib.parse.urlsplit(fleet.url)
    body = json.dumps(chat_body("large", padding="y" * (2 << 20), max_tokens=2)).encode()
    for size, expected in ((len(body), b"HTTP/1.1 100"), (1 << 40, b"HTTP/1.1 4")):
        with socket.create_connection((parts.hostname, parts.port), timeout=10) as sock:
            began = time.monotonic()
            sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
                         b"Content-Length: " + str(size).encode() + b"\r\n\r\n")
            got = sock.recv(100)
            assert got.startswith(expected) and time.monotonic() - began < 0.5 * SLOW, got
            if expected.endswith(b"100"):
                sock.sendall(body)
                reply = http.client.HTTPResponse(sock)
                reply.begin()
                assert reply.status == 200
                reply.read()


def test_a_dead_pool_shows_in_the_health_and_answers_503(binary, tmp_path, fleet):
    """Row 75: engines that are frozen or gone; never silence."""
    if fleet.kind.connector != "sglang":
        pytest.skip("health does not depend on the handoff")
    other = Fleet(binary, tmp_path, fleet.kind.connector, 1, 1, ("--step", "1ms"), ("--health-interval", "200ms", "--health-timeout", "600ms"),
                  name="frozen")
    try:
        other.mocks.process.send_signal(signal.SIGSTOP)
        try:
            wait_until(lambda: request(other.url, "GET", "/health").status == 503, 10 * SLOW, lambda: other.router.log())
            reply = ask(other, "anybody there?", timeout=20)
            assert reply.status == 503 and error_of(reply)
        finally:
            other.mocks.process.send_signal(signal.SIGCONT)
        wait_until(lambda: request(other.url, "GET", "/health").status == 200, 10 * SLOW, lambda: other.router.log())
        wait_until(lambda: ask(other, "again").status == 200, 10 * SLOW, "an answer")
    finally:
        other.end()


def test_sigterm_lets_streams_end(binary, tmp_path, fleet):
    """Row 74: readiness first, running streams to their end, exit code 0."""
    if fleet.kind.connector not in ("plain", "sglang"):
        pytest.skip("the same for all")
    other = Fleet(binary, tmp_path, fleet.kind.connector, 1, 1, ("--step", "20ms", "--reply-tokens", 40), name="term")
    try:
        streams = [Stream(other.url, chat_body(f"stream {i}")) for i in range(4)]
        for stream in streams:
            assert stream.open() == 200
        other.router.signal(signal.SIGTERM)
        wait_until(lambda: request(other.url, "GET", "/ready").status == 503, 5 * SLOW, "not ready")
        assert request(other.url, "POST", CHAT, chat_body("late")).status == 503
        for stream in streams:
            assert list(stream)[-1] == "[DONE]"
            stream.close()
        assert other.router.process.wait(20) == 0
    finally:
        other.end()


def test_no_route_serves_without_a_key(binary, tmp_path, fleet):
    """Row 71."""
    if fleet.kind.connector not in ("plain", "sglang"):
        pytest.skip("the same for all")
    other = Fleet(binary, tmp_path, fleet.kind.connector, 1, 1, ("--step", "1ms"), ("--api-key", "sesame"), name="keys")
    try:
        for path in (CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/generate", "/v1/embeddings",
                     "/invocations", "/tokenize", "/abort_request", "/flush_cache"):
            reply = request(other.url, "POST", path, chat_body("open?"))
            assert reply.status in (401, 404), (path, reply.status)
        assert request(other.url, "POST", CHAT, chat_body("open?"), {"Authorization": "Bearer sesame"}).status == 200
        assert request(other.url, "GET", "/v1/models").status == 401
        assert request(other.url, "GET", "/health").status == 200
    finally:
        other.end()


def test_a_kept_connection_serves_again(fleet):
    """Row 69: the same connection for many requests, of engines that were restarted in between too."""
    connection = http.client.HTTPConnection(*urllib.parse.urlsplit(fleet.url).netloc.split(":"), timeout=20)
    for i in range(6):
        connection.request("POST", CHAT, json.dumps(chat_body(f"kept {i}", max_tokens=2)), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        assert reply.status == 200, reply.read()
        reply.read()
    connection.close()


def test_a_response_names_the_chosen_workers(fleet):
    reply = ask(fleet, "who was it?", max_tokens=2)
    headers = {name.lower(): value for name, value in reply.headers.items()}
    assert headers.get("x-tandem-worker") in {engine.address for engine in fleet.decode} or \
        headers.get("x-tandem-worker") in {engine.url for engine in fleet.decode}, headers
    if fleet.kind.pair:
        assert headers.get("x-tandem-prefill-worker"), headers
    assert headers["x-request-id"]


def test_metrics_count_what_happened(fleet):
    before = metrics(fleet.url)
    assert ask(fleet, "counted", max_tokens=2).status == 200
    after = metrics(fleet.url)
    grown = {name.split("{")[0] for name, value in after.items() if value > before.get(name, 0)}
    assert "tandem_router_requests_total" in grown, sorted(grown)
