"""Anthropic's dialect: `tandem up` with a scripted model and the real `anthropic` client, whole and streamed."""

import json

import anthropic
import pytest

from agent_scripts import TEMPLATE, call, think
from servers import connect, request

pytestmark = pytest.mark.quick

REPLIES = [
    {"when": "18 degrees", "reply": "It is 18 degrees."},
    {"when": "think first", "reply": think("The user wants Paris.") + "Let me look.\n" + call("get_weather", city="Paris") + "\n" + call("get_time")},
    {"when": "count to", "reply": "one two three four five six seven eight"},
    {"when": "spy", "reply": "I see a billing line."},
    {"reply": "Hello."},
]
TOOLS = [{"name": "get_weather", "description": "Weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
         {"name": "get_time", "input_schema": {"type": "object", "properties": {}}},
         {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}]
KEY = "sk-test"


@pytest.fixture(scope="module")
def up(module_launch, write_script, tmp_path_factory):
    script = write_script(tmp_path_factory.mktemp("script"), REPLIES, chat_template=TEMPLATE)
    return module_launch("up", "up", script, "--port", "0", "--api-key", KEY).wait_ready()


@pytest.fixture(scope="module")
def client(up):
    return anthropic.Anthropic(base_url=up.url, api_key=KEY, max_retries=0, timeout=60)


def ask(client, messages, stream, **options):
    messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    options = {"model": "default", "max_tokens": 200, "messages": messages, "tools": TOOLS, **options}
    if not stream:
        return client.messages.create(**options)
    with client.messages.stream(**options) as made:
        return made.get_final_message()


def shape(message):
    return [(b.type, {"text": lambda: b.text, "thinking": lambda: b.thinking, "tool_use": lambda: (b.name, b.input)}[b.type]()) for b in message.content]


@pytest.mark.parametrize("stream", [False, True])
def test_blocks(client, stream):
    made = ask(client, "think first", stream)
    assert shape(made) == [("thinking", "The user wants Paris."), ("text", "Let me look."), ("tool_use", ("get_weather", {"city": "Paris"})),
                           ("tool_use", ("get_time", {}))]
    assert made.stop_reason == "tool_use" and made.role == "assistant" and made.type == "message" and made.id.startswith("msg_")
    assert made.usage.input_tokens > 0 and made.usage.output_tokens > 0
    assert len({b.id for b in made.content if b.type == "tool_use"}) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_loop(client, stream):
    made = ask(client, "think first", stream)
    calls = [b for b in made.content if b.type == "tool_use"]
    messages = [{"role": "user", "content": "think first"}, {"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in made.content]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": calls[0].id, "content": [{"type": "text", "text": "18 degrees"}]},
                                             {"type": "tool_result", "tool_use_id": calls[1].id, "content": "noon", "cache_control": {"type": "ephemeral"}}]}]
    made = ask(client, messages, stream)
    assert shape(made) == [("text", "It is 18 degrees.")] and made.stop_reason == "end_turn"


def raw_events(url, body):
    connection = connect(url)
    connection.request("POST", "/v1/messages?beta=true", json.dumps(body).encode(), {
        "Content-Type": "application/json", "x-api-key": KEY, "anthropic-version": "2026-10-21", "anthropic-beta": "claude-code-20250219,never-heard-of"})
    reply = connection.getresponse()
    assert reply.status == 200 and reply.getheader("content-type").startswith("text/event-stream")
    blocks = reply.read().decode().split("\n\n")
    connection.close()
    out = []
    for block in filter(None, blocks):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        if lines:
            event = json.loads(lines["data"])
            assert event["type"] == lines["event"]
            out.append(event)
    return out


def test_events_come_in_order(up):
    events = raw_events(up.url, {"model": "default", "max_tokens": 200, "stream": True, "tools": TOOLS, "messages": [{"role": "user", "content": "think first"}]})
    kinds = [e["type"] for e in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    start = events[0]["message"]
    assert start["type"] == "message" and start["content"] == [] and start["stop_reason"] is None
    end = events[-2]
    counted = end["usage"]
    assert start["usage"]["input_tokens"] == counted["input_tokens"] + counted["cache_read_input_tokens"] > 0
    assert end["delta"] == {"stop_reason": "tool_use", "stop_sequence": None} and counted["output_tokens"] > 0 and "tandem" not in end
    open_block = None
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            assert open_block is None
            open_block = event["index"]
        elif event["type"] == "content_block_stop":
            assert event["index"] == open_block
            open_block = None
        else:
            assert event["type"] == "content_block_delta" and event["index"] == open_block
    assert [e["content_block"]["type"] for e in events if e["type"] == "content_block_start"] == ["thinking", "text", "tool_use", "tool_use"]


def test_counts_are_what_the_next_call_bills(client):
    messages = [{"role": "user", "content": "think first"}]
    counted = client.messages.count_tokens(model="default", messages=messages, tools=TOOLS, system="Be brief.").input_tokens
    usage = ask(client, messages, False, system="Be brief.").usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens
    assert client.messages.count_tokens(model="default", messages=messages, tools=[]).input_tokens < counted


def count(url, **body):
    reply = request(url, "POST", "/v1/messages/count_tokens?beta=true", {"model": "default", "messages": [{"role": "user", "content": "x"}], **body}, {"x-api-key": KEY})
    assert reply.status == 200, reply.body
    return reply.json()["input_tokens"]


def test_what_differs_in_every_conversation_is_no_part_of_the_prompt(up):
    """A billing line; marks of the cache; a text in a block or plain."""
    line = {"type": "text", "text": "x-anthropic-billing-header: cc_version=1.abc; cc_entrypoint=cli;"}
    rule = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
    assert count(up.url, system=[line, rule]) == count(up.url, system=[rule]) == count(up.url, system="Be brief.")
    marked = [{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]}]
    assert count(up.url, messages=marked) == count(up.url)


def test_system_messages_may_stand_in_the_middle(client):
    messages = [{"role": "user", "content": "a"}, {"role": "system", "content": "agents: none"}, {"role": "assistant", "content": "b"},
                {"role": "user", "content": "c"}, {"role": "user", "content": "d"}]
    assert ask(client, messages, False).content[0].text == "Hello."


@pytest.mark.parametrize("stream", [False, True])
def test_length_and_stop_sequences(client, stream):
    made = ask(client, "count to eight", stream, max_tokens=3)
    assert made.stop_reason == "max_tokens"
    made = ask(client, "count to eight", stream, stop_sequences=["three"])
    assert made.stop_reason == "stop_sequence" and made.stop_sequence == "three" and made.content[0].text.strip() == "one two"


def test_errors_have_the_dialects_form(up, client):
    for body, status, kind in (({"model": "default", "messages": []}, 400, "invalid_request_error"), ({"model": "absent", "max_tokens": 1, "messages": [
            {"role": "user", "content": "x"}]}, 404, "not_found_error"), ({"model": "default", "max_tokens": 1, "messages": [{"role": "user", "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}]}]}, 400, "invalid_request_error"),
            ({"model": "default", "max_tokens": 1, "messages": [{"role": "user", "content": "word " * 5000}]}, 400, "invalid_request_error")):
        reply = request(up.url, "POST", "/v1/messages", body, {"x-api-key": KEY})
        assert reply.status == status and reply.json()["type"] == "error" and reply.json()["error"]["type"] == kind, reply.body
    assert "prompt is too long" in reply.json()["error"]["message"] and "maximum context length is" in reply.json()["error"]["message"]
    with pytest.raises(anthropic.BadRequestError):
        ask(client, "x", False, tool_choice={"type": "tool", "name": "absent"})


def test_both_headers_carry_the_key_and_none_is_refused(up):
    body = {"model": "default", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
    for path in ("/v1/messages", "/v1/messages/count_tokens", "/v1/responses/input_tokens"):
        assert request(up.url, "POST", path, body).status == 401
        assert request(up.url, "POST", path, body, {"x-api-key": "wrong"}).status == 401
        body = {**body, "input": "x"}
        for headers in ({"x-api-key": KEY}, {"Authorization": f"Bearer {KEY}"}):
            assert request(up.url, "POST", path, body, headers).status == 200
    assert request(up.url, "HEAD", "/").status < 500


def test_a_worker_may_be_asked_directly(launch, write_script, tmp_path):
    script = write_script(tmp_path, REPLIES, chat_template=TEMPLATE)
    worker = launch("worker", "worker", script, "--port", "0", env={"TANDEM_SECRET": ""}).wait_ready()
    body = {"model": "default", "max_tokens": 200, "messages": [{"role": "user", "content": "think first"}], "tools": TOOLS}
    made = request(worker.url, "POST", "/v1/messages", body).json()
    assert [b["type"] for b in made["content"]] == ["thinking", "text", "tool_use", "tool_use"] and "tandem" not in made
    assert request(worker.url, "POST", "/v1/messages/count_tokens", body).json()["input_tokens"] == made["usage"]["input_tokens"] + made["usage"]["cache_read_input_tokens"]
    assert request(worker.url, "POST", "/v1/messages", {**body, "messages": 1}).json()["type"] == "error"
