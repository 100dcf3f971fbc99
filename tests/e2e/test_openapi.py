"""/openapi.json is the truth: answers fit it, and bodies made from it (and broken after it) get 200 or a 400, never a 5xx."""

import json
import random

import jsonschema
import pytest

from servers import Cluster, chat, events, request

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def small(module_launch, write_script, tmp_path_factory):
    script = write_script(tmp_path_factory.mktemp("script"), [{"reply": "all is well"}], context_length=512)
    return Cluster(module_launch, script, worker_options=("--kv-memory", "64M"))


@pytest.fixture(scope="module")
def document(small):
    return request(small.url, "GET", "/openapi.json").json()


@pytest.fixture(scope="module")
def fits(document):
    def fits(name, value):
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$ref": f"#/components/schemas/{name}", "components": document["components"]}
        jsonschema.Draft202012Validator(schema).validate(value)

    return fits


def schema_of(document, name):
    return document["components"]["schemas"][name]


def test_every_schema_is_a_schema(document):
    for name, schema in document["components"]["schemas"].items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema, name
    assert document["openapi"].startswith("3.1")
    assert {"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models"} <= document["paths"].keys()


def test_live_answers_fit_their_schemas(small, fits):
    url = small.url
    options = {"max_tokens": 4}
    for more in ({}, {"n": 2, "logprobs": True, "top_logprobs": 2}):
        fits("ChatCompletion", chat(url, "Hello", **options, **more).json())
        chunks = events(chat(url, "Hello", stream=True, stream_options={"include_usage": True}, **options, **more).body)
        for chunk in chunks[:-1]:
            fits("ChatCompletionChunk", chunk)
    for more in ({}, {"n": 2, "logprobs": 2, "echo": True}, {"prompt": ["a", "b"]}, {"max_tokens": 0, "echo": True, "logprobs": 0}):
        body = {"prompt": "Hello there", **options, **more}
        fits("Completion", request(url, "POST", "/v1/completions", body).json())
        for chunk in events(request(url, "POST", "/v1/completions", {**body, "stream": True}).body)[:-1]:
            fits("Completion", chunk)
    fits("ModelList", request(url, "GET", "/v1/models").json())
    fits("Model", request(url, "GET", "/v1/models/" + request(url, "GET", "/v1/models").json()["data"][0]["id"]).json())
    ids = request(url, "POST", "/tokenize", {"prompt": "Hello"}).json()
    fits("TokenList", ids)
    fits("TokenText", request(url, "POST", "/detokenize", {"tokens": ids["tokens"]}).json())
    fits("Health", request(url, "GET", "/health").json())
    fits("OllamaReply", request(url, "POST", "/api/chat", {"messages": [{"role": "user", "content": "x"}], "stream": False}).json())
    fits("OllamaEmbedReply", request(url, "POST", "/api/embed", {"input": ["a", "b"]}).json())
    fits("OllamaEmbeddingsReply", request(url, "POST", "/api/embeddings", {"prompt": "a"}).json())
    fits("OllamaTags", request(url, "GET", "/api/tags").json())
    fits("OllamaVersion", request(url, "GET", "/api/version").json())
    for reply in (chat(url, "x", temperature=9), chat(url, "x", model="absent"), request(url, "POST", "/v1/chat/completions", b"{")):
        fits("Error", reply.json())


JUNK = [None, True, 0, -1, 1.5, 1e308, 2**70, "", "x", "\ud7ff\u0000", [], [[]], [None], {}, {"a": [[{}]]}, [1, "a"], [{}], -0.0, "9" * 2000]


def value_for(schema, pick, depth=0):
    """A value that fits the schema."""
    if "anyOf" in schema:
        branch = pick.choice(schema["anyOf"])
        rest = {key: value for key, value in schema.items() if key != "anyOf"}
        of = {name: {**rest.get("properties", {}).get(name, {}), **inner} for name, inner in branch.get("properties", {}).items()}
        return value_for({**rest, **branch, "properties": {**rest.get("properties", {}), **of}}, pick, depth)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return pick.choice(schema["enum"])
    kind = schema.get("type", "object")
    kind = pick.choice(kind) if isinstance(kind, list) else kind
    low = schema.get("minimum", schema.get("exclusiveMinimum", -5) + (1e-3 if "exclusiveMinimum" in schema else 0))
    if kind == "integer":
        return pick.choice([low, min(schema.get("maximum", 9), 9), min(low + 1, schema.get("maximum", 9))])
    if kind == "number":
        return pick.choice([low, schema.get("maximum", 5), (low + schema.get("maximum", 5)) / 2])
    if kind == "string":
        return pick.choice(["a", "hello there", "é漢"]) if schema.get("minLength") else pick.choice(["", "a", "hello there", "é漢"])
    if kind == "boolean":
        return pick.choice([True, False])
    if kind == "array":
        return [value_for(schema.get("items", {}), pick, depth + 1) for _ in range(pick.randint(schema.get("minItems", 0), 2))]
    if kind == "object" and depth < 5:
        required = schema.get("required", [])
        return {key: value_for(inner, pick, depth + 1) for key, inner in schema.get("properties", {}).items() if key in required or pick.random() < 0.2}
    return None if kind == "null" else {}


ENDPOINTS = [("/v1/chat/completions", "ChatRequest"), ("/v1/completions", "CompletionRequest"), ("/v1/embeddings", "EmbeddingRequest"),
             ("/tokenize", "TokenizeRequest"), ("/detokenize", "DetokenizeRequest"), ("/api/chat", "OllamaChatRequest"), ("/api/generate", "OllamaGenerateRequest"),
             ("/api/embed", "OllamaEmbedRequest"), ("/api/embeddings", "OllamaEmbeddingsRequest"), ("/v1/responses", "ResponsesRequest"),
             ("/v1/messages", "MessagesRequest"), ("/v1/responses/input_tokens", "InputTokensRequest"), ("/v1/messages/count_tokens", "CountTokensRequest")]


def send(small, path, body):
    reply = request(small.url, "POST", path, body)
    assert reply.status in (200, 400, 404), (path, body, reply.status, reply.body[:300])
    if reply.status != 200:
        error = reply.json()["error"]
        assert error if path.startswith("/api/") else error["message"] and error["code"], reply.body
    return reply


@pytest.mark.parametrize("path, name", ENDPOINTS)
def test_bodies_made_from_the_document_never_break_the_server(small, document, path, name):
    pick = random.Random(path)
    for _ in range(60):
        body = value_for(schema_of(document, name), pick)
        body.update({key: min(body[key], 4) for key in ("n", "max_tokens", "max_completion_tokens", "max_output_tokens") if isinstance(body.get(key), int)})
        body["model"] = "default"
        if pick.random() < 0.5:
            body[pick.choice(list(schema_of(document, name)["properties"]))] = pick.choice(JUNK)
        send(small, path, json.dumps(body).encode("utf-8", "surrogatepass"))
    assert request(small.url, "GET", "/ready").status == 200


MINIMAL = {"ChatRequest": {"messages": [{"role": "user", "content": "Hello"}], "max_completion_tokens": 2},
           "CompletionRequest": {"prompt": "Hello", "max_tokens": 2}}
COMPANIONS = {"top_logprobs": {"logprobs": True}, "stream_options": {"stream": True}}


@pytest.mark.parametrize("path, name", ENDPOINTS[:2])
def test_a_field_is_taken_exactly_when_its_schema_takes_it(small, document, path, name):
    """For each field of the document and each odd value: 200 when the schema allows it, a 400 that names the field when not."""
    # Rules between fields, and sizes that are good but slow or too long here.
    special = {"messages", "prompt", "max_tokens", "max_completion_tokens", "n", "best_of", "min_tokens", "structured_outputs", "guided_json", "json_schema",
               "guided_grammar", "grammar", "ebnf"}
    for field, schema in schema_of(document, name)["properties"].items():
        validator = jsonschema.Draft202012Validator(schema)
        for value in JUNK:
            if field in special and validator.is_valid(value):
                continue
            if field == "model" and isinstance(value, str):
                continue
            reply = send(small, path, {**MINIMAL[name], **COMPANIONS.get(field, {}), field: value})
            missing = value is None and field in ("messages", "prompt")
            # A number of the document has any size; ours end at 64 bits.
            assert (reply.status == 200) == (validator.is_valid(value) and not missing), (field, value, reply.status, reply.body[:300])
            if reply.status == 400:
                assert reply.json()["error"]["param"].startswith(field), (field, value, reply.body)


CHOICES = [{"type": "function", "function": {"name": "f"}}, {"type": "custom", "custom": {"name": "c"}},
           {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]}},
           {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "custom", "custom": {"name": "c"}}]}},
           {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}, {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}},
           *({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [{}]}} for mode in ("auto", "required")),
           {"type": "function"}, {"type": "allowed_tools", "allowed_tools": {"tools": []}}, {"type": "allowed_tools", "allowed_tools": {"mode": "often", "tools": []}},
           {"type": "custom", "custom": {}}, "often", "none", {}]


@pytest.mark.parametrize("path, name", [("/v1/chat/completions", "ChatRequest"), ("/v1/responses", "ResponsesRequest")])
def test_choices_of_tools_are_taken_exactly_when_the_document_takes_them(small, document, path, name):
    schema = jsonschema.Draft202012Validator(schema_of(document, name)["properties"]["tool_choice"])
    chat_form = path == "/v1/chat/completions"

    def flat(choice):  # what chat says in an object of its own, Responses says at once
        if not isinstance(choice, dict) or chat_form:
            return choice
        inner = choice.get(choice.get("type"), {})
        return {**{key: value for key, value in choice.items() if key != choice.get("type")}, **{key: [flat(one) for one in value] if key == "tools" else value
                                                                                              for key, value in inner.items()}}
    tools = [flat({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}}),
             flat({"type": "custom", "custom": {"name": "c", "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a"}}}})]
    if not chat_form:
        tools[1]["format"] = {"type": "grammar", "syntax": "regex", "definition": "a"}
    rest = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3} if chat_form else {"input": "x", "max_output_tokens": 16}
    for choice in map(flat, CHOICES):
        reply = send(small, path, {"tools": tools, "tool_choice": choice, **rest})
        assert (reply.status == 200) == schema.is_valid(choice), (choice, reply.status, reply.body[:300])


def test_unknown_fields_are_ignored(small):
    for value in JUNK:
        assert chat(small.url, "Hello", max_tokens=2, x_unknown=value).status == 200
