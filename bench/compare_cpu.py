#!/usr/bin/env python3
"""Tandem's CPU engine and its peers in turn: the same model file, the same threads, paired runs.

    ninja -C build/release tandem bench_engine
    bench/compare_cpu.py models/smollm2-135m-instruct.Q4_1.gguf --threads 2 --rounds 5 \\
        --peer llama.cpp=/path/to/llama.cpp/build/bin --peer ik=/path/to/ik_llama.cpp/build/bin --peer-flags ik='-rtr 1'

Each round runs every engine once, the order turning from round to round; a table's figures are medians over the rounds, ratios
are medians of each round's own ratio (above 1: we are better). Phases (--phase, all by default):

    prefill N      a prompt of N tokens               bench_engine, llama-bench -p N
    decode D       one sequence behind D tokens       bench_engine, llama-bench -d D (or -gp D,N where it lacks -d)
    batch B        B sequences behind 32 tokens       bench_engine, llama-batched-bench
    server         16 clients, 256 prompt tokens, 64 new ones, output tokens a second     tandem bench on `tandem up` and llama-server
    agents         recorded coding sessions (bench/data), lengths over 32, 8 at once: time to first token; what is longer
                   than the model's context is refused with 400 and left out      likewise
    start          from starting the server to its first token

A peer is a directory with llama-bench, llama-batched-bench and llama-server; what it lacks is left out. --url NAME=URL adds a server that
runs already (vLLM's, say) to server and agents. The floor, and so the shares, are of operations and bytes on this machine as
measured at the start (bench/engine_floor.h)."""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[1]
PHASES = ["prefill 512", "prefill 2048", "decode 0", "decode 4096", "batch 1", "batch 4", "batch 16", "server", "agents", "start"]
LOWER_IS_BETTER = {"agents p50", "agents p90", "start"}
UNITS = {"agents p50": "ms", "agents p90": "ms", "start": "s"}


def run(command, seconds, both=False):
    """What it printed; with `both` on stderr too."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=seconds)
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(map(str, command))}: status {done.returncode}\n{(done.stderr or done.stdout)[-2000:]}")
    return done.stdout + done.stderr if both else done.stdout


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def first_token(url, deadline):
    """Asks until a token comes; the moment when it did."""
    parts = urllib.parse.urlsplit(url)
    body = json.dumps({"model": "default", "prompt": "One two three", "max_tokens": 4, "stream": True, "temperature": 0})
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            if reply.status == 200:
                for line in reply:
                    if line.startswith(b"data: {"):
                        return time.monotonic()
            connection.close()
        time.sleep(0.005)
    raise RuntimeError(f"{url} gave no token in time")


@contextlib.contextmanager
def process(command, log):
    with open(log, "w", encoding="utf-8") as out:
        started = subprocess.Popen(list(map(str, command)), stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        yield started
    finally:
        started.terminate()
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait(20)


class Tandem:
    """Ours; also knows the floors."""

    name = "Tandem"

    def __init__(self, options):
        self.options, self.ceilings, self.floors = options, None, {}

    def engine_row(self, phase, number):
        with tempfile.NamedTemporaryFile(suffix=".json") as out:
            lists = {"prefill": "", "decode": "", "batch": "", phase: str(number)}
            command = [self.options.build / "bench_engine", "--model", self.options.model, "--threads", self.options.threads, "--rounds", 1,
                       "--prefill", lists["prefill"], "--depths", lists["decode"], "--batches", lists["batch"], "--tokens", self.options.tokens,
                       "--numerics", self.options.numerics, "--json", out.name]
            if self.ceilings:
                command += ["--ceilings", self.ceilings]
            run(command, 1800)
            told = json.loads(pathlib.Path(out.name).read_text(encoding="utf-8"))
        self.ceilings = ",".join(str(told[name] / 1e9) for name in ("memory_bytes_per_s", "float_operations_per_s", "int8_operations_per_s"))
        if not told["rows"]:
            return None  # beyond the model's context
        row = told["rows"][0]
        self.floors[f"{phase} {number}"] = row["amount"] / row["floor_s"], row["bound"]
        return row["amount"] / statistics.median(row["seconds"])

    def prefill(self, tokens):
        return self.engine_row("prefill", tokens)

    def decode(self, depth):
        return self.engine_row("decode", depth)

    def batch(self, sequences):
        return self.engine_row("batch", sequences)

    @contextlib.contextmanager
    def server(self, slots, context):
        del slots, context  # sequences and pages are the worker's own business
        port = free_port()
        workers = self.options.workers.split() or ["--unified", 1, "--threads", self.options.threads]
        command = [self.options.build / "tandem", "up", self.options.model, *workers, "--numerics", self.options.numerics,
                   "--port", port, "--no-access-log", "--kv-memory", self.options.kv_memory]
        with process(command, self.options.logs / "tandem.log"):
            yield f"http://127.0.0.1:{port}"


class Peer:
    """llama.cpp or a fork of it."""

    def __init__(self, options, name, directory, flags):
        self.options, self.name, self.directory, self.flags = options, name, pathlib.Path(directory), flags
        # llama-bench wants a value with each flag, its siblings know -rtr as a word of its own.
        self.common_flags = [word for i, word in enumerate(flags) if not (word in "01" and flags[i - 1] in ("-rtr", "--run-time-repack"))]
        self.bench_help = None

    def tool(self, name):
        path = self.directory / name
        return path if path.exists() else None

    def llama_bench(self, arguments):
        tool = self.tool("llama-bench")
        if tool is None:
            return None
        told = json.loads(run([tool, "-m", self.options.model, "-t", self.options.threads, "-r", 1, "-o", "json", *self.flags, *arguments], 1800))
        return told[-1]["avg_ts"]

    def prefill(self, tokens):
        return self.llama_bench(["-p", tokens, "-n", 0])

    def decode(self, depth):
        if depth == 0:
            return self.llama_bench(["-p", 0, "-n", self.options.tokens])
        if self.bench_help is None and self.tool("llama-bench"):
            done = subprocess.run([self.tool("llama-bench"), "--help"], capture_output=True, text=True, timeout=60)
            self.bench_help = done.stdout + done.stderr
        if "--n-depth" in (self.bench_help or ""):
            return self.llama_bench(["-p", 0, "-n", self.options.tokens, "-d", depth])
        return self.llama_bench(["-p", 0, "-n", 0, "-gp", f"{depth},{self.options.tokens}"])

    def batch(self, sequences):
        tool = self.tool("llama-batched-bench")
        if tool is None:
            return None
        context = sequences * (32 + self.options.tokens) + 256
        told = run([tool, "-m", self.options.model, "-t", self.options.threads, "-c", context, "-npp", 32, "-ntg", self.options.tokens, "-npl",
                    sequences, *self.common_flags], 1800, both=True)  # forks differ in where
        return batched_speed(told)

    @contextlib.contextmanager
    def server(self, slots, context):
        tool = self.tool("llama-server")
        if tool is None:
            yield None
            return
        port = free_port()
        command = [tool, "-m", self.options.model, "-t", self.options.threads, "-np", slots, "-c", slots * context, "--host", "127.0.0.1",
                   "--port", port, *self.common_flags]
        with process(command, self.options.logs / f"{self.name}.log"):
            yield f"http://127.0.0.1:{port}"


class Running:
    """A server that somebody else started."""

    def __init__(self, name, url):
        self.name, self.url = name, url

    @contextlib.contextmanager
    def server(self, slots, context):
        del slots, context
        yield self.url


def batched_speed(text):
    """Tokens a second of the decode part: the column named S_TG of the tool's only row."""
    columns = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if any(cell.startswith("S_TG") for cell in cells):
            columns = cells
        elif columns and len(cells) == len(columns) and cells[0].isdigit():
            return float(cells[next(i for i, cell in enumerate(columns) if cell.startswith("S_TG"))])
    raise RuntimeError(f"no S_TG in what llama-batched-bench printed:\n{text[-2000:]}")


def load(options, url, arguments, too_long_is_fine=False):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        run([options.build / "tandem", "bench", url, "--quiet", "--json", out.name, "--seed", int(time.time()) % (1 << 29), *arguments], 3600)
        told = json.loads(pathlib.Path(out.name).read_text(encoding="utf-8"))
    refused = told["errors"].get("http_status", {}).get("statuses", {}).get("400", 0) if too_long_is_fine else 0
    if told["requests"]["failed"] > refused:
        raise RuntimeError(f"{url}: {told['requests']['failed']} requests failed: {told['errors']}")
    return told


def measure_server(options, engine):
    with engine.server(16, 512) as url:
        if url is None:
            return {}
        first_token(url, time.monotonic() + 120)
        told = load(options, url, ["--api", "completions", "--token-ids", "--input", 256, "--output", 64, "--ignore-eos", "--concurrency", 16,
                                   "--requests", options.requests, "--warmup", 2])
    return {"server": told["throughput"]["output_tokens_per_s"]}


def measure_agents(options, engine):
    with engine.server(8, 8192) as url:
        if url is None:
            return {}
        first_token(url, time.monotonic() + 120)
        told = load(options, url, ["--trace", ROOT / "bench/data/agent_sessions.jsonl.zst", "--shrink", 32, "--limit", 40, "--think", 0,
                                   "--concurrency", 8, "--requests", 4 * options.requests], too_long_is_fine=True)
    return {f"agents {name}": told["latency_ms"]["ttft"][name] for name in ("p50", "p90")}


def measure_start(_, engine):
    if isinstance(engine, Running):
        return {}
    began = time.monotonic()
    with engine.server(1, 512) as url:
        return {} if url is None else {"start": first_token(url, began + 120) - began}


def measure(options, engine, phase):
    """{row: value}; empty where the engine has no such thing."""
    name, _, number = phase.partition(" ")
    if name in ("server", "agents", "start"):
        return {"server": measure_server, "agents": measure_agents, "start": measure_start}[name](options, engine)
    if isinstance(engine, Running):
        return {}
    value = getattr(engine, name)(int(number))
    return {} if value is None else {phase: value}


def ratio(row, ours, theirs):
    """The median of the rounds' own ratios; above 1: ours is better."""
    pairs = [(b / a if row in LOWER_IS_BETTER else a / b) for a, b in zip(ours, theirs) if a and b]
    return statistics.median(pairs) if pairs else None


def table(engines, results, floors):
    peers = [engine.name for engine in engines[1:]]
    lines = ["| phase | Tandem | " + "".join(f"{name} | over {name} | " for name in peers) + "floor | our share | best peer's share |",
             "| --- | --- | " + "--- | --- | " * len(peers) + "--- | --- | --- |"]
    for row, values in results.items():
        ours = values.get("Tandem", [])
        cells = [f"{row} ({UNITS.get(row, 'tokens/s')})", f"{statistics.median(ours):.4g}" if ours else "-"]
        best = None
        for name in peers:
            theirs = values.get(name, [])
            found = ratio(row, ours, theirs)
            cells += [f"{statistics.median(theirs):.4g}" if theirs else "-", f"**{found:.2f}**" if found else "-"]
            if theirs:
                best = max(best or 0, statistics.median(theirs))
        floor, bound = floors.get(row, (None, None))
        cells += [f"{floor:.4g} ({bound})" if floor else "-", f"{100 * statistics.median(ours) / floor:.0f} %" if floor and ours else "-",
                  f"{100 * best / floor:.0f} %" if floor and best else "-"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=DIR")
    parser.add_argument("--peer-flags", action="append", default=[], metavar="NAME=FLAGS", help="words for all of that peer's programs, as llama-bench wants them")
    parser.add_argument("--url", action="append", default=[], metavar="NAME=URL")
    parser.add_argument("--phase", action="append", default=[], help=f"of: {', '.join(PHASES)} (any numbers)")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64, help="decode steps of a measurement")
    parser.add_argument("--requests", type=int, default=64, help="of the server phase; agents: four times as many")
    parser.add_argument("--numerics", default="fast", help="ours, as `tandem up` has it")
    parser.add_argument("--workers", default="", metavar="FLAGS", help="ours in the server's phases, as `tandem up` wants them, instead of one unified worker")
    parser.add_argument("--kv-memory", default="1GiB")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--logs", type=pathlib.Path, default=ROOT / "build/compare")
    parser.add_argument("--json", type=pathlib.Path, help="every round's figures")
    return parser.parse_args()


def make_engines(options):
    flags = {}
    for text in options.peer_flags:
        name, _, words = text.partition("=")
        flags[name] = shlex.split(words)
    engines = [Tandem(options)]
    for text in options.peer:
        name, _, directory = text.partition("=")
        engines.append(Peer(options, name, directory, flags.get(name, [])))
    for text in options.url:
        name, _, url = text.partition("=")
        engines.append(Running(name, url))
    return engines


def main():
    options = parse()
    options.logs.mkdir(parents=True, exist_ok=True)
    engines = make_engines(options)
    results, failures = {}, set()
    for number in range(options.rounds):
        for phase in options.phase or PHASES:
            turned = engines[number % len(engines):] + engines[:number % len(engines)]
            for engine in turned:
                if (engine.name, phase) in failures:
                    continue
                try:
                    found = measure(options, engine, phase)
                except (RuntimeError, subprocess.TimeoutExpired, StopIteration, KeyError, ValueError) as error:
                    failures.add((engine.name, phase))
                    print(f"{engine.name}, {phase}: {error}", file=sys.stderr)
                    continue
                for row, value in found.items():
                    results.setdefault(row, {}).setdefault(engine.name, []).append(value)
                    print(f"round {number + 1}, {row}, {engine.name}: {value:.4g}", file=sys.stderr)
    ceilings = [f"{float(value):.1f}" for value in engines[0].ceilings.split(",")] if engines[0].ceilings else None
    print(f"{options.model.name}, {options.threads} threads, {options.rounds} rounds"
          + (f"; memory read {ceilings[0]} GB/s, float32 {ceilings[1]} GFLOP/s, int8 {ceilings[2]} GOP/s" if ceilings else "") + "\n")
    print(table(engines, results, engines[0].floors))
    if options.json:
        options.json.write_text(json.dumps({"model": options.model.name, "threads": options.threads, "ceilings": ceilings, "results": results},
                                           indent=1) + "\n", encoding="utf-8")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
