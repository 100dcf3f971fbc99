"""`tandem eval` as a person runs it: summaries, progress, a run that is killed and goes on, mistakes that are named."""

import json
import os
import signal
import subprocess
import time

import pytest

from servers import wait_until
from test_commands import run

pytestmark = pytest.mark.quick


def summary(ended):
    assert ended.returncode == 0, ended.stderr
    (line,) = ended.stdout.splitlines()
    return json.loads(line)


def write_lines(path, items):
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


@pytest.fixture
def arithmetic(write_script, tmp_path):
    """A model that knows every second answer, slowly, and the questions."""
    replies = [{"when": f"Q{i:02d}?", "reply": f"It is #### {i if i % 2 else i + 1}"} for i in range(12)]
    script = write_script(tmp_path, replies, marker="Answer:", step_ms=15)
    data = write_lines(tmp_path / "data.jsonl", [{"question": f"Q{i:02d}?", "answer": f"so #### {i}"} for i in range(12)])
    return script, data


def test_a_killed_run_goes_on_and_ends_as_one_that_was_not(binary, arithmetic, tmp_path):
    script, data = arithmetic
    arguments = ("eval", "qa", data, "--model", script, "--max-tokens", "16", "--parallel", "2")
    whole = run(binary, *arguments)
    assert summary(whole)["right"] == 6 and summary(whole)["items"] == 12
    assert "12 of 12 items" in whole.stderr
    done = tmp_path / "done.jsonl"
    process = subprocess.Popen([str(binary), *map(str, arguments), "--resume", str(done)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until(lambda: done.exists() and done.read_text().count("\n") >= 4, 20, "some items are finished")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=10)
    lines = done.read_text().splitlines()
    assert len(lines) < 12, "it was killed too late"
    done.write_text("\n".join(lines) + '\n{"item":11,"resu')  # a torn end
    resumed = run(binary, *arguments, "--resume", done)
    assert f"{len(lines) - 1} of 12 items were finished before" in resumed.stderr
    assert resumed.stdout == whole.stdout
    start = time.monotonic()
    assert run(binary, *arguments, "--resume", done).stdout == whole.stdout
    assert time.monotonic() - start < 5
    other = run(binary, *arguments, "--max-tokens", "17", "--resume", done)
    assert other.returncode == 1 and "max_tokens is 17 here and 16 there" in other.stderr


def test_perplexity_and_divergence_of_the_real_model(binary, model, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 3 + "It was the best of times, it was the worst of times, it was the age "
                    "of wisdom, it was the age of foolishness, it was the epoch of belief.")
    reference = tmp_path / "m.ref"
    common = (text, "--model", model, "--window", "32")
    exact = summary(run(binary, "eval", "perplexity", *common, "--numerics", "exact"))
    saved = summary(run(binary, "eval", "kl", *common, "--numerics", "exact", "--save-reference", reference, "--top", "0"))
    assert saved["positions"] == exact["positions"]
    compared = summary(run(binary, "eval", "kl", text, "--model", model, "--reference", reference))
    assert compared["reference_perplexity"] == pytest.approx(exact["perplexity"], rel=1e-5)
    assert 1e-5 < compared["mean_kl"] < 0.05 and compared["top1_agreement"] > 0.8
    assert compared["mean_unstored_probability"] == 0
    same = summary(run(binary, "eval", "kl", text, "--model", model, "--numerics", "exact", "--reference", reference))
    assert same["mean_kl"] < 1e-6 and same["top1_agreement"] == 1


CHOICES = [{"question": "What is the capital of France?", "choices": ["Paris", "London", "a kind of bread"], "answer": 0},
           {"question": "The opposite of hot is", "choices": ["cold", "umbrella", "seven hundred"], "answer": 0},
           {"question": "Wie heißt „Haus“ auf Englisch? 😀", "choices": ["house", "mouse", "Zürich"], "answer": 0}]


def test_choices_score_the_same_in_process_and_through_a_server(binary, model, up, tmp_path):
    data = write_lines(tmp_path / "choices.jsonl", CHOICES)
    results = {}
    for name, source in (("model", ("--model", model)), ("url", ("--url", up.url))):
        done = tmp_path / f"{name}.done"
        got = summary(run(binary, "eval", "choice", data, *source, "--resume", done))
        assert got["items"] == 3 and got["accuracy_interval_95"][0] <= got["accuracy"] <= got["accuracy_interval_95"][1]
        items = [json.loads(line) for line in done.read_text().splitlines()[1:]]
        results[name] = [item["result"]["logprobs"] for item in sorted(items, key=lambda item: item["item"])]
    for ours, theirs in zip(results["model"], results["url"]):
        assert ours == pytest.approx(theirs, abs=1e-3)


def test_answers_are_the_same_in_process_and_through_a_server(binary, model, up, tmp_path):
    data = write_lines(tmp_path / "q.jsonl", [{"question": f"What is {i} plus {i}?", "answer": f"#### {2 * i}"} for i in range(4)])
    for chat in ((), ("--chat",)):
        texts = {}
        for name, source in (("model", ("--model", model)), ("url", ("--url", up.url))):
            done = tmp_path / f"{name}{len(chat)}.done"
            summary(run(binary, "eval", "qa", data, *source, *chat, "--max-tokens", "24", "--resume", done))
            items = [json.loads(line) for line in done.read_text().splitlines()[1:]]
            texts[name] = {item["item"]: item["result"]["text"] for item in items}
        assert texts["model"] == texts["url"] and len(texts["url"]) == 4


@pytest.mark.parametrize("arguments, named", [
    ((), "Usage"),
    (("nonsense",), "nonsense"),
    (("qa", "absent.jsonl", "--url", "http://127.0.0.1:9"), "absent.jsonl"),
    (("qa", "README.md"), "--model and --url"),
    (("choice", "README.md", "--url", "http://127.0.0.1:9"), "README.md line 1"),
    (("perplexity", "README.md"), "--model"),
    (("kl", "README.md", "--model", "x"), "--save-reference"),
    (("perplexity", "README.md", "--model", "absent.gguf"), "absent.gguf"),
])
def test_mistakes_are_named(binary, arguments, named):
    ended = run(binary, "eval", *arguments, cwd=__file__.rsplit("/", 3)[0])
    assert ended.returncode in (1, 2) and named in ended.stderr, ended.stderr
    assert not ended.stdout


def test_a_pulled_model_is_measured_by_its_name(binary, model, tmp_path):
    folder = tmp_path / "models" / "acme" / "small"
    folder.mkdir(parents=True)
    (folder / "small.Q4_1.gguf").symlink_to(model.resolve())
    text = tmp_path / "text.txt"
    text.write_text("It was the best of times, it was the worst of times.")
    env = {**os.environ, "TANDEM_MODELS": str(tmp_path / "models")}
    got = summary(run(binary, "eval", "perplexity", text, "--model", "acme/small:Q4_1", env=env))
    assert got["model"] == "acme/small" and got["positions"] > 5
    absent = run(binary, "eval", "perplexity", text, "--model", "acme/absent", env=env)
    assert absent.returncode == 1 and "tandem pull acme/absent" in absent.stderr


def test_a_question_beyond_the_room_of_choice_is_refused(binary, model, tmp_path):
    data = write_lines(tmp_path / "long.jsonl", [{"question": "word " * 9000, "choices": ["a", "b"], "answer": 0}])
    ended = run(binary, "eval", "choice", data, "--model", model)
    assert ended.returncode == 1 and "line 1" in ended.stderr and "8192 tokens" in ended.stderr
