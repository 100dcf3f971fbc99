"""The real `openai` client over the parameters of the OpenAI API, through a pair and a real model."""

import base64
import json
import math
import struct

import openai
import pytest

from servers import Stream, chat, events, request

pytestmark = pytest.mark.quick

MESSAGES = [{"role": "user", "content": "Name two colours."}]
PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def client(up):
    return openai.OpenAI(base_url=up.url + "/v1", api_key="unused", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def ask(client):
    """One answer of /v1/chat/completions or /v1/completions, as plain values."""
    def ask(**options):
        if "prompt" in options:
            made = client.completions.create(**{"model": "default", "max_tokens": 8, "temperature": 0, **options})
        else:
            made = client.chat.completions.create(**{"model": "default", "messages": MESSAGES, "max_tokens": 8, "temperature": 0, **options})
        return assemble(made) if options.get("stream") else made.model_dump()

    return ask


def assemble(chunks):
    """A streamed answer put together as a whole one."""
    choices, out, ended = {}, {}, False
    for chunk in chunks:
        chunk = chunk.model_dump()
        out.update({key: chunk[key] for key in ("id", "created", "model", "system_fingerprint")})
        if chunk.get("usage"):
            assert chunk["choices"] == [], "usage comes without choices"
            out["usage"], ended = chunk["usage"], True
            continue
        assert not ended and len(chunk["choices"]) == 1
        part = chunk["choices"][0]
        choice = choices.setdefault(part["index"], {"index": part["index"], "text": "", "logprobs": {}, "finish_reason": None})
        assert choice["finish_reason"] is None, "one finish for each choice, and nothing after it"
        choice["text"] += (part["delta"].get("content") if "delta" in part else part["text"]) or ""
        for key, values in (part["logprobs"] or {}).items():
            choice["logprobs"].setdefault(key, []).extend(values or [])
        choice["finish_reason"] = part["finish_reason"]
        choice["stop_reason"] = part.get("stop_reason")
    out["choices"] = [choices[index] for index in sorted(choices)]
    return out


def plain(answer):
    """What a streamed and a whole answer must have in common."""
    return [{"index": choice["index"], "text": choice["message"]["content"] if "message" in choice else choice["text"],
             "finish": choice["finish_reason"], "stop": choice.get("stop_reason"),
             "logprobs": {key: values for key, values in (choice["logprobs"] or {}).items() if values}}
            for choice in answer["choices"]]


MATRIX = [
    {}, {"n": 2}, {"temperature": 0.9, "seed": 3, "n": 3}, {"temperature": 1, "seed": 4, "top_p": 0.8, "presence_penalty": 1, "frequency_penalty": 0.5},
    {"temperature": 1, "seed": 5, "extra_body": {"top_k": 5, "min_p": 0.1, "typical_p": 0.9, "repetition_penalty": 1.2}},
    {"stop": ["e", "zzz"]}, {"max_tokens": 1}, {"extra_body": {"ignore_eos": True, "min_tokens": 4}, "max_tokens": 12},
    {"stop": "a", "extra_body": {"include_stop_str_in_output": True}}, {"logit_bias": {"28": -100, "30": 5}},
]


@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize("options", MATRIX, ids=lambda options: json.dumps(options)[:60])
def test_streamed_answers_are_whole_answers_field_by_field(ask, options, logprobs):
    for base, scored in (({}, {"logprobs": True, "top_logprobs": 3}), ({"prompt": PROMPT}, {"logprobs": 3})):
        asked = {**base, **options, **(scored if logprobs else {})}
        whole = ask(**asked)
        streamed = ask(**asked, stream=True, stream_options={"include_usage": True})
        assert plain(streamed) == plain(whole)
        assert streamed["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
        assert streamed["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]
        assert len(whole["choices"]) == options.get("n", 1)
        assert all(choice["finish_reason"] in ("stop", "length") for choice in whole["choices"])


@pytest.mark.parametrize("options", [{"echo": True, "logprobs": 2}, {"echo": True}, {"prompt": [PROMPT, "Hello"], "n": 2, "echo": True, "logprobs": 1},
                                     {"prompt": ["One", "Two", "Three"]}])
def test_streamed_echoes_and_several_prompts_are_whole_ones(ask, options):
    asked = {"prompt": PROMPT, "max_tokens": 4, **options}
    assert plain(ask(**asked, stream=True)) == plain(ask(**asked))


def test_greedy_text_is_the_likeliest_token_every_time(ask):
    answer = ask(logprobs=True, top_logprobs=4, max_tokens=12)
    content = answer["choices"][0]["logprobs"]["content"]
    ended = answer["choices"][0]["finish_reason"] == "stop"  # the end token is counted, not shown
    assert len(content) == answer["usage"]["completion_tokens"] - ended
    assert "".join(token["token"] for token in content) == answer["choices"][0]["message"]["content"]
    for token in content:
        assert len(token["top_logprobs"]) == 4 and token["token"] == token["top_logprobs"][0]["token"]
        values = [top["logprob"] for top in token["top_logprobs"]]
        assert values == sorted(values, reverse=True) and sum(map(math.exp, values)) <= 1.0001
        assert bytes(token["bytes"]).decode() == token["token"]


def test_completion_logprobs_have_offsets_into_the_text(ask):
    choice = ask(prompt=PROMPT, logprobs=2, max_tokens=8)["choices"][0]
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"]
    for token, offset, top, logprob in zip(logprobs["tokens"], logprobs["text_offset"], logprobs["top_logprobs"], logprobs["token_logprobs"]):
        assert choice["text"][offset:offset + len(token)] == token
        assert top[token] == logprob == max(top.values())


def test_scoring_gives_the_prompt_its_logprobs_and_generates_nothing(ask):
    answer = ask(prompt=PROMPT, echo=True, logprobs=1, max_tokens=0)
    choice = answer["choices"][0]
    assert choice["text"] == PROMPT and "".join(choice["logprobs"]["tokens"]) == PROMPT
    assert answer["usage"]["completion_tokens"] == 0
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert all(math.isfinite(value) for value in choice["logprobs"]["token_logprobs"][1:])
    # What the model then says with the greatest probability it also scores as such.
    said = ask(prompt=PROMPT, logprobs=0, max_tokens=3)["choices"][0]
    again = ask(prompt=PROMPT + said["text"], echo=True, logprobs=0, max_tokens=0)["choices"][0]
    scored = again["logprobs"]["token_logprobs"][-3:]
    assert scored == pytest.approx(said["logprobs"]["token_logprobs"], abs=1e-3)
    # Filters make nothing infinite.
    filtered = ask(prompt=PROMPT, echo=True, logprobs=1, max_tokens=2, temperature=1, extra_body={"top_k": 1})
    assert all(math.isfinite(value) for value in filtered["choices"][0]["logprobs"]["token_logprobs"][1:])
    assert ask(prompt=PROMPT, max_tokens=0)["choices"][0]["text"] == ""


def test_a_bias_forces_and_forbids_tokens(ask, up):
    (token,) = request(up.url, "POST", "/tokenize", {"prompt": " Paris"}).json()["tokens"]
    assert ask(prompt=PROMPT, logit_bias={str(token): 100}, max_tokens=3)["choices"][0]["text"] == " Paris Paris Paris"
    free = ask(prompt=PROMPT, logprobs=0, max_tokens=1)["choices"][0]
    (first,) = request(up.url, "POST", "/tokenize", {"prompt": free["text"]}).json()["tokens"]
    assert ask(prompt=PROMPT, logit_bias={str(first): -100}, max_tokens=1)["choices"][0]["text"] != free["text"]


def test_stop_tokens_end_the_answer_and_say_so(ask, up):
    text = ask(prompt=PROMPT, max_tokens=8)["choices"][0]["text"]
    ids = request(up.url, "POST", "/tokenize", {"prompt": text}).json()["tokens"]
    choice = ask(prompt=PROMPT, max_tokens=8, extra_body={"stop_token_ids": [ids[3]]})["choices"][0]
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] == ids[3]
    assert text.startswith(choice["text"]) and len(choice["text"]) < len(text)
    choice = ask(prompt=PROMPT, max_tokens=8, stop=text[4:8])["choices"][0]
    assert choice["text"] == text[:text.index(text[4:8])] and choice["stop_reason"] == text[4:8]
    kept = ask(prompt=PROMPT, max_tokens=8, stop=text[4:8], extra_body={"include_stop_str_in_output": True})["choices"][0]
    assert kept["text"] == choice["text"] + text[4:8]
    later = ask(prompt=PROMPT, max_tokens=8, extra_body={"stop_token_ids": [ids[0]], "min_tokens": 5})
    assert later["usage"]["completion_tokens"] >= 5


def test_choices_of_one_seed_differ_and_come_again(ask):
    def texts(**options):
        return [choice["text"] for choice in ask(prompt=PROMPT, temperature=1.5, seed=11, n=4, **options)["choices"]]

    assert texts() == texts() and len(set(texts())) > 1
    answer = ask(prompt=PROMPT, temperature=1.5, seed=11, n=4)
    assert answer["usage"]["completion_tokens"] == 32 and [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + 32


def test_the_best_of_several_is_the_likeliest(ask):
    options = {"prompt": PROMPT, "temperature": 1.5, "seed": 11, "logprobs": 0, "max_tokens": 6}
    every = ask(**options, n=5)["choices"]
    best = ask(**options, n=1, best_of=5)["choices"][0]

    def mean(choice):
        return sum(choice["logprobs"]["token_logprobs"]) / len(choice["logprobs"]["token_logprobs"])

    assert mean(best) == pytest.approx(max(map(mean, every)), abs=1e-4)


def test_several_prompts_are_answered_in_their_order(ask, up):
    single = [ask(prompt=prompt)["choices"][0]["text"] for prompt in (PROMPT, "Once upon a time")]
    answer = ask(prompt=[PROMPT, "Once upon a time"], n=2)
    assert [choice["text"] for choice in answer["choices"]] == [single[0], single[0], single[1], single[1]]
    ids = [request(up.url, "POST", "/tokenize", {"prompt": prompt}).json()["tokens"] for prompt in (PROMPT, "Once upon a time")]
    assert [choice["text"] for choice in ask(prompt=ids)["choices"]] == single
    assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))


def test_embeddings_come_as_floats_and_as_base64(client, up):
    inputs = ["A cat sits on the mat.", "A kitten is on the rug.", "Quarterly revenue grew by five percent."]
    made = client.embeddings.create(model="default", input=inputs)  # the client asks for base64
    vectors = [entry.embedding for entry in made.data]
    floats = request(up.url, "POST", "/v1/embeddings", {"input": inputs}).json()
    raw = request(up.url, "POST", "/v1/embeddings", {"input": inputs, "encoding_format": "base64"}).json()
    for i, vector in enumerate(vectors):
        decoded = base64.b64decode(raw["data"][i]["embedding"])
        assert list(struct.unpack(f"<{len(decoded) // 4}f", decoded)) == pytest.approx(floats["data"][i]["embedding"], rel=1e-6)
        assert vector == pytest.approx(floats["data"][i]["embedding"], rel=1e-6) and made.data[i].index == i
        assert len(vector) == 576 and math.fsum(x * x for x in vector) == pytest.approx(1, abs=1e-4)
    ids = [request(up.url, "POST", "/tokenize", {"prompt": text}).json()["tokens"] for text in inputs]
    assert made.usage.prompt_tokens == made.usage.total_tokens == sum(map(len, ids))
    same = client.embeddings.create(model="default", input=ids)
    assert same.data[1].embedding == vectors[1]

    def cosine(a, b):
        return math.fsum(x * y for x, y in zip(a, b))

    assert cosine(vectors[0], vectors[1]) > cosine(vectors[0], vectors[2])
    short = client.embeddings.create(model="default", input=inputs[0], dimensions=64).data[0].embedding
    assert len(short) == 64 and math.fsum(x * x for x in short) == pytest.approx(1, abs=1e-4)
    last = client.embeddings.create(model="default", input=inputs[0], extra_body={"pooling": "last"}).data[0].embedding
    assert last != vectors[0]
    for wrong in ({"input": [[1, 2, 10**8]]}, {"input": []}, {"input": ""}, {"dimensions": 577}):
        reply = request(up.url, "POST", "/v1/embeddings", {"input": "x", **wrong})
        assert reply.status == 400 and reply.json()["error"]["param"], reply.body


def test_usage_chunks_come_last_and_alone(up):
    for extra, running in (({}, False), ({"continuous_usage_stats": True}, True)):
        got = events(chat(up.url, "Hi", max_tokens=3, n=2, stream=True, stream_options={"include_usage": True, **extra}).body)
        assert got[-1] == "[DONE]" and got[-2]["choices"] == [] and got[-2]["usage"]["completion_tokens"] > 0
        assert all((chunk["usage"] is not None) == running for chunk in got[:-2])
        assert len({chunk["id"] for chunk in got[:-1]}) == 1
        finishes = [c["index"] for chunk in got[:-1] for c in chunk["choices"] if c["finish_reason"]]
        assert sorted(finishes) == [0, 1]


def test_every_answer_has_the_requests_id(up):
    for method, path, body, given in (("GET", "/v1/models", None, "abc-1"), ("POST", "/v1/chat/completions", b"{", "abc-2"),
                                      ("GET", "/nowhere", None, "abc-3"), ("DELETE", "/v1/models", None, "abc-4")):
        assert request(up.url, method, path, body, {"x-request-id": given}).headers["x-request-id"] == given
    minted = request(up.url, "GET", "/v1/models", headers={"x-request-id": "a b"}).headers["x-request-id"]
    assert len(minted) == 32 and minted != request(up.url, "GET", "/v1/models").headers["x-request-id"]
    reply = chat(up.url, "Hi", max_tokens=1)
    assert reply.json()["id"] == "chatcmpl-" + reply.headers["x-request-id"]


def test_errors_are_final_unless_a_retry_can_help(up):
    for body in ({"messages": []}, {"messages": MESSAGES, "temperature": 9}, {"messages": MESSAGES, "max_tokens": 10**7},
                 {"messages": MESSAGES, "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 123}}}},
                 {"messages": MESSAGES, "tool_choice": {"type": "function", "function": {"name": "absent"}}, "tools": [{"type": "function", "function": {"name": "f"}}]}):
        reply = request(up.url, "POST", "/v1/chat/completions", body)
        assert reply.status == 400 and reply.headers["x-should-retry"] == "false"
        error = reply.json()["error"]
        assert error["type"] == "invalid_request_error" and error["param"] and error["code"] and error["message"]
    reply = chat(up.url, "x", model="absent")
    assert reply.status == 404 and reply.json()["error"]["code"] == "model_not_found"
    assert request(up.url, "POST", "/v1/models", {}).headers["Allow"].startswith("GET")
    reply = request(up.url, "POST", "/v1/chat/completions", b"x=1", {"Content-Type": "application/x-www-form-urlencoded"})
    assert reply.status == 400 and reply.json()["error"]["code"] == "unsupported_content_type"
    assert request(up.url, "HEAD", "/").status == 200


def test_what_agents_resend_is_accepted(up):
    """System messages in the middle, two user turns, trimmed text, calls of tools that are not offered, echoed extras."""
    call = {"id": "call_1", "type": "function", "function": {"name": "invalid", "arguments": "{\"a\":1}", "parsed_arguments": {"a": 1}}}
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "One"}, {"role": "user", "content": "Two"},
                {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "annotations": [], "parsed": None},
                {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "three"}]},
                {"role": "system", "content": "Note."}, {"role": "assistant", "content": "ok", "reasoning_content": "hm"},
                {"role": "user", "content": "Go on"}]
    reply = chat(up.url, messages, max_tokens=4, tools=[{"type": "function", "function": {"name": "other", "parameters": {"type": "object"}}}])
    assert reply.status == 200 and reply.json()["choices"][0]["finish_reason"] in ("stop", "length"), reply.body
    trimmed = [chat(up.url, [{"role": "user", "content": "A"}, {"role": "assistant", "content": text}, {"role": "user", "content": "B"}], max_tokens=1).status
               for text in (" spaced ", "spaced", "")]
    assert trimmed == [200, 200, 200]


def test_ollamas_dialect(up):
    body = {"model": "default", "messages": MESSAGES, "options": {"num_predict": 6, "temperature": 0}}
    lines = [json.loads(line) for line in request(up.url, "POST", "/api/chat", body).body.splitlines()]
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    text = "".join(line["message"]["content"] for line in lines)
    assert text == chat(up.url, MESSAGES, max_tokens=6, temperature=0).json()["choices"][0]["message"]["content"]
    assert lines[-1]["eval_count"] == 6 and lines[-1]["prompt_eval_count"] > 0 and lines[-1]["done_reason"] == "length"
    whole = request(up.url, "POST", "/api/chat", {**body, "stream": False}).json()
    assert whole["message"]["content"] == text and whole["done"]
    schema = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["age"], "additionalProperties": False}
    for path, said in (("/api/chat", {"messages": MESSAGES}), ("/api/generate", {"prompt": PROMPT})):
        shaped = request(up.url, "POST", path, {**said, "format": schema, "stream": False, "options": {"num_predict": 40, "temperature": 0}}).json()
        answer = json.loads(shaped["message"]["content"] if path == "/api/chat" else shaped["response"])
        assert list(answer) == ["age"] and 0 <= answer["age"] <= 99, shaped
    raw = request(up.url, "POST", "/api/generate", {"prompt": PROMPT, "raw": True, "stream": False, "options": {"num_predict": 4, "temperature": 0}})
    assert raw.json()["response"] == request(up.url, "POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 4, "temperature": 0}).json()["choices"][0]["text"]
    (model,) = request(up.url, "GET", "/api/tags").json()["models"]
    assert request(up.url, "POST", "/api/chat", {**body, "model": model["name"], "stream": False}).status == 200
    refused = request(up.url, "POST", "/api/chat", {**body, "model": "absent"})
    assert refused.status == 404 and isinstance(refused.json()["error"], str)
    assert request(up.url, "GET", "/api/version").json()["version"]
    for path in ("/api/chat", "/api/generate"):
        loaded = request(up.url, "POST", path, {"model": model["name"]}).json()
        assert loaded["done"] and loaded["done_reason"] == "load", loaded
        assert request(up.url, "POST", path, {"model": "absent"}).status == 404
    wanted = [entry["embedding"] for entry in request(up.url, "POST", "/v1/embeddings", {"model": "default", "input": ["a", "b"]}).json()["data"]]
    got = request(up.url, "POST", "/api/embed", {"model": model["name"], "input": ["a", "b"]}).json()
    assert got["embeddings"] == wanted and got["prompt_eval_count"] == 2
    assert request(up.url, "POST", "/api/embeddings", {"model": model["name"], "prompt": "a"}).json() == {"embedding": wanted[0]}
    assert isinstance(request(up.url, "POST", "/api/embed", {"model": model["name"]}).json()["error"], str)


def test_prompts_with_different_salts_share_nothing(up):
    prompt = "In the year of the comet every clock in the village of Elm stopped at the same minute, and nobody could say why. " * 3

    def cached(**fields):
        reply = request(up.url, "POST", "/v1/completions", {"model": "default", "prompt": prompt, "max_tokens": 4, "temperature": 0, **fields}).json()
        texts.add(reply["choices"][0]["text"])
        return reply["usage"]["prompt_tokens_details"]["cached_tokens"]

    texts = set()
    for salt in ({}, {"cache_salt": "red"}, {"cache_salt": "blue"}):
        assert cached(**salt) == 0, salt
        assert cached(**salt) > 0, salt
    assert cached(cache_salt="") > 0, "as good as none"
    assert len(texts) == 1
    assert request(up.url, "POST", "/v1/completions", {"prompt": "x", "cache_salt": "s" * 1025}).status == 400


def test_refusals_before_the_body_have_the_requests_id(up):
    import socket
    from urllib.parse import urlsplit
    parts = urlsplit(up.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as sock:
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nx-request-id: mine-7\r\nContent-Length: 99999999999\r\n\r\n")
        answer = sock.recv(65536)
    assert answer.startswith(b"HTTP/1.1 400 ") and b"x-request-id: mine-7\r\n" in answer and b"x-should-retry: false" in answer
    assert b"67108864" in answer and b"request_too_large" in answer


def test_a_left_stream_of_several_choices_frees_all_of_them(up):
    from servers import metrics, wait_until
    stream = Stream(up.url, {"messages": MESSAGES, "n": 4, "max_tokens": 1000, "ignore_eos": True})
    iterator = iter(stream)
    for _ in range(8):
        next(iterator)
    stream.close()
    wait_until(lambda: metrics(up.url)["tandem_num_requests_running"] == 0, 2, "the request ended")
