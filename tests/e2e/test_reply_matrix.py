"""One answer in two forms: for every API, tool_choice, number of choices and length, what a stream says put together is the whole answer, field by field.

`tandem up` with a scripted model (one server for all); then demanded calls of a real model in its family's syntax, kept to their schemas."""

import copy
import itertools
import json

import jsonschema
import pytest

from agent_scripts import CLOCK, TEMPLATE, WEATHER, call, function, think
from servers import events, request

pytestmark = pytest.mark.quick

REPLIES = [
    {"when": "mixed", "reply": think("Both.") + "Let me see.\n" + call("get_weather", city="Zürich") + "\n" + call("get_weather", city="B", unit="c")},
    {"when": "calls", "reply": call("get_weather", city="東京 ☕") + "\n" + call("get_weather", city="B", unit="c")},
    {"when": "prose", "reply": "All is well, thank you.\nAnd you?"},
]
TOOLS = [WEATHER, CLOCK]
LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 200)
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
CHOICES = {CHAT: {"auto": "auto", "none": "none", "required": "required", "named": {"type": "function", "function": {"name": "get_weather"}}},
           RESPONSES: {"auto": "auto", "none": "none", "required": "required", "named": {"type": "function", "name": "get_weather"}},
           MESSAGES: {"auto": {"type": "auto"}, "none": {"type": "none"}, "required": {"type": "any"}, "named": {"type": "tool", "name": "get_weather"}}}


def body_of(path, text, choice, length, tools=None, **more):
    tools = tools or TOOLS
    if path == RESPONSES:
        made = {"input": text, "tools": [{"type": "function", **t["function"]} for t in tools], "max_output_tokens": length}
    else:
        made = {"messages": [{"role": "user", "content": text}], "tools": tools, "max_tokens": length}
    if path == MESSAGES:
        made["tools"] = [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"], "strict": t["function"].get("strict", False)} for t in tools]
    return {"model": "default", "tool_choice": CHOICES[path][choice], "temperature": 0, **made, **more}


def of_chat(found):
    """The chunks of a chat as the object that is not streamed."""
    assert found[-1] == "[DONE]"
    chunks = found[:-1]
    made = {**copy.deepcopy(chunks[0]), "object": "chat.completion", "choices": [], "usage": chunks[-1]["usage"]}
    assert chunks[-1]["choices"] == [] and all(chunk["usage"] is None for chunk in chunks[:-1])
    choices = {}
    for chunk in chunks:
        assert {key: chunk[key] for key in ("id", "created", "model", "system_fingerprint")} == {key: made[key] for key in ("id", "created", "model", "system_fingerprint")}
        for part in chunk["choices"]:
            one = choices.setdefault(part["index"], {"index": part["index"], "message": {"role": None, "content": "", "refusal": None, "annotations": []},
                                                     "logprobs": None, "finish_reason": None, "stop_reason": None})
            message, delta = one["message"], part["delta"]
            assert one["finish_reason"] is None, "nothing follows the finish"
            one["finish_reason"], one["stop_reason"] = part["finish_reason"], part.get("stop_reason")
            message["role"] = delta.get("role", message["role"])
            message["content"] += delta.get("content") or ""
            if delta.get("reasoning_content"):
                message["reasoning_content"] = message.get("reasoning_content", "") + delta["reasoning_content"]
            for some in delta.get("tool_calls", []):
                calls = message.setdefault("tool_calls", [])
                if some["index"] == len(calls):
                    calls.append({"id": some["id"], "type": some["type"], "function": {"name": some["function"]["name"], "arguments": ""}})
                calls[some["index"]]["function"]["arguments"] += some["function"]["arguments"]
    made["choices"] = [choices[index] for index in sorted(choices)]
    for one in made["choices"]:
        if not one["message"]["content"] and one["message"].get("tool_calls"):
            one["message"]["content"] = None
    return made


def of_messages(found):
    """The events of a message as the object that is not streamed."""
    made, blocks = None, []
    for event in found:
        kind = event["type"]
        if kind == "message_start":
            made = event["message"]
        elif kind == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append({**event["content_block"]})
        elif kind == "content_block_delta":
            block, delta = blocks[-1], event["delta"]
            key = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature", "input_json_delta": "json"}[delta["type"]]
            block[key] = block.get(key, "") + next(value for name, value in delta.items() if name != "type")
        elif kind == "message_delta":
            made = {**made, **event["delta"], "usage": {**made["usage"], **event["usage"]}}
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block.pop("json", "") or "{}")
    assert found[-1]["type"] == "message_stop"
    return {**made, "content": blocks}


ASSEMBLE = {CHAT: of_chat, MESSAGES: of_messages, RESPONSES: lambda found: found[-1]["response"]}


def scrubbed(value):
    """Without what no two answers share: ids keep their kind, times vanish, nor how much of the prompt was cached."""
    if isinstance(value, dict):
        return {key: value[key].split("_")[0].split("-")[0] if key in ("id", "call_id") and isinstance(value[key], str)
                else None if key in ("created", "created_at", "cached_tokens", "cache_read_input_tokens", "input_tokens") else scrubbed(value[key])
                for key in value}
    return [scrubbed(one) for one in value] if isinstance(value, list) else value


def both(url, path, body):
    """(the whole answer, what the stream says put together), scrubbed."""
    one = request(url, "POST", path, body)
    assert one.status == 200, one.body
    options = {"stream_options": {"include_usage": True}} if path == CHAT else {}
    two = request(url, "POST", path, {**body, "stream": True, **options})
    assert two.status == 200, two.body
    found = [event for block in two.body.decode().split("\n\n") for line in block.split("\n") if line.startswith("data: ")
             for event in [line[6:]]]
    found = [event if event == "[DONE]" else json.loads(event) for event in found]
    return scrubbed(one.json()), scrubbed(ASSEMBLE[path](found))


def calls_of(path, made):
    if path == CHAT:
        return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for one in made["choices"] for c in one["message"].get("tool_calls", [])]
    if path == MESSAGES:
        return [(b["name"], b["input"]) for b in made["content"] if b["type"] == "tool_use"]
    return [(item["name"], json.loads(item["arguments"])) for item in made["output"] if item["type"] == "function_call"]


def ended(path, made):
    return [one["finish_reason"] for one in made["choices"]] if path == CHAT else [made["stop_reason" if path == MESSAGES else "status"]]


@pytest.fixture(scope="module")
def scripted(module_launch, write_script, tmp_path_factory):
    script = write_script(tmp_path_factory.mktemp("script"), REPLIES, chat_template=TEMPLATE)
    return module_launch("scripted", "up", script, "--port", "0").wait_ready()


@pytest.mark.parametrize("choice", ["auto", "none", "required", "named"])
@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_a_stream_put_together_is_the_whole_answer(scripted, path, choice):
    forced = choice in ("required", "named")
    for text, length, n in itertools.product(("calls",) if forced else ("mixed", "calls", "prose"), LENGTHS, (1, 2) if path == CHAT else (1,)):
        body = body_of(path, text, choice, length, **({"n": n} if n > 1 else {}))
        one, two = both(scripted.url, path, body)
        assert one == two, (text, length, n)
        calls = calls_of(path, one)
        if choice == "none" or text == "prose":
            assert calls == []
        if length == 200 and choice != "none" and text != "prose":
            assert len(calls) == (1 if choice == "named" else 2) * n, one
        kinds = {CHAT: {"stop", "length", "tool_calls"}, RESPONSES: {"completed", "incomplete"}, MESSAGES: {"end_turn", "max_tokens", "tool_use"}}[path]
        assert set(ended(path, one)) <= kinds
        if length < 5:
            assert set(ended(path, one)) <= {"length", "incomplete", "max_tokens"}, one


def test_one_call_when_more_are_not_wanted(scripted):
    for path, more in ((CHAT, {"parallel_tool_calls": False}), (RESPONSES, {"parallel_tool_calls": False}),
                       (MESSAGES, {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}})):
        for text, choice in (("mixed", "auto"), ("calls", "required")):
            if path == MESSAGES and choice == "auto":
                continue
            one, two = both(scripted.url, path, body_of(path, text, choice, 200, **more))
            assert one == two and len(calls_of(path, one)) == 1


PLAN = function("plan", {"city": {"type": "string", "maxLength": 12}, "days": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9},
                                                                              "minItems": 1, "maxItems": 3},
                         "note": {"type": ["string", "null"], "maxLength": 5}}, ["city", "days", "note"], strict=True)
PLAN["function"]["parameters"]["additionalProperties"] = False
SPOKEN = {"grammar": {"syntax": "lark", "definition": 'start: VERB " " DIGIT~1..3 LF\nVERB: "add" | "drop"\n%import common.DIGIT\n%import common.LF\n'},
          "regex": {"syntax": "regex", "definition": "[a-c]{3}\"[0-9]\\\\"}}


def test_demanded_calls_of_a_real_model(up):
    """Greedy: so both forms are of the same tokens."""
    for path in (CHAT, RESPONSES, MESSAGES):
        for length in (9, 120):
            one, two = both(up.url, path, body_of(path, "Plan a trip to Rome.", "required", length, tools=[PLAN]))
            assert one == two, (path, length)
            calls = calls_of(path, one)
            assert length == 9 or calls, one
            for name, arguments in calls:
                assert name == "plan"
                jsonschema.validate(arguments, PLAN["function"]["parameters"])


def test_custom_tools_keep_to_their_own_grammar(up):
    """Lark and regular expressions, in chat and in Responses, whole and streamed."""
    import re
    for kind, pattern in (("grammar", r"(add|drop) [0-9]{1,3}\n"), ("regex", r"[a-c]{3}\"[0-9]\\")):
        chat_tool = {"type": "custom", "custom": {"name": "exec", "format": {"type": "grammar", "grammar": SPOKEN[kind]}}}
        body = {"model": "default", "temperature": 0, "max_tokens": 60, "messages": [{"role": "user", "content": "add 5"}], "tools": [chat_tool],
                "tool_choice": {"type": "custom", "custom": {"name": "exec"}}}
        made = request(up.url, "POST", CHAT, body)
        assert made.status == 200, made.body
        (one,) = made.json()["choices"][0]["message"]["tool_calls"]
        assert one["type"] == "custom" and one["custom"]["name"] == "exec" and re.fullmatch(pattern, one["custom"]["input"]), one
        parts = [part for event in events(request(up.url, "POST", CHAT, {**body, "stream": True}).body) if event != "[DONE]"
                 for choice in event["choices"] for part in choice["delta"].get("tool_calls", [])]
        assert parts[0]["type"] == "custom" and "".join(part["custom"]["input"] for part in parts) == one["custom"]["input"]
        body = {"model": "default", "temperature": 0, "max_output_tokens": 60, "input": "add 5", "tools": [
            {"type": "custom", "name": "exec", "format": {"type": "grammar", **SPOKEN[kind]}}], "tool_choice": {"type": "custom", "name": "exec"}}
        one, two = both(up.url, RESPONSES, body)
        (item,) = one["output"]
        assert one == two and item["type"] == "custom_tool_call" and re.fullmatch(pattern, item["input"]), one


@pytest.mark.parametrize("definition", ["start: missing", "start: \"a", "start: " + "(" * 60000, "%ignore WS\nstart: \"a\""], ids=["name", "text", "deep", "ignore"])
def test_a_custom_tools_grammar_that_is_none_is_a_400_that_says_where(scripted, definition):  # row 36
    spoken = {"type": "grammar", "syntax": "lark", "definition": definition}
    reply = request(scripted.url, "POST", RESPONSES, {"model": "default", "input": "x", "tools": [{"type": "custom", "name": "exec", "format": spoken}]})
    assert reply.status == 400 and reply.json()["error"]["param"] == "tools[0].format.definition", reply.body[:500]
    chat_tool = {"type": "custom", "custom": {"name": "exec", "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": definition}}}}
    reply = request(scripted.url, "POST", CHAT, {"model": "default", "messages": [{"role": "user", "content": "x"}], "tools": [chat_tool]})
    assert reply.status == 400 and reply.json()["error"]["param"] == "tools[0].custom.format.grammar.definition", reply.body[:500]
