"""OpenAI's Responses dialect: `tandem up` with a scripted model and the real `openai` client, whole and streamed."""

import json

import openai
import pytest

from agent_scripts import TEMPLATE, call, think
from servers import SECRET, Cluster, connect, request

pytestmark = pytest.mark.quick

REPLIES = [
    {"when": "18 degrees", "reply": "It is 18 degrees."},
    {"when": "think first", "reply": think("The user wants Paris.") + "Let me look.\n" + call("get_weather", city="Paris") + "\n" + call("fs__read", path="/a")},
    {"when": "custom one", "reply": call("exec", input="ls -l\n\"x\"")},
    {"when": "second turn", "reply": "You said fact-first."},
    {"when": "count to", "reply": "one two three four five six seven eight"},
    {"when": "not a number", "reply": "x", "nan_at": 0},
    {"reply": "Hello."},
]
TOOLS = [{"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}, "strict": False},
         {"type": "namespace", "name": "fs", "description": "files", "tools": [
             {"type": "function", "name": "read", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}]},
         {"type": "custom", "name": "exec", "description": "a shell", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /(.|\\n)*/"}},
         {"type": "web_search", "external_web_access": True}, {"type": "never heard of", "x": 1}]


@pytest.fixture(scope="module")
def up(module_launch, write_script, tmp_path_factory):
    script = write_script(tmp_path_factory.mktemp("script"), REPLIES, chat_template=TEMPLATE)
    return module_launch("up", "up", script, "--port", "0").wait_ready()


@pytest.fixture(scope="module")
def client(up):
    return openai.OpenAI(base_url=up.url + "/v1", api_key="unused", max_retries=0, timeout=60)


def ask(client, input, stream, **options):
    options = {"model": "default", "input": input, "tools": TOOLS, **options}
    if not stream:
        return client.responses.create(**options)
    final = None
    for event in client.responses.create(stream=True, **options):
        if event.type in ("response.completed", "response.incomplete", "response.failed"):
            assert final is None
            final = event.response
    return final


def shape(response):
    out = []
    for item in response.output:
        if item.type == "message":
            out.append(("message", item.content[0].text))
        elif item.type == "reasoning":
            out.append(("reasoning", item.content[0].text))
        elif item.type == "custom_tool_call":
            out.append(("custom", item.name, item.input))
        else:
            out.append(("call", getattr(item, "namespace", None), item.name, json.loads(item.arguments)))
    return out


@pytest.mark.parametrize("stream", [False, True])
def test_items(client, stream):
    made = ask(client, "think first", stream)
    assert shape(made) == [("reasoning", "The user wants Paris."), ("message", "Let me look."), ("call", None, "get_weather", {"city": "Paris"}),
                           ("call", "fs", "read", {"path": "/a"})]
    assert made.status == "completed" and made.error is None and made.usage.total_tokens == made.usage.input_tokens + made.usage.output_tokens
    assert made.usage.output_tokens_details.reasoning_tokens > 0
    assert shape(ask(client, "custom one", stream)) == [("custom", "exec", 'ls -l\n"x"')]


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_loop_over_items(client, stream):
    made = ask(client, [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": [{"type": "input_text", "text": "think first"}]}], stream,
               store=False, include=["reasoning.encrypted_content"])
    calls = [item for item in made.output if item.type == "function_call"]
    assert made.output[0].encrypted_content
    items = [{"role": "user", "content": "think first"}] + [item.model_dump(exclude_none=True) for item in made.output]
    items += [{"type": "function_call_output", "call_id": calls[0].call_id, "output": "18 degrees"},
              {"type": "function_call_output", "call_id": calls[1].call_id, "output": [{"type": "input_text", "text": "text"}]},
              {"type": "configuration_update", "whatever": {}}, {"type": "never heard of"}]
    made = ask(client, items, stream, store=False)
    assert shape(made) == [("message", "It is 18 degrees.")]


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_goes_on_from_a_response(client, stream):
    first = ask(client, "remember fact-first please", stream, instructions="Be brief.")
    second = ask(client, "second turn", stream, previous_response_id=first.id)
    assert shape(second) == [("message", "You said fact-first.")] and second.previous_response_id == first.id
    third = ask(client, "second turn", stream, previous_response_id=second.id)
    assert third.usage.input_tokens > second.usage.input_tokens > first.usage.input_tokens - 10
    assert client.responses.retrieve(second.id).output[0].content[0].text == "You said fact-first."
    assert client.responses.input_items.list(second.id).data[0].content == "second turn"
    client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(second.id)
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, "x", stream, previous_response_id=second.id)
    assert refused.value.code == "previous_response_not_found"


def test_what_is_not_to_be_kept_is_not(client):
    made = ask(client, "hello", False, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_each_router_keeps_its_own_responses(module_launch, write_script, tmp_path_factory):
    """Several routers before the same workers: a session stays on one of them, or the client sends the whole conversation."""
    script = write_script(tmp_path_factory.mktemp("routers"), REPLIES, chat_template=TEMPLATE)
    cluster = Cluster(module_launch, script, prefill=0, decode=0, unified=1)
    second = module_launch("router", "router", "--worker", cluster.workers[0].url, "--port", "0", "--response-store", "12K", env={"TANDEM_SECRET": SECRET}).wait_ready()
    here, there = (openai.OpenAI(base_url=url + "/v1", api_key="unused", max_retries=0, timeout=60) for url in (cluster.url, second.url))
    first = ask(here, "remember fact-first please", False)
    assert shape(ask(here, "second turn", False, previous_response_id=first.id)) == [("message", "You said fact-first.")]
    with pytest.raises(openai.BadRequestError) as refused:
        ask(there, "second turn", False, previous_response_id=first.id)
    assert refused.value.code == "previous_response_not_found" and "whole conversation" in refused.value.message
    items = [{"role": "user", "content": "remember fact-first please"}, *[item.model_dump(exclude_none=True) for item in first.output]]
    assert shape(ask(there, [*items, {"role": "user", "content": "second turn"}], False)) == [("message", "You said fact-first.")]
    # A small store forgets the oldest.
    kept = [ask(there, f"hello {i} " + "x" * 2000, False) for i in range(3)]
    with pytest.raises(openai.NotFoundError):
        there.responses.retrieve(kept[0].id)
    assert there.responses.retrieve(kept[2].id).id == kept[2].id


def raw_events(url, body):
    connection = connect(url)
    connection.request("POST", "/v1/responses", json.dumps({"model": "default", "stream": True, **body}).encode(), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    assert reply.status == 200
    out = []
    for block in filter(None, reply.read().decode().split("\n\n")):
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        event = json.loads(lines["data"])
        assert event["type"] == lines["event"]
        out.append(event)
    connection.close()
    return out


@pytest.mark.parametrize("text", ["think first", "custom one", "hello"])
def test_events_come_in_order_with_stable_ids(up, text):
    events = raw_events(up.url, {"input": text, "tools": TOOLS})
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    assert [e["type"] for e in events[:2]] == ["response.created", "response.in_progress"] and events[-1]["type"] == "response.completed"
    final = events[-1]["response"]
    assert {e["response"]["id"] for e in events if "response" in e} == {final["id"]} and "tandem" not in events[-1]
    added = [e["item"]["id"] for e in events if e["type"] == "response.output_item.added"]
    done = {e["output_index"]: e["item"] for e in events if e["type"] == "response.output_item.done"}
    assert added == [item["id"] for item in final["output"]] and [done[i] for i in range(len(done))] == final["output"]
    for index, item in done.items():
        mine = [e for e in events if e.get("output_index") == index and "delta" in e.get("type", "").rsplit(".", 1)[-1]]
        assert all(e["item_id"] == item["id"] for e in mine)
        joined = "".join(e["delta"] for e in mine)
        told = {"message": lambda: item["content"][0]["text"], "reasoning": lambda: item["content"][0]["text"], "function_call": lambda: item["arguments"],
                "custom_tool_call": lambda: item["input"]}[item["type"]]()
        assert joined == told
        if item["type"] == "function_call":
            assert [e["arguments"] for e in events if e["type"] == "response.function_call_arguments.done" and e["output_index"] == index] == [told]


@pytest.mark.parametrize("stream", [False, True])
def test_length(client, stream):
    made = ask(client, "count to eight", stream, max_output_tokens=3)
    assert made.status == "incomplete" and made.incomplete_details.reason == "max_output_tokens" and made.output[0].status == "incomplete"


def test_failures(up, client):
    with pytest.raises(openai.InternalServerError):
        ask(client, "not a number", False)
    for body in ({"input": 5}, {"input": []}, {"input": "x", "background": True}, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}):
        reply = request(up.url, "POST", "/v1/responses", {"model": "default", **body})
        assert reply.status == 400 and reply.json()["error"]["code"], reply.body
    assert request(up.url, "GET", "/v1/responses").status == 426


def test_input_tokens(up, client):
    counted = request(up.url, "POST", "/v1/responses/input_tokens", {"model": "default", "input": "think first", "tools": TOOLS}).json()
    assert counted["input_tokens"] == ask(client, "think first", False).usage.input_tokens
