#!/usr/bin/env python3
"""What routers add in front of a prefill/decode pair: bench/router/run.py [--full] [--rounds N] [--only NAME...] [--json FILE]

The method: ready-made answers from `tandem mock --static` (nothing is modelled), one closed-loop client (`load`), and in turn
nothing in between (direct), a bare forwarder of bytes to both legs (`floor`), our router and the published ones, all on this
machine with the same client and the same engines. Latencies are told less those of `direct` in the same round. Processor time
is that of the router's processes alone, from /proc. The client acknowledges at once
(TCP_QUICKACK), which is kind to routers that leave Nagle's algorithm on; a last table has one client without. Needs the targets tandem, bench_router_floor and bench_router_load; the
packages sglang-router and vllm-router are taken from the Python that runs this, when they are there.
"""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/release"
TICKS = os.sysconf("SC_CLK_TCK")
LOGS = ROOT / "build/router-bench"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def process(name, command, **options):
    """A process that ends with the block, by its own id."""
    LOGS.mkdir(parents=True, exist_ok=True)
    with open(LOGS / f"{name}.log", "a", encoding="utf-8") as log:
        started = subprocess.Popen(list(map(str, command)), stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                                   **{"stdout": log, **options})
        try:
            yield started
        finally:
            started.send_signal(signal.SIGTERM)
            try:
                started.wait(10)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait(10)


@contextlib.contextmanager
def engines(name, dialect, *options):
    """[(role, port, bootstrap port or None)]"""
    command = [BUILD / "tandem", "mock", "--static", "--dialect", dialect, *options]
    with process(name, command, stdout=subprocess.PIPE, text=True) as started:
        found = []
        for line in started.stdout:
            if line.strip() == "ready":
                break
            words = line.split()
            found.append((words[0], int(words[1].rsplit(":", 1)[1]), int(words[3]) if len(words) > 3 else None))
        assert found, "the mocks did not start"
        yield found


def family(pid):
    """`pid` and its descendants."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError):
                parents[int(entry)] = int(pathlib.Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[1])
    all_of_it, fresh = {pid}, {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - all_of_it
        all_of_it |= fresh
    return all_of_it


def cpu_seconds(pid):
    total = 0
    for each in family(pid):
        with contextlib.suppress(OSError):
            fields = pathlib.Path(f"/proc/{each}/stat").read_text().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
    return total / TICKS


def resident_bytes(pid):
    total = 0
    for each in family(pid):
        with contextlib.suppress(OSError):
            total += int(pathlib.Path(f"/proc/{each}/statm").read_text().split()[1])
    return total * os.sysconf("SC_PAGE_SIZE")


def wait_for_answer(port, seconds=60):
    """Until a whole request through it is answered."""
    body = json.dumps({"model": "mock-model", "messages": [{"role": "user", "content": "ready?"}], "max_tokens": 4})
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            reply.read()
            if reply.status == 200:
                return
        time.sleep(0.2)
    raise AssertionError(f"the router on port {port} is not ready; see {LOGS}")


def addresses(pair):
    prefill = next(each for each in pair if each[0] == "prefill")
    decode = next(each for each in pair if each[0] == "decode")
    return prefill[1], prefill[2], decode[1]


# Each: (port, pid to be measured). Those that are not installed are left out.
@contextlib.contextmanager
def direct(pair):
    yield addresses(pair)[2], None


@contextlib.contextmanager
def floor(pair):
    prefill, _, decode = addresses(pair)
    with process("floor", [BUILD / "bench/bench_router_floor", prefill, decode], stdout=subprocess.PIPE, text=True) as started:
        port = int(started.stdout.readline().rsplit(":", 1)[1])
        yield port, started.pid


def tandem(connector):
    @contextlib.contextmanager
    def run(pair):
        prefill, bootstrap, decode = addresses(pair)
        port = free_port()
        command = [os.environ.get("TANDEM_BINARY", BUILD / "tandem"), "router", "--connector", connector, "--port", port, "--no-access-log", "--local-prefill-tokens", 0,
                   "--max-connections", 20000, "--max-bodies", "8G", "--prefill", f"http://127.0.0.1:{prefill}",
                   "--decode", f"http://127.0.0.1:{decode}"]
        with process(f"tandem-{connector}", command) as started:
            wait_for_answer(port)
            yield port, started.pid
    return run


@contextlib.contextmanager
def sglang_router(pair):
    prefill, bootstrap, decode = addresses(pair)
    port = free_port()
    command = [sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", port, "--prometheus-port",
               free_port(), "--policy", "round_robin", "--log-level", "warn", "--max-concurrent-requests", "20000",
               "--pd-disaggregation", "--prefill", f"http://127.0.0.1:{prefill}", bootstrap, "--decode",
               f"http://127.0.0.1:{decode}"]
    with process("sglang-router", command) as started:
        wait_for_answer(port)
        yield port, started.pid


@contextlib.contextmanager
def vllm_router(pair):
    prefill, _, decode = addresses(pair)
    port = free_port()
    command = [shutil.which("vllm-router", path=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"), "--host",
               "127.0.0.1", "--port", port, "--prometheus-port", free_port(), "--policy", "round_robin", "--log-level", "warning",
               "--max-concurrent-requests", "20000", "--vllm-pd-disaggregation", "--prefill", f"http://127.0.0.1:{prefill}",
               "--decode", f"http://127.0.0.1:{decode}"]
    with process("vllm-router", command) as started:
        wait_for_answer(port)
        yield port, started.pid


# name -> (dialect of the engines, how to run it, the module it needs)
ROUTERS = {
    "direct": ("sglang", direct, None),
    "floor": ("sglang", floor, None),
    "tandem sglang": ("sglang", tandem("sglang"), None),
    "sglang-router": ("sglang", sglang_router, "sglang_router"),
    "tandem vllm-nixl": ("vllm-nixl", tandem("vllm-nixl"), None),
    "vllm-router": ("vllm-nixl", vllm_router, "vllm_router"),
}


# One client, 16 KiB, in other ways: a router that leaves Nagle's algorithm on waits for acknowledgements, which clients delay by 40 ms.
WAYS = {"stream": {}, "stream, acknowledged at once": {"quick_ack": True}, "whole answers": {"whole": True}}


def load(port, **options):
    command = [BUILD / "bench/bench_router_load", "--port", port]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}"] if value is True else [f"--{name}", value]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
    lines = done.stdout.strip().splitlines()
    if not lines or not lines[-1].startswith("{"):
        return {"error": done.stderr.strip() or "nothing was measured"}
    return json.loads(lines[-1])


def measure(port, pid, **options):
    before = cpu_seconds(pid) if pid else 0
    result = load(port, **options)
    if pid and "error" not in result:
        result["cpu_us"] = (cpu_seconds(pid) - before) * 1e6 / max(result["completed"], 1)
        result["resident"] = resident_bytes(pid)
    return result


def hold(port, pid, clients, seconds):
    """`clients` streams that are open at once: what each costs in memory, and how late chunks are."""
    before = resident_bytes(pid) if pid else 0
    command = [BUILD / "bench/bench_router_load", "--port", port, "--clients", clients, "--seconds", seconds, "--warmup", 0, "--hold"]
    started = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    first = started.stdout.readline()
    if first.strip() != "holding":
        started.wait(30)
        return {"error": "not all streams began: " + (first + started.stderr.read())[:200]}
    cpu = cpu_seconds(pid) if pid else 0
    time.sleep(seconds * 0.7)
    held = resident_bytes(pid) if pid else 0
    spent = (cpu_seconds(pid) - cpu if pid else 0) / (seconds * 0.7)
    out, _ = started.communicate(timeout=60)
    result = json.loads(out.strip().splitlines()[-1])
    result.update(per_stream=(held - before) / clients, cpu_share=spent)
    return result


def number(value, digits=0):
    return "-" if value is None else f"{value:,.{digits}f}"


def table(title, head, rows):
    print(f"\n{title}\n\n| " + " | ".join(head) + " |\n|" + " --- |" * len(head))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    sys.stdout.flush()


def added(result, base, what, quantile):
    if "error" in result or what not in base:
        return None
    return result[what][quantile] - base[what][quantile]


def median_of(results):
    """Of several rounds' results: the median of every figure; a round that failed counts as none."""
    good = [each for each in results if "error" not in each]
    if not good:
        return results[0]
    return {what: {quantile: statistics.median(each[what][quantile] for each in good) for quantile in value} if isinstance(value, dict)
            else statistics.median(each[what] for each in good) if isinstance(value, (int, float)) else value
            for what, value in good[0].items()}


def measure_all(name, bodies, clients, held, seconds, results):
    dialect, run, _ = ROUTERS[name]
    with engines("engines", dialect, "--prefill", 1, "--decode", 1, "--step", "0", "--reply-tokens", 16) as pair, run(pair) as (port, pid):
        for body in bodies:
            for count in clients:
                if body * count <= 1 << 30:  # more than that is memory's measure, not a router's
                    results[f"{name}/{body}/{count}"] = measure(port, pid, clients=count, body=body, seconds=seconds, warmup=0.5, quick_ack=True)
        for way in WAYS:
            results[f"{name}/{way}"] = measure(port, pid, clients=1, body=16 << 10, seconds=seconds, warmup=0.3, **WAYS[way])
    for count in held:
        with engines("engines", dialect, "--prefill", 1, "--decode", 1, "--step", "1s", "--reply-tokens", 600) as pair, \
                run(pair) as (port, pid):
            results[f"{name}/held/{count}"] = hold(port, pid, count, 6)
    print(f"{name}: measured", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all sizes and numbers of clients; some ten minutes")
    parser.add_argument("--only", nargs="+", choices=list(ROUTERS), help="these (and direct)")
    parser.add_argument("--seconds", type=float, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=1, help="all of it so often, the routers in another order each time; medians are told")
    parser.add_argument("--json", help="all results go to this file too")
    options = parser.parse_args()
    seconds = options.seconds or (4 if options.full else 1.5)
    bodies = (200, 16 << 10, 1 << 20)
    clients = (1, 64, 1000, 4000) if options.full else (1, 64)
    held = (1000, 4000, 10000) if options.full else (1000,)
    names = [name for name, (_, _, module) in ROUTERS.items()
             if (not options.only or name == "direct" or name in options.only) and (module is None or installed(module))]
    rounds = []
    for turn in range(options.rounds):
        rounds.append({})
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            try:
                measure_all(name, bodies, clients, held, seconds, rounds[-1])
            except (AssertionError, OSError) as failure:
                print(f"{name}: {failure}", file=sys.stderr)
        if options.json:
            pathlib.Path(options.json).write_text(json.dumps(rounds, indent=1))
    everything = {key: median_of([each[key] for each in rounds if key in each]) for key in dict.fromkeys(key for each in rounds for key in each)}
    for body in bodies:
        rows = []
        for count in clients:
            base = everything.get(f"direct/{body}/{count}")
            for name in names:
                result = everything.get(f"{name}/{body}/{count}")
                if result is None:
                    continue
                if "error" in result:
                    rows.append([name, count, result["error"], "", "", "", "", ""])
                    continue
                cpu = result.get("cpu_us")
                rows.append([name, count, number(result["per_second"]), number(cpu, 1), number(1e6 / cpu if cpu else None),
                             number(added(result, base, "first_us", "p50")) if name != "direct" else f"({number(result['first_us']['p50'])})",
                             number(added(result, base, "first_us", "p99")) if name != "direct" else f"({number(result['first_us']['p99'])})",
                             number(result["failed"])])
        table(f"Bodies of {body:,} bytes, answers of 16 chunks", ["router", "clients", "requests/s", "CPU us/request", "requests/s of one core",
                                            "added us to first byte, p50", "p99", "failed"], rows)
    rows = []
    for name in names:
        found = {way: everything.get(f"{name}/{way}", {"error": ""}) for way in WAYS}
        rows.append([name, *("-" if "error" in each else f"{number(each['first_us']['p50'])} / {number(each['first_us']['p99'])}"
                             for each in found.values())])
    table("One client, bodies of 16 KiB: us to the first byte, p50 / p99 (nothing subtracted)", ["router", *WAYS], rows)
    rows = []
    for count in held:
        base = everything.get(f"direct/held/{count}", {})
        for name in names:
            result = everything.get(f"{name}/held/{count}")
            if result is None:
                continue
            if "error" in result:
                rows.append([name, count, result["error"], "", "", ""])
                continue
            rows.append([name, count, number(result["per_stream"] / 1024, 1) if name != "direct" else "-", number(result["cpu_share"] * 100, 1),
                         number(added(result, base, "chunk_us", "p50")) if name != "direct" else f"({number(result['chunk_us']['p50'])})",
                         number(added(result, base, "chunk_us", "p99")) if name != "direct" else f"({number(result['chunk_us']['p99'])})"])
    table("Streams held open, a chunk each second", ["router", "streams", "KiB per stream", "% of a core", "added us per chunk, p50", "p99"], rows)


def installed(module):
    import importlib.util
    return importlib.util.find_spec(module) is not None


if __name__ == "__main__":
    main()
