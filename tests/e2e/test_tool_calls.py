"""Calls of tools and reasoning over chat completions: `tandem up` with a scripted model and the real `openai` client, whole and streamed."""

import json

import openai
import pytest

from agent_scripts import CLOCK, TEMPLATE, WEATHER, call, think
from servers import Stream, request

pytestmark = pytest.mark.quick

REPLIES = [
    {"when": "18 degrees", "reply": "It is 18 degrees in Paris."},
    {"when": "both cities", "reply": "Two look-ups.\n" + call("get_weather", city="Zürich") + "\n" + call("get_weather", city="東京 ☕", unit="c")},
    {"when": "think first", "reply": think("The user wants Paris.") + call("get_weather", city="Paris")},
    {"when": "just think", "reply": think("Nothing to do.") + "Done."},
    {"when": "what time", "reply": call("get_time")},
    {"when": "tag inside", "reply": call("get_weather", city="a </tool_call> and <think> b")},
    {"when": "json answer", "reply": '{"note": "not a call"}'},
    {"when": "broken", "reply": "<tool_call>\nno json\n</tool_call>"},
    {"when": "unknown tool", "reply": call("launch", when="now")},
    {"when": "Paris", "reply": call("get_weather", city="Paris", unit="c")},
    {"reply": "Hello."},
]
TOOLS = [WEATHER, CLOCK]


@pytest.fixture(scope="module")
def up(module_launch, write_script, tmp_path_factory):
    script = write_script(tmp_path_factory.mktemp("script"), REPLIES, chat_template=TEMPLATE)
    return module_launch("up", "up", script, "--port", "0").wait_ready()


@pytest.fixture(scope="module")
def client(up):
    return openai.OpenAI(base_url=up.url + "/v1", api_key="unused", max_retries=0, timeout=60)


def joined(chunks):
    """What a client that adds up the deltas of choice 0 has."""
    content, reasoning, calls, finish = "", "", {}, None
    for chunk in chunks:
        for choice in chunk.choices:
            assert finish is None or choice.index, "nothing follows the finish"
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            for part in choice.delta.tool_calls or []:
                made = calls.setdefault(part.index, {"id": part.id, "name": part.function.name, "arguments": ""})
                made["arguments"] += part.function.arguments or ""
                assert part.index in calls and (part.id is None or part.id == made["id"])
            finish = choice.finish_reason or finish
    return content, reasoning, [calls[i] for i in sorted(calls)], finish


def ask(client, text, stream, **options):
    messages = text if isinstance(text, list) else [{"role": "user", "content": text}]
    options = {"model": "default", "messages": messages, "tools": TOOLS, "temperature": 0, **options}
    if stream:
        return joined(client.chat.completions.create(stream=True, **options))
    choice = client.chat.completions.create(**options).choices[0]
    calls = [{"id": c.id, "name": c.function.name, "arguments": c.function.arguments} for c in choice.message.tool_calls or []]
    return choice.message.content or "", getattr(choice.message, "reasoning_content", None) or "", calls, choice.finish_reason


CASES = {
    "Paris": ("", "", [("get_weather", {"city": "Paris", "unit": "c"})], "tool_calls"),
    "both cities": ("Two look-ups.", "", [("get_weather", {"city": "Zürich"}), ("get_weather", {"city": "東京 ☕", "unit": "c"})], "tool_calls"),
    "think first": ("", "The user wants Paris.", [("get_weather", {"city": "Paris"})], "tool_calls"),
    "just think": ("Done.", "Nothing to do.", [], "stop"),
    "what time": ("", "", [("get_time", {})], "tool_calls"),
    "tag inside": ("", "", [("get_weather", {"city": "a </tool_call> and <think> b"})], "tool_calls"),
    "json answer": ('{"note": "not a call"}', "", [], "stop"),
    "broken": ("<tool_call>\nno json\n</tool_call>", "", [], "stop"),
    "unknown tool": ("", "", [("launch", {"when": "now"})], "tool_calls"),
    "hello": ("Hello.", "", [], "stop"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("text", CASES)
def test_what_a_model_says_thinks_and_calls(client, text, stream):
    content, reasoning, calls, finish = ask(client, text, stream)
    assert (content, reasoning, [(c["name"], json.loads(c["arguments"])) for c in calls], finish) == CASES[text]


def test_ids_never_repeat(client):
    ids = [c["id"] for _ in range(4) for stream in (False, True) for c in ask(client, "both cities", stream)[2]]
    assert len(set(ids)) == 16 and all(len(i) >= 24 + len("call_") for i in ids)


def test_arguments_are_compact_and_in_the_order_they_were_written(client):
    assert ask(client, "Paris", False)[2][0]["arguments"] == '{"city":"Paris","unit":"c"}'


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_loop(client, stream):
    messages = [{"role": "user", "content": "Weather in Paris?"}]
    _, _, calls, _ = ask(client, messages, stream)
    messages.append({"role": "assistant", "content": None, "tool_calls": [
        {"id": calls[0]["id"], "type": "function", "function": {"name": calls[0]["name"], "arguments": calls[0]["arguments"]}}]})
    messages.append({"role": "tool", "tool_call_id": calls[0]["id"], "content": "18 degrees"})
    assert ask(client, messages, stream)[0] == "It is 18 degrees in Paris."


@pytest.mark.parametrize("stream", [False, True])
def test_a_cut_call_is_told_to_nobody(client, stream):
    """Every length: the same in both forms, `length`, and never half a call."""
    whole = ask(client, "Paris", stream)[2][0]["arguments"]
    for length in range(1, 40, 3):
        content, _, calls, finish = ask(client, "Paris", stream, max_tokens=length)
        assert finish in ("length", "tool_calls") and (finish == "tool_calls") <= (len(calls) == 1), (length, finish)
        assert [c["arguments"] for c in calls] in ([], [whole]), (length, content)


def test_one_call_when_parallel_calls_are_off(client):
    for stream in (False, True):
        assert len(ask(client, "both cities", stream, parallel_tool_calls=False)[2]) == 1


def test_without_tools_there_are_no_calls(client):
    content, _, calls, finish = ask(client, "Paris", False, tools=[])
    assert calls == [] and finish == "stop" and "<tool_call>" in content
    content, _, calls, _ = ask(client, "Paris", False, tool_choice="none")
    assert calls == [] and "<tool_call>" in content


def test_arguments_may_be_streamed_as_they_come(up):
    stream = Stream(up.url, {"messages": [{"role": "user", "content": "Paris"}], "tools": TOOLS, "stream_tool_arguments": True})
    pieces = [part["function"]["arguments"] for event in stream if event != "[DONE]" for choice in event["choices"]
              for part in choice["delta"].get("tool_calls", [])]
    assert len(pieces) > 4 and pieces[0] == "" and json.loads("".join(pieces)) == {"city": "Paris", "unit": "c"}


def test_reasoning_is_counted(up):
    reply = request(up.url, "POST", "/v1/chat/completions", {"model": "default", "messages": [{"role": "user", "content": "just think"}]}).json()
    counted = reply["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert 0 < counted < reply["usage"]["completion_tokens"]
