"""The real `openai` client against `tandem up`."""

import openai
import pytest

from servers import chat, metrics, request, wait_until

pytestmark = pytest.mark.quick

MESSAGES = [{"role": "user", "content": "Name three colours of the sky, in one short sentence."}]


@pytest.fixture(scope="module")
def client(up):
    return openai.OpenAI(base_url=up.url + "/v1", api_key="unused", max_retries=0, timeout=60)


def ask(client, **options):
    return client.chat.completions.create(**{"model": "default", "messages": MESSAGES, "max_tokens": 24, "temperature": 0,
                                             **options})


def test_streamed_and_whole_answers_are_the_same(client):
    for options in ({}, {"temperature": 0.8, "seed": 7}, {"max_tokens": 3}):
        whole = ask(client, **options)
        chunks = list(ask(client, stream=True, stream_options={"include_usage": True}, **options))
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
        assert whole.choices[0].message.content
        reasons = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
        assert reasons == [whole.choices[0].finish_reason]
        assert chunks[-1].choices == []
        assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
        assert all(c.usage is None for c in chunks[:-1])
        assert {c.id for c in chunks} == {chunks[0].id}
        assert chunks[0].choices[0].delta.role == "assistant"


def test_a_length_limit_is_reported(client):
    answer = ask(client, max_tokens=5)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 5


def test_the_prompt_is_counted_as_it_is_tokenized(client, up):
    answer = ask(client)
    tokens = request(up.url, "POST", "/tokenize", {"messages": MESSAGES}).json()
    assert tokens["count"] == len(tokens["tokens"]) == answer.usage.prompt_tokens
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_stop_strings_are_cut_and_never_sent(client):
    whole = ask(client).choices[0].message.content
    stop = whole[len(whole) // 2:len(whole) // 2 + 4]
    expected = whole[:whole.index(stop)]
    answer = ask(client, stop=[stop, "never there"])
    assert answer.choices[0].message.content == expected
    assert answer.choices[0].finish_reason == "stop"
    chunks = list(ask(client, stop=stop, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == expected
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_the_same_seed_gives_the_same_text(client):
    texts = {ask(client, temperature=1.2, seed=seed).choices[0].message.content for seed in (5, 5, 5)}
    assert len(texts) == 1
    others = {ask(client, temperature=1.2, seed=seed).choices[0].message.content for seed in range(4)}
    assert len(others) > 1


def test_completions_take_text_and_tokens(client, up):
    text = client.completions.create(model="default", prompt="Once upon a time", max_tokens=8, temperature=0)
    ids = request(up.url, "POST", "/tokenize", {"prompt": "Once upon a time"}).json()["tokens"]
    same = client.completions.create(model="default", prompt=ids, max_tokens=8, temperature=0)
    assert text.choices[0].text == same.choices[0].text != ""
    chunks = client.completions.create(model="default", prompt=ids, max_tokens=8, temperature=0, stream=True)
    assert "".join(c.choices[0].text for c in chunks) == text.choices[0].text
    assert request(up.url, "POST", "/detokenize", {"tokens": ids}).json()["prompt"] == "Once upon a time"


def test_models_are_listed_and_named(client):
    models = client.models.list().data
    assert len(models) == 1
    named = ask(client, model=models[0].id)
    assert named.model == models[0].id
    with pytest.raises(openai.NotFoundError):
        ask(client, model="no-such-model")


def test_errors_reach_the_client_with_their_field(client):
    for options, field in (({"temperature": 3}, "temperature"), ({"max_tokens": 0}, "max_tokens"), ({"n": 129}, "n"),
                           ({"messages": []}, "messages"), ({"logit_bias": {"99999999": -100}}, "logit_bias")):
        with pytest.raises(openai.BadRequestError) as error:
            ask(client, **options)
        assert field in (error.value.param or "") and error.value.code and str(error.value)
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, max_tokens=1_000_000)
    assert error.value.code == "context_length_exceeded"
    assert "maximum context length is 8192 tokens" in str(error.value)


def test_a_cancelled_stream_frees_everything(client, up):
    stream = ask(client, max_tokens=2000, stream=True, messages=[{"role": "user", "content": "Count from 1 to 1000."}])
    next(iter(stream))
    assert metrics(up.url)["tandem_num_requests_running"] >= 1
    stream.close()
    wait_until(lambda: metrics(up.url)["tandem_num_requests_running"] == 0, 1.5, "the cancelled request ended")
    assert ask(client).choices[0].message.content


def test_roles_developer_and_empty_assistant_turns_are_accepted(client):
    answer = ask(client, messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "A"},
                                   {"role": "assistant", "content": ""}, {"role": "user", "content": "B"}], max_tokens=4)
    assert answer.usage.completion_tokens > 0


def test_bodies_of_agents_are_accepted(up):
    """The fields that coding agents send and that change nothing here."""
    reply = chat(up.url, [{"role": "user", "content": [{"type": "text", "text": "Say hi."}]}], max_tokens=4,
                 tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
                 tool_choice="auto", parallel_tool_calls=True, store=False, metadata={"a": "b"}, reasoning_effort="low",
                 stream_options=None, x_unknown=[{"deep": [1, 2]}])
    assert reply.status == 200, reply.body
