"""Reports, section A: requests that are checked badly, and numbers at the edge."""

import concurrent.futures
import json
import math
import random
import time

import pytest

from bugs import (WINDOW, complete, count_messages, expect_error, nested, numbers_in, start_pair, strict_json, unharmed, words)
from servers import chat, request

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def pair(module_launch, write_script, tmp_path_factory):
    script = write_script(tmp_path_factory.mktemp("script"), [{"when": "not a number", "reply": "x", "nan_at": 0}, {"reply": "all is well"}],
                          context_length=WINDOW)
    return start_pair(module_launch, script)


@pytest.fixture(autouse=True)
def after(pair):
    yield from unharmed(pair)


BODIES = {"/v1/chat/completions": {"model": "default", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
          "/v1/completions": {"model": "default", "prompt": "a", "max_tokens": 2},
          "/v1/embeddings": {"model": "default", "input": "a"},
          "/tokenize": {"prompt": "a"}, "/detokenize": {"tokens": [1]},
          "/api/chat": {"model": "default", "messages": [{"role": "user", "content": "a"}], "stream": False, "options": {"num_predict": 2}},
          "/api/generate": {"model": "default", "prompt": "a", "stream": False, "options": {"num_predict": 2}},
          "/api/embed": {"model": "default", "input": "a"}, "/api/embeddings": {"model": "default", "prompt": "a"}}
JUNK = [None, True, -1, 0, 1.5, 1e308, 2**63, "", "x", "x" * 5000, "\x00\ud7ff", [], [None], [[{}]], [-1], ["", 7], {}, {"a": [[{}]]}, {"": None}]


def documented(pair):
    """{path: names of the body's fields} of every POST route in the program's own description."""
    document = request(pair.url, "GET", "/openapi.json").json()
    fields = {}
    for path, operations in document["paths"].items():
        if "post" in operations:
            schema = operations["post"]["requestBody"]["content"]["application/json"]["schema"]
            while "$ref" in schema:
                schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
            fields[path] = list(schema.get("properties", {}))
    return fields


def expect_sense(reply, what):
    """Never a 5xx; errors have OpenAI's shape (or Ollama's), answers are JSON or events."""
    assert reply.status < 500, (what, reply.status, reply.body[:300])
    if reply.status >= 400:
        error = strict_json(reply.body)["error"]
        assert isinstance(error, str) or (error["message"] and error["code"]), (what, error)
    elif reply.headers["Content-Type"] == "application/json":
        strict_json(reply.body)


def test_bodies_that_are_no_requests_are_refused_on_every_route(pair):  # row 1
    fields = documented(pair)
    assert set(BODIES) <= set(fields), "the sweep lacks a body for a route"
    for path in fields:
        for body in (b"", b"{}", b"[]", b"null", b"7", b'"x"', b"{", b'{"messages":', b"\x00", b"{}{}", b'{"a":1,}', b"NaN"):
            reply = request(pair.url, "POST", path, body)
            assert 400 <= reply.status < 500, (path, body, reply.status)
            expect_sense(reply, (path, body))


@pytest.mark.parametrize("path", list(BODIES))
def test_junk_in_any_documented_field_is_never_a_server_error(pair, path):  # rows 1 and 2
    names = documented(pair)[path]
    assert names
    for name in [*names, "kv_transfer_params", "vllm_xargs", "tandem", "unheard_of"]:
        for value in JUNK:
            reply = request(pair.url, "POST", path, {**BODIES[path], name: value})
            expect_sense(reply, (path, name, value))
            if reply.status == 400 and value == {"a": [[{}]]} and path.startswith("/v1/"):
                error = reply.json()["error"]
                assert name in (error["param"] or "") + error["message"], (name, error)


def test_random_documents_are_never_a_server_error(pair):  # row 1
    draw = random.Random(1)

    def junk(depth):
        kind = draw.randrange(8 if depth < 4 else 6)
        if kind < 6:
            return draw.choice(JUNK[:11])
        if kind == 6:
            return [junk(depth + 1) for _ in range(draw.randrange(4))]
        return {draw.choice(["a", "role", "content", "type", "text", "function", ""]): junk(depth + 1) for _ in range(draw.randrange(4))}

    for path, names in documented(pair).items():
        for _ in range(60):
            body = {name: junk(0) for name in draw.sample(names, min(len(names), draw.randrange(1, 5)))}
            expect_sense(request(pair.url, "POST", path, {**BODIES.get(path, {}), **body}), (path, body))


@pytest.mark.parametrize("bias", [{"99999999": -100}, {"-1": 1}, {"x": 1}, {"1": 1e9}])
def test_a_bias_for_a_token_beyond_the_vocabulary_is_refused(pair, bias):  # row 3
    error = expect_error(chat(pair.url, "hi", logit_bias=bias))
    assert error["param"].lstrip("/").startswith("logit_bias")


def test_scoring_clients_get_the_prompt_with_its_logprobs(pair):  # row 5
    reply = complete(pair.url, "Your answer: Yes", echo=True, logprobs=1, max_tokens=0)
    assert reply.status == 200, reply.body
    choice = strict_json(reply.body)["choices"][0]
    logprobs = choice["logprobs"]
    assert choice["text"] == "Your answer: Yes" == "".join(logprobs["tokens"])
    assert logprobs["token_logprobs"][0] is None and all(value <= 0 for value in logprobs["token_logprobs"][1:])
    assert len(logprobs["tokens"]) == len(logprobs["text_offset"]) == len(logprobs["token_logprobs"]) == reply.json()["usage"]["prompt_tokens"]


def test_very_many_choices_are_refused_and_many_do_not_stall_others(pair):  # row 6
    start = time.monotonic()
    assert expect_error(chat(pair.url, "many", n=512, max_tokens=4), text="128")["param"] == "n"
    assert time.monotonic() - start < 2
    with concurrent.futures.ThreadPoolExecutor() as pool:
        many = pool.submit(chat, pair.url, "many", n=128, max_tokens=4)
        start = time.monotonic()
        assert chat(pair.url, "one", max_tokens=2).status == 200
        assert time.monotonic() - start < 5
        reply = many.result(60)
    assert reply.status == 200 and len(reply.json()["choices"]) == 128


def test_echo_with_logprobs_and_filters_has_only_finite_numbers(pair):  # row 7
    reply = complete(pair.url, "Hello there", echo=True, logprobs=1, temperature=1, top_k=1, max_tokens=3)
    assert reply.status == 200, reply.body
    assert all(math.isfinite(number) for number in numbers_in(strict_json(reply.body)))


def test_embeddings_that_are_no_numbers_are_an_error_and_counted(pair):  # row 9
    def counted():
        return sum(process.metrics()["tandem_non_finite_outputs_total"] for process in pair.workers)

    before = counted()
    reply = request(pair.url, "POST", "/v1/embeddings", {"model": "default", "input": "not a number"})
    expect_error(reply, 500, code="non_finite_logits")
    assert reply.headers["x-should-retry"] == "false"
    strict_json(reply.body)
    assert counted() == before + 1  # asked once


def test_an_empty_assistant_turn_is_accepted(pair):  # row 10
    turns = [{"role": "user", "content": "A"}, {"role": "assistant", "content": ""}, {"role": "user", "content": "B"}]
    assert chat(pair.url, turns, max_tokens=4).status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_what_does_not_fit_is_told_with_prompt_answer_and_window(pair, stream):  # row 12
    content = words(400, pair.url)
    count = count_messages(pair.url, [{"role": "user", "content": content}])
    assert count < WINDOW
    error = expect_error(chat(pair.url, content, max_tokens=WINDOW, stream=stream), 400, "context_length_exceeded")
    for number in (count, WINDOW, count + WINDOW):
        assert str(number) in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_beyond_the_window_is_a_400_with_the_phrase_that_clients_look_for(pair, stream):  # row 13
    expect_error(chat(pair.url, words(600, pair.url), stream=stream), 400, "context_length_exceeded",
                 f"maximum context length is {WINDOW} tokens")
    expect_error(complete(pair.url, words(600, pair.url), stream=stream), 400, "context_length_exceeded",
                 f"maximum context length is {WINDOW} tokens")


def test_no_turn_is_dropped_to_make_room(pair):  # row 14
    messages = [{"role": "system", "content": words(300, pair.url)}, {"role": "user", "content": "short"},
                {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "1", "content": words(300, pair.url)}]
    expect_error(chat(pair.url, messages), 400, "context_length_exceeded")


def test_the_whole_prompt_is_counted(pair):  # row 15
    content = words(300, pair.url)
    reply = chat(pair.url, content, max_tokens=4)
    assert reply.status == 200
    assert reply.json()["usage"]["prompt_tokens"] == count_messages(pair.url, [{"role": "user", "content": content}])


@pytest.mark.parametrize("depth", [65, 1000, 10000, 100000])
def test_deep_documents_are_refused_on_every_route(pair, depth):  # rows 1, 24
    for path, body in BODIES.items():
        text = json.dumps(body).encode()[:-1]
        expect_sense(request(pair.url, "POST", path, text + b',"x":' + nested(depth) + b"}"), (path, depth))
        reply = request(pair.url, "POST", path, text + b',"x":' + b'{"a":' * depth)
        assert 400 <= reply.status < 500
