"""The pair is invisible: prefill and decode on two workers give what one worker gives, token for token."""

import concurrent.futures
import json
import os
import pathlib
import subprocess

import pytest

from servers import chat, events, request, text_of
from texts import requests

IN_FLIGHT = 8


def run(url, bodies, in_flight, stream=False):
    def one(body):
        reply = request(url, "POST", "/v1/chat/completions", {**body, "stream": stream, "stream_options": {"include_usage": True}}
                        if stream else body, timeout=600)
        assert reply.status == 200, reply.body
        if stream:
            got = events(reply.body)
            assert got[-1] == "[DONE]"
            finish = [e["choices"][0]["finish_reason"] for e in got[:-1] if e["choices"] and e["choices"][0]["finish_reason"]]
            return text_of(got), finish[0], got[-2]["usage"]
        answer = reply.json()
        return answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"], answer["usage"]

    with concurrent.futures.ThreadPoolExecutor(in_flight) as pool:
        return list(pool.map(one, bodies))


def expect_same(bodies, got, reference):
    different = []
    for body, mine, theirs in zip(bodies, got, reference):
        counts = [[usage[key] for key in ("prompt_tokens", "completion_tokens")] for usage in (mine[2], theirs[2])]
        if mine[:2] != theirs[:2] or counts[0] != counts[1]:
            different.append((json.dumps(body)[:200], mine, theirs))
    assert not different, f"{len(different)} of {len(bodies)} differ; the first: {different[0]}"


def reference(launch, model, bodies, numerics):
    """Alone on one worker, from last to first: what shares a beginning with another meets another cache than in the pair."""
    server = launch(f"alone-{numerics}", "up", model, "--unified", "1", "--port", "0", "--numerics", numerics).wait_ready()
    answers = run(server.url, bodies[::-1], 1)[::-1]
    server.end()
    return answers


def compare_pair(launch, model, bodies, expected, numerics, chunk):
    server = launch(f"pair-{numerics}-{chunk}", "up", model, "--prefill", "1", "--decode", "1", "--port", "0",
                    "--numerics", numerics, "--prefill-chunk", str(chunk)).wait_ready()
    expect_same(bodies, run(server.url, bodies, IN_FLIGHT), expected)               # cold, batched
    expect_same(bodies, run(server.url, bodies, IN_FLIGHT, stream=True), expected)  # cached, streamed
    expect_same(bodies[:4], run(server.url, bodies[:4], 1), expected[:4])           # alone, cached
    server.end()


def multiplies_bf16():
    """Whether --numerics bf16 works here: AMX, or AVX-512 on AMD, at the level that is asked for."""
    words = set(pathlib.Path("/proc/cpuinfo").read_text().split())
    level = os.environ.get("TANDEM_ISA", "")
    if "AuthenticAMD" in words:
        return "avx512_bf16" in words and level in ("", "avx512")
    return "amx_bf16" in words and level in ("", "amx")


bf16 = pytest.mark.skipif(not multiplies_bf16(), reason="needs AMX, or AVX-512 on AMD, for --numerics bf16")


@pytest.mark.quick
@pytest.mark.parametrize("numerics, count, chunks", [("fast", 24, (16, 256)), ("exact", 6, (7,)), pytest.param("bf16", 6, (7, 256), marks=bf16)])
def test_the_pair_equals_one_worker(launch, model, numerics, count, chunks):
    bodies = requests(count, max_tokens=12, longest_sentences=10)
    expected = reference(launch, model, bodies, numerics)
    for chunk in chunks:
        compare_pair(launch, model, bodies, expected, numerics, chunk)


@pytest.mark.quick
@bf16
def test_prompts_in_bf16_begin_the_same_answers(launch, model):
    """Prefill workers with other numerics than the decode workers, which take their KV: `up` allows it by itself."""
    bodies = requests(12, max_tokens=4, longest_sentences=10, seed=5)
    plain = run(launch("plain", "up", model, "--port", "0").wait_ready().url, bodies, IN_FLIGHT)
    server = launch("bf16", "up", model, "--port", "0", "--prompt-numerics", "bf16").wait_ready()
    for again in (False, True):  # with KV that the decode worker has, it computes what is left itself
        answers = run(server.url, bodies, IN_FLIGHT)
        cached = [answer[2]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
        assert not again or min(cached) > 0, cached
        same = sum(mine[0].split()[:1] == theirs[0].split()[:1] for mine, theirs in zip(answers, plain))
        assert same >= len(bodies) // 2, (answers, plain)  # what is rounded differs, the model does not
    server.end()


@pytest.mark.quick
@bf16
def test_one_worker_reads_prompts_in_bf16_the_same_way_however_they_are_cut(launch, model):
    bodies = requests(6, max_tokens=12, longest_sentences=10, seed=7)
    answers = []
    for chunk, in_flight in ((7, IN_FLIGHT), (256, 1)):
        server = launch(f"chunk-{chunk}", "up", model, "--unified", "1", "--port", "0", "--prompt-numerics", "bf16",
                        "--prefill-chunk", str(chunk)).wait_ready()
        answers.append([answer[:2] for answer in run(server.url, bodies, in_flight)])
        server.end()
    assert answers[0] == answers[1]


@pytest.mark.quick
@pytest.mark.parametrize("flag", ["--numerics", "--prompt-numerics"])
def test_numerics_that_the_machine_lacks_are_an_error(binary, model, flag):
    ended = subprocess.run([binary, "worker", model, "--port", "0", flag, "bf16"], env={**os.environ, "TANDEM_ISA": "scalar"},
                           capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1 and "numerics bf16 needs fast products of BF16" in ended.stderr, ended


@pytest.mark.quick
def test_one_token_chunks_equal_whole_prompts(launch, model):
    bodies = requests(4, max_tokens=8, longest_sentences=3, seed=3)
    compare_pair(launch, model, bodies, reference(launch, model, bodies, "fast"), "fast", 1)


@pytest.fixture(scope="module")
def many(module_launch, model):
    """200 requests and what one worker answers, by numeric mode."""
    bodies = requests(200, max_tokens=24)
    answers = {}

    def get(numerics):
        if numerics not in answers:
            answers[numerics] = reference(module_launch, model, bodies, numerics)
        return bodies, answers[numerics]

    return get


@pytest.mark.full
@pytest.mark.parametrize("chunk", [1, 7, 16, 64, 256, 0])
@pytest.mark.parametrize("numerics", ["fast", "exact"])
def test_the_pair_equals_one_worker_on_200_prompts(launch, model, many, numerics, chunk):
    bodies, expected = many(numerics)
    compare_pair(launch, model, bodies, expected, numerics, chunk)


def second_turn(launch, model, stream, name):
    """Cached tokens that turn two reports, its prompt, and the size of turn one."""
    server = launch(name, "up", model, "--port", "0").wait_ready()
    messages = [{"role": "user", "content": "Tell me about tidal mills and how they were built along the coast. " * 6}]
    first = chat(server.url, messages, max_tokens=64, temperature=0, ignore_eos=True).json()
    messages += [{"role": "assistant", "content": first["choices"][0]["message"]["content"]},
                 {"role": "user", "content": "And who owned them?"}]
    reply = chat(server.url, messages, max_tokens=8, temperature=0, stream=stream, stream_options={"include_usage": True} if stream else None)
    assert reply.status == 200, reply.body
    usage = events(reply.body)[-2]["usage"] if stream else reply.json()["usage"]
    server.end()
    return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"], first["usage"]


@pytest.mark.quick
def test_turn_two_reports_what_was_reused_in_both_reply_forms(launch, model):
    whole = second_turn(launch, model, False, "whole")
    streamed = second_turn(launch, model, True, "streamed")
    assert whole[:2] == streamed[:2]
    cached, prompt, first = whole
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert cached < prompt
    # More than turn one's prompt: blocks that decode generated are reused too (a block has at most 64 tokens).
    assert cached > first["prompt_tokens"]
