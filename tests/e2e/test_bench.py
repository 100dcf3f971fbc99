"""`tandem bench`: what it counts and measures, against engines whose timing is known (`tandem mock`)."""

import argparse
import importlib.util
import json
import pathlib
import re
import signal
import subprocess

import pytest

from mocks import SLOW, Mocks
from servers import wait_until

pytestmark = pytest.mark.quick
ROOT = pathlib.Path(__file__).resolve().parents[2]
# A prompt of 100 tokens takes 50 ms, a token 20 ms: long beside what a busy machine adds.
PROMPT_RATE, STEP = 2000, 0.020


@pytest.fixture(scope="module")
def engine(binary, tmp_path_factory):
    made = Mocks(binary, tmp_path_factory.mktemp("bench") / "mock.log", "--unified", 1, "--prefill-rate", PROMPT_RATE, "--step", "20ms")
    yield made.all[0]
    made.end()


@pytest.fixture(autouse=True)
def no_faults(engine):
    yield
    engine.faults()


def bench(binary, engine, tmp_path, *arguments, status=0, seed=[100]):
    """The JSON report, the terminal's report, the lines of --save-requests. Seeds differ: the mocks remember prompts."""
    seed[0] += 1
    files = {name: tmp_path / f"{name}-{seed[0]}" for name in ("json", "requests")}
    done = subprocess.run([str(binary), "bench", engine.url, "--seed", str(seed[0]), "--json", str(files["json"]), "--save-requests",
                           str(files["requests"]), *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode == status, done.stderr + done.stdout
    lines = [json.loads(line) for line in files["requests"].read_text().splitlines()]
    return json.loads(files["json"].read_text()), done.stdout, lines


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_counts_and_latencies_are_the_engines(binary, engine, tmp_path, api):
    page = tmp_path / "report.html"
    told, text, lines = bench(binary, engine, tmp_path, "--api", api, "--requests", 12, "--concurrency", 2, "--input", 100, "--output", 8,
                              "--warmup", 0, "--html", page, "--goodput", "ttft:60s", "tpot:60s", "--percentiles", "50,95")
    assert told["requests"] | {"mean_open": 0} == {"sent": 12, "completed": 12, "failed": 0, "unfinished": 0, "mean_open": 0, "most_open": 2}
    assert told["tokens"]["output"] == 12 * 8 and told["tokens"]["answers_counted_by_server"] == 12
    assert 0.8 * 1200 < told["tokens"]["input"] < 1.2 * 1200, "the probe finds how many words make a hundred tokens"
    latency = told["latency_ms"]
    assert [latency[name]["count"] for name in ("ttft", "tpot", "itl", "e2e")] == [12, 12, 12 * 7, 12]
    # One after the other, so a prompt waits for another at most, and then for a step to end.
    assert 40 < latency["ttft"]["min"] and latency["ttft"]["p50"] < 250 * SLOW
    assert 1e3 * STEP * 0.8 < latency["tpot"]["p50"] < 1e3 * STEP * 3 * SLOW
    assert latency["e2e"]["min"] > latency["ttft"]["min"] + 7 * 1e3 * STEP * 0.8
    assert told["goodput"]["good"] == 12 and told["goodput"]["requests_per_s"] == told["throughput"]["requests_per_s"]
    assert abs(told["throughput"]["output_tokens_per_s"] * told["duration_s"] - 96) < 1e-3
    assert set(latency["ttft"]) == {"count", "mean", "std", "min", "p50", "p95", "max", "exact"}
    assert len(lines) == 12 and all(line["error"] is None and line["output_tokens"] == 8 for line in lines)
    assert "12 completed" in text and page.read_text().count("<svg") == 7


def test_an_open_loop_keeps_its_times_whatever_the_engine_does(binary, engine, tmp_path):
    told, text, lines = bench(binary, engine, tmp_path, "--rate", 20, "--arrivals", "constant", "--requests", 10, "--input", 8,
                              "--output", 20, "--quiet")
    assert [round(line["planned_s"], 6) for line in sorted(lines, key=lambda line: line["id"])] == [(i + 1) / 20 for i in range(10)]
    assert told["requests"]["most_open"] > 3, "an answer takes 400 ms, a new request comes every 50"
    assert told["sent_late_ms"]["p50"] < 200 * SLOW and "sent late" in text


def test_agents_send_their_history_and_one_key_for_each_session(binary, tmp_path):
    mocks = Mocks(binary, tmp_path / "mock.log", "--unified", 1, "--prefill-rate", 0, "--step", 0, "--record", 100)
    try:
        told, _, lines = bench(binary, mocks.all[0], tmp_path, "--dataset", "agent", "--turns", 4, "--think", "0", "--prefix", 50, "--output",
                               4, "--requests", 8, "--concurrency", 2, "--warmup", 0)
        requests = [json.loads(r["body"]) | {"key": r["headers"].get("x-session-affinity")} for r in mocks.all[0].requests()
                    if r["headers"].get("x-session-affinity")]
    finally:
        mocks.end()
    assert told["requests"]["completed"] == 8 and len(requests) == 8
    assert told["tokens"]["cached"] > 0
    sessions = {}
    for request in requests:
        sessions.setdefault(request["key"], []).append([m["role"] for m in request["messages"]])
    for turns in sessions.values():
        turns.sort(key=len)
        for i, roles in enumerate(turns):
            assert roles == ["system", "user"] + ["assistant", "user"] * i
    for session in {line["session"] for line in lines}:
        turns = [line["turn"] for line in lines if line["session"] == session]
        assert turns == list(range(len(turns))), "each turn waits for the answer before it"
    assert len(lines) == 8 and max(line["turn"] for line in lines) == 3


def test_errors_are_counted_by_kind_and_kept_out_of_latencies(binary, engine, tmp_path):
    # The faults come after the two requests that look at the server.
    engine.faults("status=503#3")
    told, text, _ = bench(binary, engine, tmp_path, "--requests", 8, "--concurrency", 1, "--input", 8, "--output", 2, "--warmup", 0,
                          "--no-probe", "--model", "mock-model")
    assert told["requests"]["failed"] == 3 and told["requests"]["completed"] == 5
    assert told["errors"]["http_status"]["count"] == 3 and told["errors"]["http_status"]["statuses"] == {"503": 3}
    assert told["latency_ms"]["ttft"]["count"] == 5
    assert "(503: 3)" in text
    engine.faults("die-mid-stream#2", "error-frame#1")
    told, _, _ = bench(binary, engine, tmp_path, "--requests", 6, "--concurrency", 1, "--input", 8, "--output", 4, "--warmup", 0,
                       "--no-probe", "--model", "mock-model")
    assert {kind: error["count"] for kind, error in told["errors"].items()} == {"connection_lost": 2, "stream_error": 1}
    engine.faults("status=500")
    told, _, _ = bench(binary, engine, tmp_path, "--requests", 2, "--concurrency", 1, "--no-probe", "--model", "mock-model", "--warmup", 0,
                       status=1)
    assert told["requests"]["completed"] == 0 and told["latency_ms"]["ttft"]["count"] == 0


def test_a_server_that_is_not_there_is_said_at_once(binary, tmp_path):
    done = subprocess.run([str(binary), "bench", "http://127.0.0.1:1"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and "connect" in done.stderr


def test_ctrl_c_gives_the_report_of_what_was_measured(binary, engine, tmp_path):
    report = tmp_path / "report.json"
    process = subprocess.Popen([str(binary), "bench", engine.url, "--concurrency", "2", "--duration", "60s", "--input", "8", "--output", "5",
                                "--json", str(report), "--seed", "77", "--warmup", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    before = engine.state()["requests"]
    wait_until(lambda: engine.state()["requests"] >= before + 6, 30 * SLOW, "it sends requests")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    told = json.loads(report.read_text())
    assert told["interrupted"] and told["requests"]["completed"] > 0 and told["requests"]["failed"] == 0
    assert told["requests"]["sent"] == told["requests"]["completed"] + told["requests"]["unfinished"]
    assert "interrupted" in out and re.search(r"TTFT +\d", out)


def test_a_trace_is_sent_at_its_own_times_with_its_sharing(binary, engine, tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps({"timestamp": at, "input_length": 1024, "output_length": 4, "hash_ids": ids}) + "\n"
                             for at, ids in ((0, [0, 1]), (600, [0, 2]), (1200, [0, 1]))))
    told, _, lines = bench(binary, engine, tmp_path, "--trace", trace, "--shrink", 4, "--warmup", 0, "--speed", 2)
    assert told["requests"]["completed"] == 3 and "Mooncake" in told["dataset"]
    assert [line["planned_s"] for line in sorted(lines, key=lambda line: line["id"])] == [0, 0.3, 0.6]
    first, half, whole = [line["cached_tokens"] for line in sorted(lines, key=lambda line: line["id"])]
    assert first == 0 and 64 < half < 200 < whole


def comparison():
    spec = importlib.util.spec_from_file_location("compare_cpu", ROOT / "bench/compare_cpu.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_comparisons_pair_rounds_and_know_which_way_is_better():
    compare = comparison()
    # The second round was slow for both: the ratio of each round is what counts.
    assert compare.ratio("decode 0", [20, 2, 30], [10, 1, 15]) == 2
    assert compare.ratio("start", [1, 2, 4], [3, 6, 12]) == 3, "less time is better"
    assert compare.ratio("batch 4", [], [1]) is None
    engines = [compare.Running("Tandem", ""), compare.Running("other", "")]
    row = compare.table(engines, {"decode 0": {"Tandem": [50.0], "other": [25.0]}}, {"decode 0": (100.0, "memory")}).splitlines()[-1]
    assert [cell.strip() for cell in row.strip("|").split("|")] == ["decode 0 (tokens/s)", "50", "25", "**2.00**", "100 (memory)", "50 %", "25 %"]


def test_a_peers_programs_are_asked_in_their_own_words(tmp_path):
    compare = comparison()
    for name, text in (("llama-bench", 'case "$*" in *--help*) echo "usage";; *) echo "$@" >> "$0.log"; echo \'[{"avg_ts": 12.5}]\';; esac'),
                       ("llama-batched-bench", 'echo "| PP | TG | S_PP t/s | S_TG t/s |"; echo "|----|----|----|----|"; echo "| 32 | 64 | 100.0 | 41.5 |"')):
        (tmp_path / name).write_text("#!/bin/sh\n" + text + "\n")
        (tmp_path / name).chmod(0o755)
    options = argparse.Namespace(model="m.gguf", threads=2, tokens=64, logs=tmp_path)
    peer = compare.Peer(options, "peer", tmp_path, ["-rtr", "1"])
    assert peer.prefill(512) == 12.5 and peer.decode(4096) == 12.5 and peer.batch(16) == 41.5
    asked = (tmp_path / "llama-bench.log").read_text().splitlines()
    assert "-p 512 -n 0" in asked[0] and "-rtr 1" in asked[0]
    assert "-gp 4096,64" in asked[1], "this one has no --n-depth"
    with peer.server(1, 512) as url:
        assert url is None
