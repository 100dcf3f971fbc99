"""Reports, section H: embeddings."""

import base64
import struct

import openai
import pytest

from bugs import WINDOW, expect_error, start_pair, strict_json, unharmed
from servers import request

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def pair(module_launch, write_script, tmp_path_factory):
    script = write_script(tmp_path_factory.mktemp("script"), [{"reply": "all is well"}], context_length=WINDOW)
    return start_pair(module_launch, script)


@pytest.fixture(autouse=True)
def after(pair):
    yield from unharmed(pair)


def embed(pair, **fields):
    return request(pair.url, "POST", "/v1/embeddings", {"model": "default", **fields})


def test_base64_vectors_are_little_endian_floats_as_wide_as_the_model(pair):  # row 101
    plain = embed(pair, input="x")
    assert plain.status == 200, plain.body
    floats = plain.json()["data"][0]["embedding"]
    assert all(isinstance(value, float) for value in floats)
    encoded = embed(pair, input="x", encoding_format="base64").json()["data"][0]["embedding"]
    raw = base64.b64decode(encoded, validate=True)
    assert struct.unpack(f"<{len(raw) // 4}f", raw) == pytest.approx(floats, abs=1e-6)
    client = openai.OpenAI(base_url=f"{pair.url}/v1", api_key="none", max_retries=0)
    # The client asks for base64 unless it is told otherwise.
    for options in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        got = client.embeddings.create(model="default", input="x", **options).data[0].embedding
        if isinstance(got, str):
            got = struct.unpack(f"<{len(floats)}f", base64.b64decode(got))
        assert list(got) == pytest.approx(floats, abs=1e-6)


def test_token_ids_are_embedded_and_ids_beyond_the_vocabulary_refused(pair):  # row 103
    reply = embed(pair, input=[[1, 2, 3]])
    assert reply.status == 200 and strict_json(reply.body)["usage"]["prompt_tokens"] == 3
    assert len(embed(pair, input=[[1, 2, 3], [4]]).json()["data"]) == 2
    for ids in ([[1, 99999999]], [[-1]], [99999999], [[1.5]], [[]], []):
        expect_error(embed(pair, input=ids))
