"""What real agents send and need (20 facts, measured on the wire), and reported bugs about streams and tool calls: over all three dialects.

Which test covers which fact (those without a file name are here):
 1 a line of its own in every conversation    test_messages: test_what_differs_in_every_conversation_is_no_part_of_the_prompt
 2 ids of calls never repeat                  test_tool_calls: test_ids_never_repeat
 3 a finish is never missing or unknown       test_reply_matrix: test_a_stream_put_together_is_the_whole_answer; here: ..._at_every_length
 4 every 429 has Retry-After                  test_router_policy: test_an_overload_is_queued_fairly_and_refused_in_time; test_the_overload_answer_says_when_to_come_back
 5 what cannot succeed is a 400               test_what_cannot_succeed_is_a_400, test_a_400_says_that_a_retry_is_useless
 6 a dropped stream is repeated whole         test_a_stream_says_what_the_whole_answer_says_at_every_length (tools, not streamed)
 7 the prompt of a cut answer stays cached    test_the_prefix_of_a_finished_turn_is_cached_for_the_next
 8 arguments come back respelled              test_arguments_that_come_back_respelled_are_the_same_prompt
 9 an answer may come back trimmed            test_an_answer_that_comes_back_trimmed_is_the_same_prompt_before_it
10 reasoning comes back under other names     test_reasoning_comes_back_under_either_name, test_sealed_reasoning_is_the_reasoning
11 what names a session                       test_what_names_a_session_by_order
12 a session is not one prefix                test_what_names_a_session_by_order (helpers of an agent)
13 x-client-request-id names no request       test_a_repeated_client_request_id_is_no_duplicate
14 the body's order is not the prompt's       test_the_order_of_a_body_changes_no_prompt
15 marks and shapes of contents               test_cache_marks_and_shapes_of_contents_change_no_prompt
16 roles and items beyond the textbook        test_messages: test_system_messages_may_stand_in_the_middle; test_responses: test_a_tool_loop_over_items, test_items
17 history names tools that are not offered   test_history_may_name_tools_that_are_not_offered_and_keep_broken_arguments
18 usage is true and always there             test_usage_comes_once_and_without_choices, test_every_message_delta_has_usage; test_messages: test_counts_are_what_the_next_call_bills
19 a WebSocket is declined at once            test_a_websocket_is_declined_at_once
20 HEAD / and bursts of counts                test_a_websocket_is_declined_at_once, test_a_burst_of_counts_is_answered

Reported bugs (bugs.md), section D: 39 test_a_stop_string_is_never_sent; 40 test_several_choices_have_one_finish_each; 41 ..._at_every_length and
test_reply_matrix; 43 test_tool_calls: test_what_a_model_says_thinks_and_calls; 44, 46, 47 reply_parser_test.cc: MeanTheSameInAnyCuts (every cut, groups of
1 to 8) and test_recorded_replies: test_every_cut_of_every_recording; 48 test_two_calls_and_reasoning_that_ends_with_them; 50
test_usage_comes_once_and_without_choices; 51, 53, 54 test_bugs_d; 55 test_responses: test_events_come_in_order_with_stable_ids; 57, 58 test_messages:
test_events_come_in_order; 59 test_messages: test_counts_are_what_the_next_call_bills. Section C: 30, 31, 32, 34, 37 test_bugs_c; 36 test_reply_matrix:
test_a_custom_tools_grammar_that_is_none_is_a_400_that_says_where; 38 waits for speculation. Section E: 60, 62, 63 test_bugs_e. Section I: 104, 105, 106,
108 reply_parser_test.cc and test_tool_calls: test_what_a_model_says_thinks_and_calls. 73: test_connections: test_every_route_asks_for_the_key.
"""

import concurrent.futures
import json

import pytest

from agent_scripts import TEMPLATE, WEATHER, call, think
from mocks import Fleet
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


def test_a_400_says_that_a_retry_is_useless(up):
    for path, body in APIS.items():
        reply = request(up.url, "POST", path, {**body, "temperature": "hot"})
        assert reply.status == 400 and reply.headers.get("x-should-retry") == "false", reply.headers


def tokens(url, **body):
    reply = request(url, "POST", "/tokenize", body)
    assert reply.status == 200, reply.body
    return reply.json()["tokens"]


def counted(url, path, body):
    reply = request(url, "POST", path, {"model": "default", **body})
    assert reply.status == 200, reply.body
    return reply.json()["input_tokens"]


def test_an_answer_that_comes_back_trimmed_is_the_same_prompt_before_it(up):
    history = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": " an answer \n"}, {"role": "user", "content": "more"}]
    trimmed = [history[0], {**history[1], "content": "an answer"}, history[2]]
    one, two = tokens(up.url, messages=history), tokens(up.url, messages=trimmed)
    same = next(i for i, (a, b) in enumerate(zip(one, two)) if a != b)
    before = len(tokens(up.url, messages=history[:1]))  # all up to the answer, and the head of its turn
    assert same >= before, (same, before)


def test_sealed_reasoning_is_the_reasoning(up):
    made = ask(up.url, "/v1/responses", {**RESPONSES, "include": ["reasoning.encrypted_content"]}).json()
    (thought,) = [item for item in made["output"] if item["type"] == "reasoning"]
    rest = [item for item in made["output"] if item["type"] != "reasoning"]
    count = lambda *items: counted(up.url, "/v1/responses/input_tokens", {"input": [{"role": "user", "content": "x"}, *items, *rest]})
    sealed = {"type": "reasoning", "summary": [], "content": None, "encrypted_content": thought["encrypted_content"]}
    assert count(sealed) == count({**sealed, "encrypted_content": None, "content": thought["content"]}) > count()
    assert count({**sealed, "encrypted_content": "gAAAAB-of-somebody-else"}) == count()
    broken = {**sealed, "encrypted_content": sealed["encrypted_content"][:-8] + "AAAAAAAA"}
    reply = request(up.url, "POST", "/v1/responses", {**RESPONSES, "input": [{"role": "user", "content": "x"}, broken]})
    assert reply.status == 400 and reply.json()["error"]["param"] == "input[1].encrypted_content" and reply.json()["error"]["code"] == "invalid_encrypted_content"


def test_a_repeated_client_request_id_is_no_duplicate(up):
    replies = [ask(up.url, path, APIS[path], {"x-client-request-id": "the-thread", "thread-id": "the-thread"}).json() for path in APIS for _ in range(2)]
    assert len({reply["id"] for reply in replies}) == 6


def test_the_order_of_a_body_changes_no_prompt(up):
    fields = {"tools": [WEATHER], "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}
    assert tokens(up.url, **fields) == tokens(up.url, **dict(reversed(fields.items())))
    message = {"max_tokens": 5, "system": "s", "messages": [{"role": "user", "content": "u"}], "tools": MESSAGES["tools"]}
    assert counted(up.url, "/v1/messages/count_tokens", message) == counted(up.url, "/v1/messages/count_tokens", dict(reversed(message.items())))


def test_cache_marks_and_shapes_of_contents_change_no_prompt(up):
    def message(content, result):
        return {"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}]},
                             {"role": "user", "content": [result]}], "tools": MESSAGES["tools"]}

    plain = message("u", {"type": "tool_result", "tool_use_id": "toolu_1", "content": "r"})
    marked = message([{"type": "text", "text": "u", "cache_control": {"type": "ephemeral"}}],
                     {"content": [{"type": "text", "text": "r"}], "cache_control": {"type": "ephemeral"}, "tool_use_id": "toolu_1", "type": "tool_result"})
    marked["system"] = plain["system"] = [{"type": "text", "text": "s"}]
    marked["system"] = [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}]
    assert counted(up.url, "/v1/messages/count_tokens", plain) == counted(up.url, "/v1/messages/count_tokens", marked)
    assert tokens(up.url, messages=[{"role": "user", "content": "u"}]) == tokens(up.url, messages=[{"role": "user", "content": [{"type": "text", "text": "u"}]}])
    ask(up.url, "/v1/messages", {**plain, "model": "default", "max_tokens": 2})
    usage = ask(up.url, "/v1/messages", {**marked, "model": "default", "max_tokens": 2}).json()["usage"]
    assert usage["cache_read_input_tokens"] > usage["input_tokens"], "all but the last page is the same prompt"


def test_every_message_delta_has_usage(up):
    for length in (1, 10, 200):
        deltas = [event for event in data(ask(up.url, "/v1/messages", {**MESSAGES, "max_tokens": length, "stream": True})) if event["type"] == "message_delta"]
        assert len(deltas) == 1 and deltas[0]["usage"]["output_tokens"] > 0


def test_a_burst_of_counts_is_answered(up):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        body = {"model": "default", "messages": [{"role": "user", "content": "word " * 500}]}
        found = list(pool.map(lambda _: request(up.url, "POST", "/v1/messages/count_tokens?beta=true", body), range(14)))
    assert {reply.status for reply in found} == {200} and len({reply.json()["input_tokens"] for reply in found}) == 1


def test_what_names_a_session_by_order(binary, tmp_path):
    """Each name alone decides which worker is asked; one further up decides against all below it. Helpers of an agent have sessions of their own."""
    fleet = Fleet(binary, tmp_path, "plain", prefill=4, decode=4, name="sessions", mock_options=("--prefill-rate", 0), router_options=("--policy", "affinity"))
    count = iter(range(1000))

    def worker(headers=None, **fields):
        body = {"model": "mock-model", "messages": [{"role": "user", "content": f"prompt {next(count)}"}], "max_tokens": 1, **fields}
        return ask(fleet.url, "/v1/chat/completions", body, headers or {}).headers["x-tandem-worker"]

    names = [  # from the strongest to the weakest: what sets it to a value
        lambda value: ({"x-session-affinity": value}, {}), lambda value: ({"thread-id": value}, {}),
        lambda value: ({"X-Claude-Code-Session-Id": value}, {}), lambda value: ({"x-session-id": value}, {}),
        lambda value: ({}, {"prompt_cache_key": value}), lambda value: ({}, {"user": value})]
    try:
        for place, name in enumerate(names):
            spread = {worker(headers, **fields) for headers, fields in (name(f"value-{i}") for i in range(12))}
            assert len(spread) > 2, place
            for weaker in names[place + 1:]:
                made = set()
                for i in range(6):
                    (headers, fields), (more, others) = name("the-one"), weaker(f"value-{i}")
                    made.add(worker({**headers, **more}, **fields, **others))
                assert len(made) == 1, (place, made)
        helpers = {worker({"X-Claude-Code-Session-Id": "s", "x-claude-code-agent-id": f"agent-{i}"}) for i in range(12)}
        assert len(helpers) > 2 and len({worker({"X-Claude-Code-Session-Id": "s", "x-claude-code-agent-id": "agent-1"}) for _ in range(4)}) == 1
        assert len({worker({"x-client-request-id": f"r-{i}", "thread-id": "t"}) for i in range(6)}) == 1
    finally:
        fleet.end()


def test_the_overload_answer_says_when_to_come_back(binary, tmp_path):
    fleet = Fleet(binary, tmp_path, "plain", prefill=1, decode=0, name="full", mock_options=("--prefill-rate", 0, "--step", "20ms"),
                  router_options=("--max-inflight", 1, "--max-queued", 1))
    try:
        bodies = {"/v1/chat/completions": CHAT, "/v1/completions": {"prompt": "x"}}
        one = lambda path: request(fleet.url, "POST", path, {**bodies[path], "model": "mock-model", "max_tokens": 20})
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            found = list(pool.map(one, [*bodies] * 8))
        refused = [reply for reply in found if reply.status == 429]
        assert refused and all(int(reply.headers["Retry-After"]) >= 1 and reply.json()["error"]["type"] == "rate_limit_error" for reply in refused)
    finally:
        fleet.end()
