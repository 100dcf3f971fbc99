"""What the router puts on the wire for each kind of backend, field by field, and that the rest of a client's bytes stay as they are."""

import json
import re

import pytest

from mocks import KINDS, Fleet, Mocks
from servers import Process, request

pytestmark = pytest.mark.quick
CHAT = "/v1/chat/completions"
# Order, spaces, numbers beyond 2^53 and with useless zeros, escapes, a repeated key that is not the router's: all of it stays.
ODD = (b'{ "zeta" : 1.50,"model":"mock-model" ,"seed": 9007199254740993,\n "messages":[ {"content":"caf\\u00e9 \xe6\xb0\xb4 %s","role":"user","x":{"b":1,"a":[]} } ],'
       b'"tools":[{"type":"function","function":{"parameters":{"z":1,"a":{"e":1e400}}}}],"kept":null,"kept":[ ],"max_tokens":5}')
CONTROLLED = {"kv_transfer_params", "disaggregated_params", "bootstrap_host", "bootstrap_port", "bootstrap_room", "rid", "max_tokens",
              "max_completion_tokens", "min_tokens", "stream", "stream_options", "prompt_token_ids", "routed_dp_rank", "disagg_prefill_dp_rank"}


@pytest.fixture(scope="module", params=list(KINDS))
def fleet(request, binary, tmp_path_factory):
    made = Fleet(binary, tmp_path_factory.mktemp("shapes"), request.param, prefill=1, decode=1,
                 mock_options=("--step", "1ms", "--record", 64, "--lease", "2s"))
    yield made
    made.end()


@pytest.fixture(autouse=True)
def nothing_is_left(fleet):
    yield
    fleet.settle()


def number(text):
    return float(text) if "e" in text or "." in text else int(text)


def members(text):
    """The members of an object as (key, value) in order, repeated ones too."""
    return json.loads(text, object_pairs_hook=lambda pairs: pairs, parse_float=lambda t: ("number", t))


def ask(fleet, body, path=CHAT, headers=None, marker=None):
    """(the client's reply, prefill's request, the answering engine's request)"""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = request(fleet.url, "POST", path, raw, headers)

    def last(engines):
        found = [each for engine in engines for each in engine.requests()
                 if each["target"] == path and (marker is None or marker in each["body"])]
        return found[-1] if found else None

    return reply, last(fleet.prefill), last(fleet.decode)


def leg(request_seen):
    return json.loads(request_seen["body"])


def test_a_clients_bytes_stay_as_they_are(fleet):
    raw = ODD % fleet.kind.connector.encode()
    reply, prefill, answer = ask(fleet, raw, marker=fleet.kind.connector)
    assert reply.status == 200, reply.body
    text = raw.decode()
    if not fleet.kind.pair:
        assert answer["body"] == text  # byte for byte
        return
    for seen in filter(None, (prefill, answer)):
        kept = [pair for pair in members(seen["body"]) if pair[0] not in CONTROLLED]
        assert kept == [pair for pair in members(text) if pair[0] not in CONTROLLED]
        # The bytes between the edits too.
        for piece in ('"zeta" : 1.50,', '"seed": 9007199254740993,\n "messages":[ {"content":"caf\\u00e9 \u6c34 ', '"kept":null,"kept":[ ]',
                      '"tools":[{"type":"function","function":{"parameters":{"z":1,"a":{"e":1e400}}}}]'):
            if fleet.kind.connector == "trtllm" and seen is answer and "messages" in piece:
                continue  # its prompt is replaced by token ids
            assert piece in seen["body"], seen["body"]


def test_both_legs_carry_the_clients_headers(fleet):
    sent = {"Authorization": "Bearer the-clients-own", "X-Request-Id": f"mine-{fleet.kind.connector}", "X-Custom": "kept",
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "Connection": "close, X-Private",
            "X-Private": "of this hop", "TE": "trailers", "Proxy-Authorization": "secret"}
    reply, prefill, answer = ask(fleet, {"model": "mock-model", "messages": [{"role": "user", "content": "headers, please"}]},
                                 headers=sent, marker="headers, please")
    assert reply.status == 200, reply.body
    assert next(value for name, value in reply.headers.items() if name.lower() == "x-request-id") == sent["X-Request-Id"]
    for seen in filter(None, (prefill, answer)):
        headers = seen["headers"]
        assert headers["authorization"] == sent["Authorization"] and headers["x-custom"] == "kept"
        assert headers["traceparent"].split("-")[1] == sent["traceparent"].split("-")[1]
        assert not {"x-private", "te", "proxy-authorization"} & set(headers), headers
        assert sent["X-Request-Id"] in headers["x-request-id"]
    if prefill and fleet.kind.dialect.startswith("vllm"):
        assert prefill["headers"]["x-request-id"] == answer["headers"]["x-request-id"]


def test_a_stream_asks_prefill_for_no_stream(fleet):
    fields = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 9, "max_completion_tokens": 9, "min_tokens": 3}
    reply, prefill, answer = ask(fleet, {"model": "mock-model", "messages": [{"role": "user", "content": "stream this one"}], **fields},
                                 marker="stream this one")
    assert reply.status == 200 and reply.body.endswith(b"data: [DONE]\n\n")
    got = leg(answer)
    assert got["stream"] is True and got["stream_options"] == {"include_usage": True} and got["max_tokens"] == 9 and got["min_tokens"] == 3
    if prefill is None:
        return
    first = leg(prefill)
    assert first.get("stream") in (False, None) and "stream_options" not in first
    if fleet.kind.dialect.startswith("vllm"):
        assert first["max_tokens"] == 1 and first["max_completion_tokens"] == 1 and first.get("min_tokens", 0) <= 1
        assert first["stream"] is False


def test_the_fields_of_each_kind_of_handoff(fleet):
    if not fleet.kind.pair:
        return
    reply, prefill, answer = ask(fleet, {"model": "mock-model", "messages": [{"role": "user", "content": "the handoff's fields"}]},
                                 marker="the handoff's fields")
    assert reply.status == 200, reply.body
    first = leg(prefill)
    # TensorRT-LLM's second leg may hold token ids instead of the text.
    second = leg(answer or fleet.decode[0].requests()[-1])
    CHECKS[fleet.kind.connector](fleet, first, second, prefill)
    for secret in ("kv_transfer_params", "disaggregated_params", "bootstrap_room", "prompt_token_ids"):
        assert secret not in reply.body.decode(), reply.body


def check_sglang(fleet, first, second, _):
    (engine,) = fleet.prefill
    for body in (first, second):
        assert body["bootstrap_host"] == "127.0.0.1" and body["bootstrap_port"] == engine.bootstrap
        assert isinstance(body["bootstrap_room"], int) and 0 <= body["bootstrap_room"] < 2**63
        assert re.fullmatch(r"[0-9a-f]{32}", body["rid"]), body["rid"]
    assert first["bootstrap_room"] == second["bootstrap_room"]


def check_nixl(fleet, first, second, _):
    asked = first["kv_transfer_params"]
    assert asked == {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
                     "remote_host": None, "remote_port": None}
    assert first["max_tokens"] == 1 and first["stream"] is False and "max_completion_tokens" not in first
    given = second["kv_transfer_params"]
    assert given["do_remote_prefill"] is True and given["do_remote_decode"] is False and given["remote_block_ids"]
    assert given["remote_engine_id"] == fleet.prefill[0].state()["engine_id"] and given["remote_port"] == fleet.prefill[0].bootstrap
    assert given["transfer_mode"] == "pull"  # copied whole, unknown fields too


def check_push(fleet, first, second, prefill):
    assert first["kv_transfer_params"]["do_remote_decode"] is True and first["max_tokens"] == 1 and first["stream"] is False
    given = second["kv_transfer_params"]
    assert given["do_remote_prefill"] is True
    assert given["remote_engine_id"] == fleet.prefill[0].state()["engine_id"]
    assert given["remote_host"] and given["remote_port"] == fleet.prefill[0].bootstrap and given["tp_size"] == 1
    assert given["remote_request_id"]


def check_mooncake(fleet, first, second, _):
    one, two = first["kv_transfer_params"], second["kv_transfer_params"]
    assert one["do_remote_decode"] is True and one["do_remote_prefill"] is False
    assert two["do_remote_prefill"] is True and two["do_remote_decode"] is False
    assert one["transfer_id"] == two["transfer_id"] and re.fullmatch(r"xfer-[0-9a-f-]{32,36}", one["transfer_id"])
    assert two["remote_bootstrap_addr"] == f"http://127.0.0.1:{fleet.prefill[0].bootstrap}"
    assert two["remote_engine_id"] == fleet.prefill[0].state()["engine_id"]
    assert first["max_tokens"] == 1 and first["stream"] is False


def check_trtllm(fleet, first, second, _):
    one, two = first["disaggregated_params"], second["disaggregated_params"]
    assert one["request_type"] == "context_only" and two["request_type"] == "generation_only"
    assert 2**42 <= one["disagg_request_id"] < 2**63 and two["disagg_request_id"] == one["disagg_request_id"]
    assert two["ctx_info_endpoint"].endswith(f":{fleet.prefill[0].bootstrap}")
    assert first.get("stream") in (False, None)
    if fleet.kind.connector == "trtllm":
        assert two["ctx_request_id"] == one["disagg_request_id"] and two["first_gen_tokens"] == [7]
        assert two["ctx_usage"]["prompt_tokens"] > 0 and second["prompt_token_ids"]
    else:
        assert one["schedule_style"] == two["schedule_style"] == 1 and two["ctx_request_id"] == one["disagg_request_id"]
        assert two["ctx_dp_rank"] == 0


def check_moriio(fleet, first, second, prefill):
    one, two = first["kv_transfer_params"], second["kv_transfer_params"]
    assert one["do_remote_decode"] is True and one["do_remote_prefill"] is False and one["transfer_id"] == two["transfer_id"]
    assert re.fullmatch(r"tx-[0-9a-f-]{36}", one["transfer_id"])
    assert two["do_remote_prefill"] is True and two["remote_dp_size"] == 1
    assert two["remote_handshake_port"] == fleet.prefill[0].bootstrap and two["remote_notify_port"] == 61005
    if fleet.kind.connector == "vllm-moriio":
        assert two["remote_block_ids"] and two["remote_engine_id"] == fleet.prefill[0].state()["engine_id"]
        return
    assert (one["remote_host"], one["remote_handshake_port"], one["remote_notify_port"]) == ("127.0.0.1", 6301, 61005)
    assert one["remote_dp_size"] == one["remote_tp_size"] == two["remote_tp_size"] == 1 and one["remote_dp_rank"] == two["remote_dp_rank"] == 0
    assert prefill["headers"]["x-request-id"].startswith(
        f"___prefill_addr_host:127.0.0.1,handshake:{fleet.prefill[0].bootstrap},notify:61005___decode_addr_host:127.0.0.1,handshake:6301,notify:61005_")


CHECKS = {"sglang": check_sglang, "vllm-nixl": check_nixl, "vllm-nixl-push": check_push, "vllm-mooncake": check_mooncake,
          "vllm-moriio": check_moriio, "vllm-moriio-write": check_moriio, "trtllm": check_trtllm, "trtllm-gen-first": check_trtllm}


def test_shared_storage_is_one_token_at_prefill_and_then_the_clients_own_request(binary, tmp_path, fleet):
    if fleet.kind.connector != "plain":
        return
    mocks = Mocks(binary, tmp_path / "storage.log", "--dialect", "openai", "--prefill", 1, "--decode", 1, "--step", "1ms", "--record", 8)
    try:
        prefill, decode = mocks.all
        front = Process(binary, ["router", "--connector", "shared-storage", "--port", "0", "--local-prefill-tokens", "0", "--prefill", prefill.url,
                                 "--decode", decode.url], tmp_path / "storage-router.log")
        try:
            body = {"model": "mock-model", "messages": [{"role": "user", "content": "over one store"}], "max_tokens": 7, "stream": True, "x": 1}
            reply = request(front.wait_ready().url, "POST", CHAT, body)
            assert reply.status == 200 and reply.body.endswith(b"data: [DONE]\n\n"), reply.body
            (first,), (second,) = prefill.requests(), decode.requests()
            assert leg(first) == {**body, "max_tokens": 1, "stream": False}
            assert {**leg(second), "stream_options": None} == {**body, "stream_options": None}
        finally:
            front.end()
    finally:
        mocks.end()


def test_every_request_has_ids_of_its_own(fleet):
    if not fleet.kind.pair:
        return
    for i in range(6):
        assert request(fleet.url, "POST", CHAT, {"model": "mock-model", "messages": [{"role": "user", "content": f"own id {i}"}]},
                       {"X-Request-Id": "again-the-same"}).status == 200
    bodies = [leg(each) for each in fleet.prefill[0].requests() if "own id" in each["body"]][-6:]
    names = {"sglang": ("bootstrap_room", "rid"), "vllm-mooncake": ("kv_transfer_params",), "trtllm": ("disaggregated_params",),
             "trtllm-gen-first": ("disaggregated_params",)}.get(fleet.kind.connector, ())
    for name in names:
        assert len({json.dumps(body[name]) for body in bodies}) == 6, name
    if fleet.kind.dialect.startswith("vllm"):
        ids = [each["headers"]["x-request-id"] for each in fleet.prefill[0].requests() if "own id" in each["body"]][-6:]
        assert all("again-the-same" in each for each in ids)
        assert len(set(ids)) == 6  # engines name what they hold by it


@pytest.mark.parametrize("several", ["batch", "choices"])
def test_a_batch_has_a_room_for_each_request(fleet, several):
    if fleet.kind.connector == "sglang":
        body, path = ({"model": "mock-model", "prompt": ["one prompt", "another", "a third"], "max_tokens": 3}, "/v1/completions") \
            if several == "batch" else ({"model": "mock-model", "messages": [{"role": "user", "content": "three"}], "n": 3}, CHAT)
        reply, prefill, answer = ask(fleet, body, path)
        assert reply.status == 200, reply.body
        first, second = leg(prefill), leg(answer)
        for name in ("bootstrap_host", "bootstrap_port", "bootstrap_room"):
            assert len(first[name]) == 3 and first[name] == second[name]
        assert len(set(first["bootstrap_room"])) == 3
        return
    body = {"model": "mock-model", "messages": [{"role": "user", "content": f"{several} of three"}], "n": 3} if several == "choices" else \
        {"model": "mock-model", "prompt": ["one prompt", "another", "a third"], "max_tokens": 3}
    reply = request(fleet.url, "POST", CHAT if several == "choices" else "/v1/completions", body)
    assert reply.status == 200, reply.body
    choices = reply.json()["choices"]
    assert sorted(choice["index"] for choice in choices) == [0, 1, 2]
    assert len({json.dumps(choice.get("message") or choice["text"]) for choice in choices}) == 3


@pytest.mark.parametrize("raw", [
    b'{"model":"mock-model","messages":[],"stream":true,"stream":false}',
    b'{"model":"mock-model","model":"mock-model","messages":[{"role":"user","content":"x"}]}',
    b'{"model":"mock-model","messages":[{"role":"user","content":"\xff"}]}',
    b'{"model":"mock-model","messages":' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"model":"mock-model","messages":[{"role":"user","content":"x"}]',
    b'["model"]', b"", b"null"])
def test_what_cannot_be_edited_safely_is_refused_early(fleet, raw):
    before = sum(engine.state()["requests"] for engine in fleet.mocks.all)
    reply = request(fleet.url, "POST", CHAT, raw)
    assert reply.status == 400 and reply.json()["error"]["message"], reply.body
    assert sum(engine.state()["requests"] for engine in fleet.mocks.all) == before


def test_clients_cannot_smuggle_handoffs(fleet):
    """What only a router may say is not taken from a client."""
    if not fleet.kind.pair:
        return
    for smuggled in ({"bootstrap_room": 1, "bootstrap_host": "evil"}, {"kv_transfer_params": {"do_remote_prefill": True, "remote_host": "evil"}},
                     {"disaggregated_params": {"request_type": "generation_only", "ctx_info_endpoint": "evil:1"}}):
        body = {"model": "mock-model", "messages": [{"role": "user", "content": f"smuggled {sorted(smuggled)}"}], **smuggled}
        reply = request(fleet.url, "POST", CHAT, body)
        seen = [each["body"] for engine in fleet.mocks.all for each in engine.requests() if f"smuggled {sorted(smuggled)}" in each["body"]]
        if fleet.kind.dialect.startswith("vllm") and "kv_transfer_params" in smuggled or \
                fleet.kind.connector == "sglang" and "bootstrap_room" in smuggled or \
                fleet.kind.dialect == "trtllm" and "disaggregated_params" in smuggled:
            assert reply.status in (200, 400)
            assert not any('"evil' in each for each in seen), seen
