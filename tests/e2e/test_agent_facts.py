"""What real agents send and need (20 facts, measured on the wire), and reported bugs about streams and tool calls: over all three dialects."""

import json

import pytest

from agent_scripts import TEMPLATE, WEATHER, call, think
from servers import events, request

pytestmark = pytest.mark.quick

REPLIES = [
    {"when": "two parts", "reply": think("Write.") + call("get_weather", city="A") + call("get_weather", city="B")},
    {"when": "own fox", "reply": "the quick own fox jumps"},
    {"when": "18 degrees", "reply": "Done."},
    {"reply": "Hello there, all is well."},
]
CHAT = {"model": "default", "messages": [{"role": "user", "content": "two parts"}], "tools": [WEATHER]}
MESSAGES = {"model": "default", "max_tokens": 200, "messages": CHAT["messages"], "tools": [
    {"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}]}
RESPONSES = {"model": "default", "input": "two parts", "tools": [{"type": "function", **WEATHER["function"]}]}
APIS = {"/v1/chat/completions": CHAT, "/v1/messages": MESSAGES, "/v1/responses": RESPONSES}
LIMIT = {"/v1/chat/completions": "max_completion_tokens", "/v1/messages": "max_tokens", "/v1/responses": "max_output_tokens"}


@pytest.fixture(scope="module")
def up(module_launch, write_script, tmp_path_factory):
    script = write_script(tmp_path_factory.mktemp("script"), REPLIES, chat_template=TEMPLATE)
    return module_launch("up", "up", script, "--port", "0").wait_ready()


def ask(url, path, body, headers=None):
    reply = request(url, "POST", path, body, headers)
    assert reply.status == 200, reply.body
    return reply


def data(reply):
    return [json.loads(line[6:]) for line in reply.body.decode().split("\n") if line.startswith("data: {")]


def whole(path, made):
    """(text, reasoning, [(name, arguments)], how it ended)"""
    if path == "/v1/chat/completions":
        choice = made["choices"][0]
        message = choice["message"]
        return (message["content"] or "", message.get("reasoning_content", ""), [(c["function"]["name"], json.loads(c["function"]["arguments"]))
                                                                               for c in message.get("tool_calls", [])], choice["finish_reason"])
    if path == "/v1/messages":
        return ("".join(b["text"] for b in made["content"] if b["type"] == "text"), "".join(b["thinking"] for b in made["content"] if b["type"] == "thinking"),
                [(b["name"], b["input"]) for b in made["content"] if b["type"] == "tool_use"], made["stop_reason"])
    text = lambda kind: "".join(part["text"] for item in made["output"] if item["type"] == kind for part in item["content"])
    return text("message"), text("reasoning"), [(i["name"], json.loads(i["arguments"])) for i in made["output"] if i["type"] == "function_call"], made["status"]


def streamed(path, found):
    if path == "/v1/chat/completions":
        text, reasoning, calls, finish = "", "", {}, []
        for chunk in found:
            for choice in chunk["choices"]:
                delta = choice["delta"]
                text += delta.get("content") or ""
                reasoning += delta.get("reasoning_content") or ""
                for part in delta.get("tool_calls", []):
                    made = calls.setdefault(part["index"], ["", ""])
                    made[0] += part["function"].get("name", "")
                    made[1] += part["function"]["arguments"]
                finish += [choice["finish_reason"]] if choice["finish_reason"] else []
        assert len(finish) == 1, "exactly one finish"
        return text, reasoning, [(name, json.loads(arguments)) for _, (name, arguments) in sorted(calls.items())], finish[0]
    if path == "/v1/messages":
        blocks = {}
        for event in found:
            if event["type"] == "content_block_start":
                blocks[event["index"]] = [event["content_block"]["type"], "", event["content_block"].get("name")]
            if event["type"] == "content_block_delta":
                blocks[event["index"]][1] += next(v for k, v in event["delta"].items() if k != "type")
        join = lambda kind: "".join(text for one, text, _ in blocks.values() if one == kind)
        return (join("text"), join("thinking"), [(name, json.loads(text or "{}")) for one, text, name in blocks.values() if one == "tool_use"],
                next(e["delta"]["stop_reason"] for e in found if e["type"] == "message_delta"))
    return whole(path, found[-1]["response"])


@pytest.mark.parametrize("path", APIS)
def test_a_stream_says_what_the_whole_answer_says_at_every_length(up, path):
    for text in ("two parts", "hello"):
        for length in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89):
            body = {**APIS[path], LIMIT[path]: length}
            body.update({"input": text} if path == "/v1/responses" else {"messages": [{"role": "user", "content": text}]})
            one = whole(path, ask(up.url, path, body).json())
            two = streamed(path, data(ask(up.url, path, {**body, "stream": True})))
            assert one == two, (path, text, length)
            cut = {"/v1/chat/completions": "length", "/v1/messages": "max_tokens", "/v1/responses": "incomplete"}[path]
            assert text == "hello" or length > 60 or one[3] == cut, (length, one)


@pytest.mark.parametrize("path", APIS)
def test_two_calls_and_reasoning_that_ends_with_them(up, path):
    assert whole(path, ask(up.url, path, APIS[path]).json())[:3] == ("", "Write.", [("get_weather", {"city": "A"}), ("get_weather", {"city": "B"})])


def test_several_choices_have_one_finish_each(up):
    found = data(ask(up.url, "/v1/chat/completions", {**CHAT, "n": 2, "max_tokens": 3, "stream": True}))
    finishes = [choice["index"] for chunk in found for choice in chunk["choices"] if choice["finish_reason"]]
    assert sorted(finishes) == [0, 1]


def test_a_stop_string_is_never_sent(up):
    body = {"model": "default", "messages": [{"role": "user", "content": "own fox"}], "stop": ["own fox"], "tools": [WEATHER]}
    one = whole("/v1/chat/completions", ask(up.url, "/v1/chat/completions", body).json())
    assert one == streamed("/v1/chat/completions", data(ask(up.url, "/v1/chat/completions", {**body, "stream": True}))) and one[0].strip() == "the quick"


def test_usage_comes_once_and_without_choices(up):
    found = events(ask(up.url, "/v1/chat/completions", {**CHAT, "stream": True, "stream_options": {"include_usage": True}}).body)
    assert found[-1] == "[DONE]" and found[-2]["choices"] == [] and found[-2]["usage"]["total_tokens"] > 0
    assert all(chunk["usage"] is None for chunk in found[:-2])


def test_history_may_name_tools_that_are_not_offered_and_keep_broken_arguments(up):
    history = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "parsed": None, "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "invalid", "arguments": '{"broken', "parsed_arguments": None}}]},
        {"role": "tool", "tool_call_id": "a", "content": "18 degrees"}]
    assert ask(up.url, "/v1/chat/completions", {**CHAT, "messages": history}).json()["choices"][0]["message"]["content"] == "Done."


def test_arguments_that_come_back_respelled_are_the_same_prompt(up):
    def count(arguments, content):
        history = [{"role": "user", "content": "x"}, {"role": "assistant", "content": content, "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}]}, {"role": "tool", "tool_call_id": "a", "content": "y"}]
        return request(up.url, "POST", "/tokenize", {"messages": history, "tools": [WEATHER]}).json()["tokens"]

    assert count('{"a": "b\\/c", "d": 1}', "") == count('{"a":"b/c","d":1}', None)


def test_reasoning_comes_back_under_either_name(up):
    def count(name):
        history = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", name: "thoughts"}, {"role": "user", "content": "z"}]
        return request(up.url, "POST", "/tokenize", {"messages": history}).json()["tokens"]

    assert count("reasoning") == count("reasoning_content") != count("other")


def test_the_prefix_of_a_finished_turn_is_cached_for_the_next(up):
    long = " ".join(f"word{i}" for i in range(200))
    body = {**CHAT, "messages": [{"role": "user", "content": long}], "max_tokens": 4}
    ask(up.url, "/v1/chat/completions", body)
    usage = ask(up.url, "/v1/chat/completions", {"max_tokens": 30, **{k: v for k, v in body.items() if k != "max_tokens"}}).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > usage["prompt_tokens"] * 0.8


def test_a_body_may_be_indented_and_name_unknown_fields(up):
    text = json.dumps({**MESSAGES, "context_management": {"edits": []}, "never_heard_of": {"a": 1}, "thinking": {"type": "adaptive"},
                       "output_config": {"effort": "high"}}, indent=2)
    assert request(up.url, "POST", "/v1/messages", text.encode()).status == 200
    assert request(up.url, "POST", "/v1/messages", {**MESSAGES, "thinking": {"type": "enabled", "budget_tokens": 32000}}).status == 200


def test_a_websocket_is_declined_at_once(up):
    assert request(up.url, "GET", "/v1/responses", headers={"Upgrade": "websocket", "openai-beta": "responses_websockets=2026-02-06"}).status == 426
    assert request(up.url, "HEAD", "/").status == 200


@pytest.mark.parametrize("path", APIS)
def test_what_cannot_succeed_is_a_400(up, path):
    body = {**APIS[path], "input": "word " * 6000} if path == "/v1/responses" else {**APIS[path], "messages": [{"role": "user", "content": "word " * 6000}]}
    reply = request(up.url, "POST", path, body)
    assert reply.status == 400 and "maximum context length is" in reply.json()["error"]["message"] and reply.json()["error"]["code"] == "context_length_exceeded"
