"""Busy is not dead: an engine that works on requests may leave its health route unanswered, and nothing of its is cut;
one that has nothing to do and does not answer is down."""

import threading
import time

import pytest

from mocks import SLOW, chat_body, fleets
from servers import metrics, request, wait_until

pytestmark = pytest.mark.quick
IMPATIENT = ("--health-interval", "50ms", "--health-timeout", "150ms", "--no-access-log")
JUDGED = 1.0  # well beyond three such timeouts


@pytest.fixture(scope="module", params=["plain", "vllm-nixl"])
def fleet(request, binary, tmp_path_factory):
    with fleets(binary, tmp_path_factory.mktemp("busy"), [request.param], prefill=1, decode=1,
                mock_options=("--step", "40ms", "--prefill-rate", "2000", "--reply-tokens", "50"), router_options=IMPATIENT) as made:
        yield made[request.param]


@pytest.fixture(autouse=True)
def calm(fleet):
    """Every test begins and ends with engines that answer."""
    fleet.mocks.faults()
    wait_until(lambda: up(fleet) == [1, 1], 10 * SLOW, fleet.router.log)
    yield
    fleet.mocks.faults()
    fleet.settle()


def gauge(fleet, name):
    """By engine."""
    told = metrics(fleet.url)
    return [next(int(value) for key, value in told.items() if key.startswith(f"tandem_router_worker_{name}{{") and engine.address in key)
            for engine in fleet.mocks.all]


def up(fleet):
    return gauge(fleet, "up")


def ask(fleet, prompt, into, **fields):
    """Asks in the background."""
    thread = threading.Thread(target=lambda: into.append(request(fleet.url, "POST", "/v1/chat/completions", chat_body(prompt, **fields))))
    thread.start()
    return thread


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_answers_of_engines_that_leave_their_health_route_unanswered_are_whole(fleet, stream):
    replies = []
    thread = ask(fleet, f"short {stream}", replies, stream=stream, max_tokens=50)
    busy = wait_until(lambda: next((engine for engine in fleet.decode if engine.state()["running"]), None), 5 * SLOW, "nobody runs it")
    busy = fleet.mocks.all.index(busy)
    fleet.mocks.faults("mute-health")
    before = time.monotonic()
    while thread.is_alive() and time.monotonic() - before < JUDGED:
        assert up(fleet)[busy] == 1, fleet.router.log()
        time.sleep(0.05)
    assert thread.is_alive()
    thread.join(60 * SLOW)
    assert replies[0].status == 200 and b"error" not in replies[0].body, replies[0].body[-500:]
    if stream:
        assert replies[0].body.rstrip().endswith(b"data: [DONE]")
    # With nothing of ours to be busy with it is down, and up again when it answers.
    wait_until(lambda: up(fleet) == [0, 0], 10 * SLOW, fleet.router.log)
    assert request(fleet.url, "GET", "/health").status == 503


def test_a_long_prompt_is_waited_for_in_silence(fleet):
    replies = []
    prompt = f"long {time.monotonic()} " + "x" * int(8000 * 2.0 * SLOW)  # two seconds of prefill without a byte
    thread = ask(fleet, prompt, replies, max_tokens=2)
    wait_until(lambda: any(engine.state()["running"] for engine in fleet.mocks.all), 5 * SLOW, "nobody runs it")
    fleet.mocks.faults("mute-health")
    wait_until(lambda: any(gauge(fleet, "silent")), 1.5 * SLOW, fleet.router.log)
    assert thread.is_alive()
    thread.join(60 * SLOW)
    assert replies[0].status == 200, replies[0].body


def test_new_requests_avoid_a_silent_engine(fleet):
    if fleet.kind.pair:
        pytest.skip("one engine of each role")
    first, second = fleet.mocks.all
    replies = []
    thread = ask(fleet, f"long {time.monotonic()} " + "x" * int(8000 * 2.0 * SLOW), replies, max_tokens=2)
    wait_until(lambda: first.state()["running"] + second.state()["running"] == 1, 5 * SLOW, "nobody runs it")
    busy, idle = (first, second) if first.state()["running"] else (second, first)
    busy.faults("mute-health")

    def only_busy_is_silent():  # on a slow machine the idle one may miss its timeouts as well
        return gauge(fleet, "silent") == [int(engine is busy) for engine in (first, second)] and up(fleet) == [1, 1]

    judged = 0
    for number in range(4):
        wait_until(lambda: only_busy_is_silent() or not thread.is_alive(), 10 * SLOW, fleet.router.log)
        before = idle.state()["requests"]
        assert request(fleet.url, "POST", "/v1/chat/completions", chat_body(f"new {number}", max_tokens=1)).status == 200
        if only_busy_is_silent() and thread.is_alive():
            assert idle.state()["requests"] == before + 1
            judged += 1
    assert judged > 0
    thread.join(60 * SLOW)
    assert replies[0].status == 200


def test_who_says_nothing_for_too_long_is_down_and_its_requests_go_elsewhere(binary, tmp_path, fleet):
    if fleet.kind.pair:
        pytest.skip("once is enough")
    with fleets(binary, tmp_path, ["plain"], prefill=1, decode=1, mock_options=("--step", "0", "--prefill-rate", "0"),
                router_options=(*IMPATIENT, "--silence-limit", "1s")) as made:
        dead = made["plain"].mocks.all[0]
        dead.faults("stall", "mute-health")
        wait_until(lambda: up(made["plain"]) == [0, 1], 10 * SLOW, made["plain"].router.log)
        dead.faults("stall")
        wait_until(lambda: up(made["plain"]) == [1, 1], 10 * SLOW, made["plain"].router.log)
        replies = []
        threads = [ask(made["plain"], f"frozen {i}", replies, max_tokens=1) for i in range(4)]
        wait_until(lambda: dead.state()["requests"] > 0, 5 * SLOW, "nobody asked it")
        dead.faults("stall", "mute-health")
        for thread in threads:
            thread.join(20 * SLOW)
        assert [reply.status for reply in replies] == [200] * 4
        assert gauge(made["plain"], "up")[0] == 0
        dead.faults()
