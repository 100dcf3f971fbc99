"""Reported bugs of comparable servers, section C: structured output. Grammars that are wrong, deep or slow are a 400; what is answered is valid."""

import json
import time

import jsonschema
import pytest

from agent_scripts import TEMPLATE, function
from servers import chat, request

pytestmark = pytest.mark.quick

SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "array", "items": {"type": "integer", "minimum": 0,
          "maximum": 9}, "minItems": 1, "maxItems": 3}, "note": {"type": ["string", "null"], "maxLength": 5}}, "required": ["city", "days", "note"],
          "additionalProperties": False}


@pytest.fixture(scope="module")
def up(module_launch, write_script, tmp_path_factory):
    """No reply fits any text here: what is generated is noise, and only the grammar makes it valid."""
    script = write_script(tmp_path_factory.mktemp("script"), [], noise=10, chat_template=TEMPLATE)
    return module_launch("up", "up", script, "--port", "0").wait_ready()


def ask(url, schema, strict=False, **options):
    # Noise would never end its reasoning.
    options = {"chat_template_kwargs": {"enable_thinking": False}, **options}
    return chat(url, "x", response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema, "strict": strict}}, max_tokens=300, **options)


@pytest.mark.parametrize("stream", [False, True])
def test_answers_follow_their_schema(up, stream):
    for seed in range(4):
        reply = ask(up.url, SCHEMA, True, seed=seed, stream=stream)
        assert reply.status == 200, reply.body
        if stream:
            text = "".join(choice["delta"].get("content") or "" for line in reply.body.decode().split("\n") if line.startswith("data: {")
                           for choice in json.loads(line[6:])["choices"])
        else:
            text = reply.json()["choices"][0]["message"]["content"]
        jsonschema.validate(json.loads(text), SCHEMA)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "plan"}}])
def test_calls_that_are_demanded_come_and_are_valid(up, choice):
    tools = [function("plan", SCHEMA["properties"], SCHEMA["required"], strict=True), function("other", {"a": {"type": "integer", "maximum": 99}}, ["a"])]
    tools[0]["function"]["parameters"]["additionalProperties"] = False
    tools[1]["function"]["parameters"]["additionalProperties"] = False
    for seed in range(3):
        for stream in (False, True):
            reply = chat(up.url, "x", tools=tools, tool_choice=choice, parallel_tool_calls=False, seed=seed, max_tokens=400,
                         chat_template_kwargs={"enable_thinking": False}, stream=stream)
            assert reply.status == 200, reply.body
            if stream:
                continue
            made = reply.json()["choices"][0]
            assert made["finish_reason"] == "tool_calls" and len(made["message"]["tool_calls"]) == 1 and made["message"]["content"] is None, made
            call = made["message"]["tool_calls"][0]["function"]
            assert choice == "required" or call["name"] == "plan"
            jsonschema.validate(json.loads(call["arguments"]), next(t for t in tools if t["function"]["name"] == call["name"])["function"]["parameters"])


@pytest.mark.parametrize("schema", [{"type": "hiccup"}, {"type": 123}, {"type": "string", "pattern": "foo**"}, {"type": "string", "pattern": "(" * 5000},
                                    {"not": {"type": "string"}}], ids=str)
def test_what_is_no_schema_is_a_400(up, schema):
    reply = ask(up.url, schema, True)
    assert reply.status == 400 and reply.json()["error"]["param"].startswith("response_format.json_schema.schema"), reply.body


def test_lists_of_items_by_place(up):
    reply = ask(up.url, {"type": "array", "items": [{"type": "integer", "maximum": 9}, {"type": "boolean"}], "additionalItems": False})
    assert reply.status in (200, 400) and (reply.status == 200 or "items" in reply.json()["error"]["message"]), reply.body


def test_fan_out_and_cycles_hold_nobody_up(up):
    fan = {"type": "integer"}
    for _ in range(20):
        fan = {"anyOf": [fan, {"type": "array", "items": fan}]}
    began = time.monotonic()
    assert ask(up.url, {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}).status == 400
    assert ask(up.url, {"type": "object", "properties": {"x": {"$ref": "#"}}, "additionalProperties": False}, seed=1).status == 200
    body = json.dumps({"model": "default", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "response_format": {
        "type": "json_schema", "json_schema": {"name": "s", "schema": {"$defs": {"n": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/n"}}]}},
                                                                       "$ref": "#/$defs/n"}}}})
    assert request(up.url, "POST", "/v1/chat/completions", body.encode()).status == 200
    assert time.monotonic() - began < 20
    assert request(up.url, "GET", "/health").status == 200
