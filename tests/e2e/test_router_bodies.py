"""Bodies that real clients sent, through the router to engines of others: byte for byte, but for the members that the
connector's row edits. The bodies are not in the tree: TANDEM_CLIENT_BODIES names their folder (NAME.json beside
NAME.headers.json)."""

import json
import os
import pathlib

import pytest

from mocks import fleets
from servers import request

FOLDER = os.environ.get("TANDEM_CLIENT_BODIES")
MODEL = "test-model"
pytestmark = [pytest.mark.quick, pytest.mark.skipif(not FOLDER, reason="TANDEM_CLIENT_BODIES names no folder")]
KINDS = ["plain", "sglang", "vllm-nixl"]
# What each leg may differ in.
EDITED = {"plain": {"unified": set()},
          "sglang": {"prefill": {"stream", "stream_options", "max_tokens"}, "decode": {"stream_options"}},
          "vllm-nixl": {"prefill": {"stream", "stream_options", "max_tokens"}, "decode": {"stream_options"}}}


def bodies():
    """(name, path, headers, bytes) of those for the model that the mocks serve."""
    for headers in sorted(pathlib.Path(FOLDER or "/nowhere").glob("*.headers.json")):
        body = headers.with_name(headers.name.replace(".headers.json", ".json")).read_bytes()
        told = json.loads(headers.read_text())
        if json.loads(body)["model"] != MODEL:
            continue
        kept = {name: value for name, value in told["headers"] if name.lower().startswith(("anthropic-", "x-", "user-agent"))}
        path = told["path"] + (f"?{told['query']}" if told["query"] else "")
        yield headers.name.removesuffix(".headers.json"), path, kept, body


def members(text):
    """[(name, the whole member's text)] of an object, in its order, every byte."""
    decoder, found = json.JSONDecoder(), []
    at = text.index("{") + 1
    while text[at:].lstrip()[0] != "}":
        begin = at + len(text[at:]) - len(text[at:].lstrip(" \t\r\n,"))
        name, after = decoder.raw_decode(text, begin)
        after = text.index(":", after) + 1
        after += len(text[after:]) - len(text[after:].lstrip())
        _, at = decoder.raw_decode(text, after)
        found.append((name, text[begin:at]))
    return found


@pytest.fixture(scope="module")
def all_fleets(binary, tmp_path_factory):
    with fleets(binary, tmp_path_factory.mktemp("bodies"), KINDS, prefill=1, decode=1,
                mock_options=("--model", MODEL, "--record", "8", "--step", "0", "--prefill-rate", "0")) as made:
        yield made


@pytest.mark.parametrize("kind", KINDS)
def test_clients_bodies_reach_the_engines_byte_for_byte_outside_the_edits(all_fleets, kind):
    fleet, seen = all_fleets[kind], 0
    for name, path, headers, body in bodies():
        before = {engine.url: engine.state()["requests"] for engine in fleet.mocks.all}
        reply = request(fleet.url, "POST", path, body, headers)
        assert reply.status == 200, (name, reply.body[:500])
        fleet.settle()
        legs = [(engine.role, engine.requests()[-1]) for engine in fleet.mocks.all if engine.state()["requests"] > before[engine.url]]
        assert len(legs) == (2 if fleet.kind.pair else 1), name
        for role, leg in legs:
            assert leg["target"] == path
            assert all(leg["headers"].get(key.lower()) == value for key, value in headers.items()), (name, leg["headers"])
            sent = leg["body"]
            if kind == "plain":
                assert sent.encode() == body, name
                continue
            edited = EDITED[kind][role]
            ours, theirs = members(body.decode()), members(sent)
            kept = [member for member in theirs if member[0] in dict(ours) and member[0] not in edited]
            assert kept == [member for member in ours if member[0] not in edited], (name, role)
            assert json.loads(sent)["messages"] == json.loads(body)["messages"]
            seen += 1
        seen += kind == "plain"
    assert seen >= 10
