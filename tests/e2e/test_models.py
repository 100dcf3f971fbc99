"""Several models in one deployment."""

import json
import random
import struct

import pytest

from servers import SECRET, chat, metrics, request, wait_until


def named(url, model, content="hi", **fields):
    return request(url, "POST", "/v1/chat/completions",
                   {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 8, **fields})


@pytest.fixture(scope="module")
def two(module_launch, model, write_script, tmp_path_factory):
    script = write_script(tmp_path_factory.mktemp("two"), [{"reply": "scripted answer"}])
    return module_launch("up", "up", "--model", f"real={model}", "--model", f"scripted={script}", "--port", "0",
                         "--kv-memory", "64M").wait_ready()


@pytest.mark.quick
def test_each_model_answers_under_its_name(two):
    listed = request(two.url, "GET", "/v1/models").json()["data"]
    assert {entry["id"] for entry in listed} == {"real", "scripted"}
    scripted = named(two.url, "scripted")
    assert scripted.status == 200 and scripted.json()["choices"][0]["message"]["content"].startswith("scripted answer")
    assert scripted.json()["model"] == "scripted"
    real = named(two.url, "real", temperature=0)
    assert real.status == 200 and real.json()["model"] == "real"
    assert "scripted answer" not in real.json()["choices"][0]["message"]["content"]
    counted = metrics(two.url)
    assert counted['tandem_router_model_requests_total{model_name="real"}'] >= 1
    assert counted['tandem_generation_tokens_total{model_name="scripted"}'] >= 1


@pytest.mark.quick
def test_a_name_that_is_not_served_is_told_the_names(two):
    unknown = named(two.url, "gpt-none")
    assert unknown.status == 404 and unknown.json()["error"]["code"] == "model_not_found"
    assert "'real'" in unknown.json()["error"]["message"] and "'scripted'" in unknown.json()["error"]["message"]
    missing = chat(two.url, "hi")
    assert missing.status == 400 and missing.json()["error"]["code"] == "model_required"
    assert request(two.url, "POST", "/tokenize", {"prompt": "x"}).status == 400
    assert request(two.url, "POST", "/tokenize", {"prompt": "x", "model": "real"}).status == 200


@pytest.mark.quick
def test_two_models_of_one_name_are_refused(launch, write_script, tmp_path):
    script = write_script(tmp_path, [{"reply": "x"}])
    other = write_script(tmp_path, [{"reply": "y"}])
    server = launch("up", "up", "--model", f"same={script}", "--model", f"same={other}", "--unified", "1", "--port", "0",
                    "--kv-memory", "64M")
    assert server.process.wait(60) == 2
    assert "NAME=PATH" in server.log()


@pytest.mark.quick
def test_a_router_learns_the_models_from_its_workers(launch, write_script, tmp_path):
    env = {"TANDEM_SECRET": SECRET}
    workers = []
    for name in ("first", "second"):
        script = write_script(tmp_path, [{"reply": f"I am {name}"}])
        workers.append(launch(name, "worker", script, "--port", "0", "--kv-memory", "64M", "--served-model-name", name,
                              env=env).wait_ready())
    odd = launch("odd", "worker", write_script(tmp_path, [{"reply": "I am second"}]), "--port", "0", "--kv-memory", "64M",
                 "--served-model-name", "second", "--block-tokens", "32", env=env).wait_ready()
    router = launch("router", "router", "--worker", workers[0].url, workers[1].url, "--port", "0", env=env).wait_ready()
    wait_until(lambda: len(request(router.url, "GET", "/v1/models").json()["data"]) == 2, 5, "both models are known")
    for name in ("first", "second"):
        assert named(router.url, name).json()["choices"][0]["message"]["content"] == f"I am {name}"
    workers[0].kill()
    wait_until(lambda: named(router.url, "first").status == 503, 5, "the first model is gone")
    assert named(router.url, "second").status == 200
    mixed = launch("mixed", "router", "--worker", workers[1].url, odd.url, "--port", "0", env=env)
    wait_until(lambda: "another model under the name" in mixed.log() or "--block-tokens" in mixed.log(), 10, mixed.log)


def write_adapter(folder, layers=30, hidden=576, rank=4, seed=3):
    """A PEFT adapter of the queries' projections of every layer, strong enough to be heard."""
    folder.mkdir()
    chosen = random.Random(seed)
    header, data = {}, b""
    for layer in range(layers):
        for part, shape in (("A", (rank, hidden)), ("B", (hidden, rank))):
            values = struct.pack(f"<{rank * hidden}f", *(chosen.uniform(-0.2, 0.2) for _ in range(rank * hidden)))
            name = f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{part}.weight"
            header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + len(values)]}
            data += values
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": rank, "lora_alpha": 16, "target_modules": ["q_proj"], "bias": "none"}))
    return folder


@pytest.mark.quick
@pytest.mark.parametrize("workers", [["--unified", "1"], []], ids=["unified", "pair"])
def test_adapters_are_models_of_their_own(launch, model, tmp_path, workers):
    adapter = write_adapter(tmp_path / "polite")
    server = launch("up", "up", model, "--served-model-name", "base", "--adapter", f"polite={adapter}", *workers, "--port", "0",
                    "--kv-memory", "64M").wait_ready()
    listed = {entry["id"]: entry.get("parent") for entry in request(server.url, "GET", "/v1/models").json()["data"]}
    assert listed == {"base": None, "polite": "base"}
    question = "Tell me a story about a lighthouse keeper and the sea. " * 3

    def answer(name):
        reply = named(server.url, name, question, temperature=0, max_tokens=24)
        assert reply.status == 200, reply.body
        assert reply.json()["model"] == ("base" if name == "default" else name)
        return reply.json()

    first = answer("base")["choices"][0]["message"]["content"]
    polite = answer("polite")
    assert polite["choices"][0]["message"]["content"] != first
    assert polite["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "the base model's KV is not the adapter's"
    assert answer("polite")["choices"] == polite["choices"]
    assert answer("default")["choices"][0]["message"]["content"] == first
    assert named(server.url, "rude").status == 404

    def embedding(name):
        reply = request(server.url, "POST", "/v1/embeddings", {"model": name, "input": question})
        assert reply.status == 200, reply.body
        assert reply.json()["model"] == name
        return reply.json()["data"][0]["embedding"]

    assert embedding("polite") != embedding("base")
    assert embedding("polite") == embedding("polite")


@pytest.mark.quick
def test_an_adapter_with_another_models_name_is_refused(launch, model, write_script, tmp_path):
    adapter, script = write_adapter(tmp_path / "polite"), write_script(tmp_path, [{"reply": "x"}])
    server = launch("up", "up", "--model", f"base={model}", "--model", f"other={script}", "--adapter", f"base:other={adapter}",
                    "--unified", "1", "--port", "0", "--kv-memory", "64M")
    assert server.process.wait(60) == 2 and '"other" is the name of another model' in server.log()


@pytest.mark.quick
def test_an_adapter_that_is_none_is_named(launch, model, tmp_path):
    server = launch("up", "up", model, "--adapter", f"x={tmp_path}/none", "--unified", "1", "--port", "0")
    assert server.process.wait(60) == 1 and "none" in server.log()


@pytest.mark.quick
def test_every_adapter_has_kv_of_its_own_and_a_pair_answers_as_one_worker(launch, model, tmp_path):
    names = {f"voice{seed}": write_adapter(tmp_path / f"voice{seed}", seed=seed) for seed in (3, 4)}
    options = ["--served-model-name", "base", "--adapter", *(f"{name}={path}" for name, path in names.items()), "--port", "0", "--kv-memory", "64M"]
    servers = {"pair": launch("pair", "up", model, *options).wait_ready(),
               "one": launch("one", "up", model, *options, "--unified", "1").wait_ready()}
    question = "Tell me a story about a lighthouse keeper and the sea. " * 4

    def ask(where, name):
        reply = named(servers[where].url, name, question, temperature=0, max_tokens=12, logprobs=True).json()
        (choice,) = reply["choices"]
        return (choice["message"]["content"], choice["logprobs"]), reply["usage"]["prompt_tokens_details"]["cached_tokens"]

    cold = {}
    for name in ("voice3", "base", "voice4"):
        for where in servers:
            answer, cached = ask(where, name)
            assert cached == 0, f"{name} used the KV of another"
            assert cold.setdefault(name, answer) == answer, f"{name}: a pair and one worker differ"
    assert len({text for text, _ in cold.values()}) == 3, "the adapters make a difference"
    for where in servers:
        for name in ("voice4", "base", "voice3"):
            answer, cached = ask(where, name)
            assert cached > 0 and answer == cold[name], (where, name, cached)

    def embed(name):
        reply = request(servers["pair"].url, "POST", "/v1/embeddings", {"model": name, "input": question}).json()
        assert reply["model"] == name
        return reply["data"][0]["embedding"]

    vectors = {name: embed(name) for name in ("base", *names)}
    assert len({json.dumps(vector) for vector in vectors.values()}) == 3, "embeddings are the adapter's too"
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings"):
        reply = request(servers["pair"].url, "POST", path, {"model": "voice5", "prompt": "x", "input": "x", "messages": [{"role": "user", "content": "x"}]})
        assert reply.status == 404 and reply.json()["error"]["code"] == "model_not_found", (path, reply.body)
