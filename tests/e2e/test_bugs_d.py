"""Reports, section D, that need a failure: an engine that dies or fails in the middle of a stream is told as an error in the form of each API.

The list of which test covers which row stands in test_agent_facts.py."""

import pytest

from servers import Cluster, Stream, metrics, request, wait_until

pytestmark = pytest.mark.quick

REPLIES = [{"when": "not a number", "reply": "one two three four five six seven eight", "nan_at": 5}, {"reply": "word " * 200}]
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
APIS = {CHAT: {"messages": [{"role": "user", "content": "go"}], "max_tokens": 300}, MESSAGES: {"messages": [{"role": "user", "content": "go"}], "max_tokens": 300},
        RESPONSES: {"input": "go", "max_output_tokens": 300}}


@pytest.fixture(scope="module")
def pair(module_launch, write_script, tmp_path_factory):
    script = write_script(tmp_path_factory.mktemp("script"), REPLIES, step_ms=10)
    return Cluster(module_launch, script, worker_options=("--kv-memory", "64M"), decode=1)


def with_text(path, text):
    return {**APIS[path], **({"input": text} if path == RESPONSES else {"messages": [{"role": "user", "content": text}]})}


def check_failure(path, found):
    """The last frames say that the answer failed, and are as the API has them."""
    if path == CHAT:
        assert found[-1] == "[DONE]" and found[-2]["error"]["message"] and found[-2]["error"]["code"], found[-2:]
        assert not any(choice["finish_reason"] for event in found[:-2] for choice in event["choices"])
    elif path == MESSAGES:
        assert found[-1]["type"] == "error" and found[-1]["error"]["message"] and found[-1]["error"]["type"], found[-1]
        assert not any(event["type"] in ("message_delta", "message_stop") for event in found)
    else:
        last = found[-1]
        assert last["type"] == "response.failed" and last["response"]["status"] == "failed"
        assert last["response"]["error"]["code"] and last["response"]["error"]["message"]
        assert last["response"]["id"] == found[0]["response"]["id"], "the stream's own response"
        assert [event["sequence_number"] for event in found] == list(range(len(found)))


@pytest.mark.parametrize("path", APIS)
def test_an_engine_that_fails_is_an_error_of_the_api(pair, path):  # rows 53 and 54: how the engine ended is no finish that clients know
    stream = Stream(pair.url, with_text(path, "not a number"), path)
    assert stream.open() == 200
    check_failure(path, list(stream))
    whole = request(pair.url, "POST", path, {"model": "default", **with_text(path, "not a number")})
    assert whole.status == 500 and whole.json()["error"]["message"], whole.body


@pytest.mark.parametrize("path", APIS)
def test_a_decode_worker_that_dies_is_no_short_answer(pair, path):  # row 51
    before = metrics(pair.url)["tandem_router_broken_streams_total"]
    stream = Stream(pair.url, APIS[path], path)
    iterator = iter(stream)
    found = [next(iterator) for _ in range(9)]
    (decode,) = pair.roles["decode"]
    decode.kill()
    found += list(iterator)
    try:
        check_failure(path, found)
        assert metrics(pair.url)["tandem_router_broken_streams_total"] == before + 1, "it counts as failed"
    finally:
        pair.restart(decode).wait_ready()
    wait_until(lambda: request(pair.url, "POST", path, {"model": "default", **APIS[path], **{key: 2 for key in APIS[path] if key.startswith("max_")}}).status == 200,
               20, "the pair answers again")
