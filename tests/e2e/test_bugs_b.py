"""Reports, section B: JSON, UTF-8 and text."""

import time

import pytest

from bugs import WINDOW, complete, expect_error, nested, send_raw, start_pair, strict_json, tokens_of, unharmed
from servers import Cluster, chat, events, request, text_of

pytestmark = pytest.mark.quick

SPLIT = "한글 and \U0001FAE0, a\u0301 \U0001F468\u200D\U0001F469\u200D\U0001F467 é"


@pytest.fixture(scope="module")
def pair(module_launch, write_script, tmp_path_factory):
    folder = tmp_path_factory.mktemp("script")
    # The token ids of half a character are asked of a server with the same vocabulary.
    asked = Cluster(module_launch, write_script(folder, [{"reply": "x"}]), prefill=0, decode=0, unified=1, worker_options=("--kv-memory", "16M"))
    face = tokens_of(asked.url, "\U0001FAE0")
    assert len(face) > 1, "one token holds the whole character"
    asked.router.end()
    for process in asked.workers:
        process.end()
    replies = [{"when": "face", "reply": "\U0001FAE0 and more"}, {"when": "split", "reply": SPLIT},
               {"when": "halves", "tokens": [face[-1], face[0], face[0]]}, {"reply": "all is well"}]
    made = start_pair(module_launch, write_script(folder, replies, context_length=WINDOW))
    made.face = face
    return made


@pytest.fixture(autouse=True)
def after(pair):
    yield from unharmed(pair)


def both_ways(pair, content, **fields):
    """The text whole and streamed, and the last finish reason of each."""
    whole = chat(pair.url, content, **fields)
    assert whole.status == 200, whole.body
    choice = strict_json(whole.body)["choices"][0]
    got = events(chat(pair.url, content, stream=True, **fields).body)
    reasons = [c["finish_reason"] for e in got if isinstance(e, dict) for c in e["choices"] if c["finish_reason"]]
    assert got[-1] == "[DONE]" and reasons == [choice["finish_reason"]]
    return choice["message"]["content"], text_of(got), choice["finish_reason"]


def test_errors_about_bytes_that_are_no_text_are_json(pair):  # row 17
    body = b'{"model":"\xff\xfe","messages":[{"role":"user","content":"a"}]}'
    strict_json(request(pair.url, "POST", "/v1/chat/completions", body).body)
    for target in (b"/v1/\xff\xfe", b"/v1/models/\xff", b"/v1/%FF%FE"):
        status, _, reply = send_raw(pair.url, b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert 400 <= status < 500
        strict_json(reply)
    escaped = request(pair.url, "POST", "/v1/chat/completions", b'{"model":"\\udcff\\ud800","messages":[{"role":"user","content":"a"}]}')
    assert 400 <= escaped.status < 500
    strict_json(escaped.body)


def test_generated_bytes_that_are_no_text_become_replacement_characters(pair):  # rows 17 and 18
    whole, streamed, reason = both_ways(pair, "halves")
    assert whole == streamed and reason == "stop"
    assert "\ufffd" in whole and set(whole) == {"\ufffd"}


def test_a_prompt_of_lone_continuation_bytes_is_answered(pair):  # row 18
    for ids in (pair.face[1:], pair.face[-1:] * 9, pair.face[:1]):
        reply = complete(pair.url, ids, max_tokens=4)
        assert reply.status == 200, reply.body
        strict_json(reply.body)


def test_a_legacy_encoding_is_named(pair):  # row 19
    for path, body in (("/v1/completions", b'{"prompt":"\xc4\xe3"}'), ("/tokenize", b'{"prompt":"\xc4\xe3"}'),
                       ("/v1/chat/completions", b'{"messages":[{"role":"user","content":"\xc4\xe3"}]}')):
        error = expect_error(request(pair.url, "POST", path, body))
        assert "utf-8" in error["message"].lower()


def test_the_length_limit_may_fall_into_a_character(pair):  # row 20
    for limit in range(1, len(pair.face) + 1):
        whole, streamed, reason = both_ways(pair, "face", max_tokens=limit)
        assert reason == "length" and whole == streamed
        assert whole.replace("\ufffd", "") in ("", "\U0001FAE0")


def test_characters_that_span_tokens_are_sent_whole(pair):  # row 22
    for seed in range(2):
        whole, streamed, reason = both_ways(pair, "split", seed=seed)
        assert whole == streamed == SPLIT and reason == "stop"


@pytest.mark.parametrize("depth", [3000, 10000])
def test_deep_arrays_in_ignored_fields_are_refused(pair, depth):  # row 24
    expect_error(request(pair.url, "POST", "/v1/completions", b'{"prompt":"a","x":' + nested(depth) + b"}"))


def test_deep_tools_are_refused(pair):  # row 25
    expect_error(request(pair.url, "POST", "/v1/chat/completions",
                         b'{"model":"m","messages":[{"role":"user","content":"a"}],"tools":' + nested(3000) + b"}"))


@pytest.mark.parametrize("role", ["user", "tool"])
@pytest.mark.parametrize("unit, count", [("A", 26000), ("漢", 26000), (".", 26000), (" ", 26000), ("\n", 50000),
                                         ("Z", 131072), ("😀", 26000), ("1", 26000)])
def test_long_runs_of_one_character_take_linear_time(pair, unit, count, role):  # rows 26, 27, 28
    messages = [{"role": "user", "content": "x"}, {"role": role, "content": unit * count}]
    start = time.monotonic()
    reply = chat(pair.url, messages, max_tokens=4, timeout=10)
    assert time.monotonic() - start < 3
    assert reply.status == 200 or expect_error(reply, 400, "context_length_exceeded")
