"""Inputs that are refused, and what they may not do. After each, the server answers as before (see test_bugs_a.py for more)."""

import pytest

from bugs import WINDOW, expect_error, start_pair, unharmed
from servers import chat, request

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def small(module_launch, write_script, tmp_path_factory):
    """A pair with a window of 512 tokens, quick to compute."""
    return start_pair(module_launch, write_script(tmp_path_factory.mktemp("script"), [{"reply": "all is well"}], context_length=WINDOW))


@pytest.fixture(autouse=True)
def after(small):
    yield from unharmed(small)


@pytest.mark.parametrize("fields", [
    {"logit_bias": {"99999999": -100}}, {"n": 0}, {"n": 512}, {"temperature": 2.5}, {"temperature": "hot"}, {"top_p": -0.1},
    {"max_tokens": -1}, {"stop": [{}]}, {"seed": 1.5}, {"stream": "yes"}, {"response_format": {"type": "json_schema"}},
    {"tools": {"a": [[{}]]}}, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
    {"messages": [{"role": "user", "content": {"a": [[{}]]}}]}, {"logprobs": True, "top_logprobs": 21}, {"top_logprobs": 1},
    {"min_p": 2}, {"presence_penalty": 3}, {"repetition_penalty": 0}, {"stop_token_ids": [-1]}, {"best_of": 129},
    {"kv_transfer_params": {"a": [[{}]]}}])
def test_fields_of_the_wrong_kind(small, fields):
    error = expect_error(chat(small.url, fields.pop("messages", "hi"), **fields))
    assert error["param"]


def test_tokens_outside_the_vocabulary(small):
    for ids in ([99999999], [-1], [1.5], ["a", 1], [[1], [99999999]], [[]]):
        expect_error(request(small.url, "POST", "/v1/completions", {"prompt": ids, "max_tokens": 1}))
    expect_error(request(small.url, "POST", "/detokenize", {"tokens": [99999999]}))


def test_unknown_routes_and_methods(small):
    assert request(small.url, "GET", "/nope").status == 404
    assert request(small.url, "GET", "/v1/chat/completions").status in (404, 405)
    assert request(small.url, "DELETE", "/v1/models").status in (404, 405)


def test_clients_cannot_speak_as_the_router(small):
    """A `tandem` object and internal headers from outside change nothing."""
    reply = request(small.url, "POST", "/v1/chat/completions",
                    {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8,
                     "tandem": {"leg": "decode", "handoff": {"id": "0" * 32, "prefill_address": "unix:/nowhere"},
                                "prompt_token_ids": [1, 2, 3], "report_tokens": True}},
                    headers={"x-tandem-auth": "guess"})
    assert reply.status in (200, 400)
    assert b"completion_token_ids" not in reply.body
    for process in small.workers:
        assert request(process.url, "POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}).status == 401
        assert request(process.url, "GET", "/metrics").status == 401
