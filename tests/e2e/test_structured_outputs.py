"""Formats of answers beyond response_format, what a reply says of approximations, and requests that mean harm: `tandem up`, a pair behind its router."""

import concurrent.futures
import json
import re
import time

import anthropic
import jsonschema
import openai
import pytest

from agent_scripts import TEMPLATE, call, function
from servers import events, request

pytestmark = pytest.mark.quick

REPLIES = [{"when": "two calls", "reply": call("get", q="a STOP b") + "\n" + call("get", q="c")}]
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
OFF = {"enable_thinking": False}
OVERLAPPING = {"oneOf": [{"type": "integer", "maximum": 99}, {"type": "integer", "minimum": 2, "maximum": 50}]}
SCHEMA = {"type": "object", "properties": {"n": OVERLAPPING}, "required": ["n"], "additionalProperties": False}
GET = {"type": "object", "properties": {"q": {"type": "string", "maxLength": 20}}, "required": ["q"], "additionalProperties": False}


@pytest.fixture(scope="module")
def up(module_launch, write_script, tmp_path_factory):
    """Where no reply fits what is generated is noise, and only the grammar makes it valid."""
    script = write_script(tmp_path_factory.mktemp("script"), REPLIES, noise=10, chat_template=TEMPLATE)
    return module_launch("up", "up", script, "--port", "0").wait_ready()


FORMATS = [({"structured_outputs": {"regex": r"[ab]{3}.\d"}}, r"[ab]{3}.\d"), ({"guided_regex": "x{2,4}"}, "x{2,4}"), ({"regex": "[0-9]{2}"}, "[0-9]{2}"),
           ({"structured_outputs": {"choice": ["red", "dark green"]}}, "red|dark green"), ({"guided_choice": ["yes", "no"]}, "yes|no"),
           ({"structured_outputs": {"grammar": 'start: "(" [start] ")" D~1..2\nD: /[0-4]/'}}, r"[()0-4]+"), ({"guided_grammar": 'start: "a" | "b" "c"'}, "a|bc"),
           ({"grammar": 'root ::= "k" [0-9]{2} "."?'}, r"k[0-9]{2}\.?"), ({"ebnf": 'root ::= ("u" | "v")+ "!"'}, "[uv]+!"),
           ({"structured_outputs": {"json": SCHEMA}}, None), ({"guided_json": json.dumps(SCHEMA)}, None), ({"json_schema": SCHEMA}, None),
           ({"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}}, None)]


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_answers_follow_formats_as_other_servers_name_them(up, path):
    for fields, pattern in FORMATS:
        body = {"model": "default", "max_tokens": 200, "seed": 3, **fields}
        body |= {"prompt": "x"} if path != CHAT else {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": OFF}
        reply = request(up.url, "POST", path, body)
        assert reply.status == 200, (fields, reply.body)
        choice = reply.json()["choices"][0]
        text = choice["text"] if path != CHAT else choice["message"]["content"]
        if pattern is None:
            jsonschema.validate(json.loads(text), {**SCHEMA, "properties": {"n": {"type": "integer", "maximum": 99}}})
            assert "oneOf is read as anyOf" in reply.json()["tandem_notes"][0], reply.body
        elif choice["finish_reason"] == "stop":
            assert re.fullmatch(pattern, text), (fields, text)
            assert "tandem_notes" not in reply.json()
        streamed = events(request(up.url, "POST", path, {**body, "stream": True}).body)
        parts = [c.get("text") or (c.get("delta") or {}).get("content") or "" for event in streamed[:-1] for c in event["choices"]]
        assert "".join(parts) == text
        assert [i for i, event in enumerate(streamed[:-1]) if "tandem_notes" in event] == ([0] if pattern is None else [])


@pytest.mark.parametrize("fields, param", [({"regex": "a**"}, "regex"), ({"grammar": "root ::= missing"}, "grammar"), ({"guided_choice": [1]}, "guided_choice[0]"),
                                           ({"structured_outputs": {"grammar": "start: ("}}, "structured_outputs.grammar"),
                                           ({"structured_outputs": {"json_object": "true"}}, "structured_outputs.json_object"),
                                           ({"structured_outputs": {"regexp": "a"}}, "structured_outputs"),
                                           ({"regex": "a", "response_format": {"type": "json_object"}}, "")], ids=str)
def test_what_is_no_format_is_a_400(up, fields, param):
    reply = request(up.url, "POST", CHAT, {"model": "default", "messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": OFF, **fields})
    assert reply.status == 400 and reply.json()["error"]["param"].startswith(param), reply.body


@pytest.mark.parametrize("definition", ["start: <|im_end|>", "start: %json {}", "root ::= <|im_end|>", "root ::= <[0]>"])
def test_grammars_of_requests_name_no_special_tokens_and_no_schemas(up, definition):
    """Whether the answer is the whole reply (completions) or a part of it (chat, after reasoning)."""
    for path, more in ((CHAT, {"messages": [{"role": "user", "content": "x"}]}), (CHAT, {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": OFF}),
                       ("/v1/completions", {"prompt": "x"})):
        reply = request(up.url, "POST", path, {"model": "default", "max_tokens": 9, "guided_grammar": definition, **more})
        assert reply.status == 400 and reply.json()["error"]["param"] == "guided_grammar", (path, reply.body)
        assert reply.json()["error"]["code"] == "unsupported_grammar", reply.body


def test_replies_say_what_was_approximated_to_real_clients(up):
    chat = openai.OpenAI(base_url=up.url + "/v1", api_key="unused", max_retries=0)
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
    options = {"model": "default", "messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 100, "extra_body": {"chat_template_kwargs": OFF}}
    whole = chat.chat.completions.create(response_format=form, **options)
    (note,) = whole.model_extra["tandem_notes"]
    assert note.startswith("/response_format/json_schema/schema/properties/n/oneOf is read as anyOf")
    first = next(iter(chat.chat.completions.create(response_format=form, stream=True, **options)))
    assert first.model_extra["tandem_notes"] == [note]
    assert "tandem_notes" not in (chat.chat.completions.create(**options).model_extra or {})
    form["json_schema"]["strict"] = True
    with pytest.raises(openai.BadRequestError) as refused:
        chat.chat.completions.create(response_format=form, **options)
    assert refused.value.param == "response_format.json_schema.schema.properties.n.oneOf"

    options = {"model": "default", "input": "x", "reasoning": {"effort": "none"}, "max_output_tokens": 100,
               "text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}}}
    (note,) = chat.responses.create(**options).model_extra["tandem_notes"]
    assert note.startswith("/text/format/schema/properties/n/oneOf")
    told = [event.response.model_extra.get("tandem_notes") for event in chat.responses.create(stream=True, **options) if hasattr(event, "response")]
    assert told and all(one == [note] for one in told)

    claude = anthropic.Anthropic(base_url=up.url, api_key="unused", max_retries=0)
    # Not strict: what cannot be enforced is not, and the reply says which.
    tool = {"name": "get", "input_schema": {**GET, "not": {"required": ["z"]}}}
    options = {"model": "default", "max_tokens": 200, "messages": [{"role": "user", "content": "x"}], "thinking": {"type": "disabled"}, "tools": [tool],
               "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    (note,) = claude.messages.create(**options).model_extra["tandem_notes"]
    assert note.startswith("/tools/0/input_schema/not is not enforced")
    with claude.messages.stream(**options) as stream:
        assert stream.get_final_message().model_extra["tandem_notes"] == [note]


def hostile():
    deep = {"type": "null"}
    for _ in range(400):
        deep = {"type": "array", "items": deep}
    wide = {"type": "object", "properties": {f"p{i}": {"type": "string", "pattern": f"^a{{{i}}}(b|c)*$"} for i in range(1500)}}
    return {"deep": deep, "enum": {"enum": [f"value {i * 7919}" for i in range(20000)]}, "wide": wide,
            "exponent": {"type": "string", "pattern": "^(a|a)*(a|aa)*(a?){200}a{200}$"}, "product": {"type": "string", "pattern": "^((a{1,200}b?){1,200}c?){1,200}$"},
            "all": {"allOf": [{"type": "string", "pattern": f"(x.{{{n}}}y|z)"} for n in range(2, 60)]},
            "defs": {"$ref": "#/$defs/a0", "$defs": {f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}, {"type": "array", "items": {"$ref": f"#/$defs/a{i // 2}"}}]}
                                                     for i in range(300)} | {"a300": {"type": "null"}}},
            "one": {"oneOf": [{"type": "object", "properties": {"k": {"const": i}}, "required": ["k"]} for i in range(300)]},
            "bounds": {"type": "object", "patternProperties": {f"^k{i}": {"type": "integer", "multipleOf": 7 + i} for i in range(12)}, "minProperties": 900},
            "number": {"type": "number", "minimum": -1e308, "maximum": 1e308, "multipleOf": 0.001}}


def test_schemas_that_mean_harm_hold_nobody_up(up):
    """Each is refused or followed, in bounded time, while others are answered."""
    def ask(item):
        name, schema = item
        began = time.monotonic()
        reply = request(up.url, "POST", CHAT, {"model": "default", "messages": [{"role": "user", "content": "x"}], "max_tokens": 12, "chat_template_kwargs": OFF,
                                               "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}, timeout=60)
        return name, reply.status, time.monotonic() - began, reply.body[:200]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        running = pool.map(ask, hostile().items())
        for _ in range(10):
            assert request(up.url, "GET", "/health", timeout=5).status == 200
        done = list(running)
    assert all(status in (200, 400) and seconds < 30 for _, status, seconds, _ in done), done
    assert request(up.url, "POST", CHAT, {"model": "default", "messages": [{"role": "user", "content": "two calls"}]}).status == 200


def test_odd_names_of_tools_come_back_as_they_are(up):
    for name in ("a.b-c_D9", "mcp:search/web", "a \"b\n", "x" * 200, "caf\u00e9"):
        tools = [{"type": "function", "function": {"name": name, "strict": True, "parameters": GET}}]
        reply = request(up.url, "POST", CHAT, {"model": "default", "messages": [{"role": "user", "content": "x"}], "tools": tools, "tool_choice": "required",
                                               "parallel_tool_calls": False, "max_tokens": 400, "chat_template_kwargs": OFF})
        assert reply.status == 200, (name, reply.body)
        (made,) = reply.json()["choices"][0]["message"]["tool_calls"]
        assert made["function"]["name"] == name and set(json.loads(made["function"]["arguments"])) == {"q"}
    for name in ("",):
        tools = [{"type": "function", "function": {"name": name, "parameters": GET}}]
        reply = request(up.url, "POST", CHAT, {"model": "default", "messages": [{"role": "user", "content": "x"}], "tools": tools, "tool_choice": "required"})
        assert reply.status == 400, (name[:9], reply.body)


def test_a_stop_string_inside_a_call_leaves_no_part_of_it(up):
    tools = [function("get", GET["properties"], ["q"])]
    for stream in (False, True):
        for n in (1, 3):
            body = {"model": "default", "messages": [{"role": "user", "content": "two calls"}], "tools": tools, "temperature": 0, "stop": ["STOP"], "n": n, "stream": stream}
            found = request(up.url, "POST", CHAT, body)
            assert found.status == 200 and b"a STOP" not in found.body and b"tool_calls\":[" not in found.body, found.body
            chunks = [found.json()] if not stream else events(found.body)[:-1]
            assert sorted((c["index"], c["finish_reason"]) for chunk in chunks for c in chunk["choices"] if c["finish_reason"]) == [(i, "stop") for i in range(n)]
    body = {"model": "default", "max_tokens": 200, "messages": [{"role": "user", "content": "two calls"}], "temperature": 0, "stop_sequences": ["STOP"],
            "tools": [{"name": "get", "input_schema": GET}]}
    made = request(up.url, "POST", MESSAGES, body).json()
    assert made["stop_reason"] == "stop_sequence" and made["stop_sequence"] == "STOP" and not [b for b in made["content"] if b["type"] == "tool_use"], made
