#!/usr/bin/env bash
# The benchmarks behind docs/performance.md, one after the other; about ten minutes on two idle cores.
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --build --preset release --target ops_bench sample_bench net_bench text_bench router_bench router_policy_bench bench_interference bench_engine > build/bench-build.log 2>&1 ||
  { tail -30 build/bench-build.log; exit 1; }
for bench in build/release/bench/*_bench; do
  echo "== $(basename "$bench")"
  "$bench"
done
echo "== the engine: shares of the floor"
build/release/bench_engine
echo "== running streams against long prompts"
bench/pair_vs_unified.sh
