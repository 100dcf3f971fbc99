#!/usr/bin/env python3
"""Each operator's share of what the machine can do, as a Markdown table: bench/bench_ops.py [--filter REGEX] [--json FILE]

Runs build/release/bench/ops_bench, which measures the ceilings (memory read, float32 and int8 rate) before the operators,
in the same process and on one thread. An operator's share is the larger of its two: what it reads over the memory's rate, what it computes over the
arithmetic's. Those under --least (60 %) are marked; docs/performance.md explains them."""

import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def row(measured):
    memory, compute = measured.get("of_memory", 0), measured.get("of_compute", 0)
    rates = [f"{measured[name]:.1f} {name}" for name in ("GB/s", "GOP/s", "GFLOP/s") if name in measured]
    return {"op": measured["name"].split("/min_time")[0], "time_us": measured["real_time"] / 1e3, "rate": ", ".join(rates),
            "share": max(memory, compute), "bound": "memory" if memory >= compute else "arithmetic"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build/release/bench/ops_bench")
    parser.add_argument("--filter", default=".", help="of operators, for example 'linear/Q4_1'")
    parser.add_argument("--least", type=float, default=0.6)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    if not options.binary.exists():
        sys.exit(f"{options.binary} is missing: ninja -C build/release ops_bench")
    done = subprocess.run([options.binary, f"--benchmark_filter={options.filter}", "--benchmark_format=json"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    # The first line names the machine's limits, the rest is the library's JSON.
    limits, _, rest = done.stdout.partition("\n")
    benchmarks = json.loads(rest)["benchmarks"] if rest.strip() else []
    rows = [row(each) for each in benchmarks if each.get("run_type", "iteration") == "iteration" and "error_occurred" not in each]
    if not rows:
        sys.exit(f"no operator matches {options.filter}")
    print(f"{limits}\n\n| op | time, us | rate | bound by | share of the ceiling |\n| --- | --- | --- | --- | --- |")
    for each in rows:
        mark = "" if each["share"] >= options.least else " (low)"
        print(f"| {each['op']} | {each['time_us']:.1f} | {each['rate']} | {each['bound']} | {100 * each['share']:.0f} %{mark} |")
    low = sum(each["share"] < options.least for each in rows)
    print(f"\n{low} of {len(rows)} are under {100 * options.least:.0f} %.")
    if options.json:
        options.json.write_text(json.dumps({"limits": limits, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
