"""The vendors' own clients through the router, in front of engines of others."""

import anthropic
import openai
import pytest

from mocks import Fleet, Truth, chat_body
from servers import request

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module", params=["plain", "sglang", "vllm-nixl"])
def fleet(request, binary, tmp_path_factory):
    made = Fleet(binary, tmp_path_factory.mktemp("clients"), request.param, 1, 1, ("--step", "1ms", "--piece", "-1", "--lease", "1s"))
    yield made
    made.settle()
    made.end()


@pytest.fixture(scope="module")
def truth(binary, tmp_path_factory):
    made = Truth(binary, tmp_path_factory.mktemp("truth"))
    yield made
    made.end()


@pytest.fixture
def vendor(fleet):
    with openai.OpenAI(base_url=f"{fleet.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def other_vendor(fleet):
    with anthropic.Anthropic(base_url=fleet.url, api_key="none", max_retries=0) as client:
        yield client


MESSAGES = [{"role": "user", "content": "what the vendors' clients ask"}]
EXPECTED = chat_body("what the vendors' clients ask")


def test_chat(vendor, truth):
    whole = vendor.chat.completions.create(model="mock-model", messages=MESSAGES)
    assert whole.choices[0].message.content == truth.text(EXPECTED)
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    chunks = list(vendor.chat.completions.create(model="mock-model", messages=MESSAGES, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == truth.text(EXPECTED)
    assert chunks[-1].choices == [] and chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    with vendor.chat.completions.stream(model="mock-model", messages=MESSAGES) as stream:
        stream.until_done()
        assert stream.get_final_completion().choices[0].finish_reason == "stop"


def test_completions(vendor):
    whole = vendor.completions.create(model="mock-model", prompt="once", max_tokens=5, n=2)
    assert len(whole.choices) == 2
    chunks = list(vendor.completions.create(model="mock-model", prompt="once", max_tokens=5, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == whole.choices[0].text


def test_responses(vendor, truth):
    whole = vendor.responses.create(model="mock-model", input="a response, please")
    assert whole.output_text and whole.usage.total_tokens > 0
    events = list(vendor.responses.create(model="mock-model", input="a response, please", stream=True))
    assert events[-1].type == "response.completed"
    assert events[-1].response.output[0].content[0].text == whole.output_text
    assert events[-1].response.usage.input_tokens == whole.usage.input_tokens


def test_messages(other_vendor, truth):
    whole = other_vendor.messages.create(model="mock-model", messages=MESSAGES, max_tokens=64)
    assert whole.content[0].text == truth.text(EXPECTED) and whole.usage.input_tokens > 0
    with other_vendor.messages.stream(model="mock-model", messages=MESSAGES, max_tokens=64) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == truth.text(EXPECTED) == final.content[0].text
    assert final.usage.input_tokens == whole.usage.input_tokens and final.usage.output_tokens == whole.usage.output_tokens
    assert other_vendor.messages.count_tokens(model="mock-model", messages=MESSAGES).input_tokens == whole.usage.input_tokens


def test_models(vendor, other_vendor):
    assert [model.id for model in vendor.models.list()] == ["mock-model"]


def test_errors_are_the_clients_own(vendor, fleet):
    with pytest.raises(openai.NotFoundError):
        vendor.chat.completions.create(model="nobody", messages=MESSAGES)
    role = "decode" if fleet.kind.pair else "unified"
    with pytest.raises(openai.UnprocessableEntityError):
        vendor.chat.completions.create(model="mock-model", messages=MESSAGES, extra_headers={"x-mock-fault": f"{role}:status=422"})
    with pytest.raises(openai.APIError):
        for _ in vendor.chat.completions.create(model="mock-model", messages=MESSAGES, stream=True,
                                                extra_headers={"x-mock-fault": f"{role}:die-mid-stream"}):
            pass


def test_a_native_route_passes_through(fleet, truth):
    if fleet.kind.dialect != "sglang":
        pytest.skip("SGLang's own")
    prompt = "SGLang's own way " * 8
    body = {"text": prompt, "sampling_params": {"max_new_tokens": 4}, "return_logprob": True, "logprob_start_len": 0}
    ours, alone = request(fleet.url, "POST", "/generate", body).json(), request(truth.url, "POST", "/generate", body).json()
    assert ours["text"] == alone["text"]
    for name in ("input_token_logprobs", "output_token_logprobs", "prompt_tokens", "completion_tokens", "cached_tokens"):
        assert ours["meta_info"][name] == alone["meta_info"][name], name
