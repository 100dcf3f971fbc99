"""Several models in one deployment."""

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
    router = launch("router", "router", "--unified", workers[0].url, workers[1].url, "--port", "0", env=env).wait_ready()
    for name in ("first", "second"):
        assert named(router.url, name).json()["choices"][0]["message"]["content"] == f"I am {name}"
    workers[0].kill()
    wait_until(lambda: named(router.url, "first").status == 503, 5, "the first model is gone")
    assert named(router.url, "second").status == 200
    mixed = launch("mixed", "router", "--unified", workers[1].url, odd.url, "--port", "0", env=env)
    wait_until(lambda: "another model under the name" in mixed.log() or "--block-tokens" in mixed.log(), 10, mixed.log)
