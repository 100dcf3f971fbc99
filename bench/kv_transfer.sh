#!/usr/bin/env bash
# KV transport rates beside iperf3 with as many streams, in one run: bench/kv_transfer.sh [SLICE_KIB]
# Needs build/release/bench_kv_transfer (ninja -C build/release bench_kv_transfer) and iperf3.
set -euo pipefail
cd "$(dirname "$0")/.."
port=${IPERF_PORT:-5299}
iperf3 --server --port "$port" > /dev/null 2>&1 &
server=$!
trap 'kill $server 2> /dev/null' EXIT
sleep 0.5
peer() {  # peer LABEL ARGS: the median of three
  for _ in 1 2 3; do
    iperf3 --client 127.0.0.1 --port "$port" --time 2 --json "${@:2}" |
      python3 -c 'import json, sys; print(json.load(sys.stdin)["end"]["sum_received"]["bits_per_second"] / 8e9)'
  done | sort -n | sed -n 2p | xargs printf '%-18s %8.2f\n' "$1"
}
for streams in 1 2 4; do peer "iperf3 -P $streams" -P "$streams"; done
peer "iperf3 -P 1 -Z" -P 1 -Z
peer "iperf3 -P 4 -Z" -P 4 -Z
build/release/bench_kv_transfer "$@"
for streams in 1 2 4; do peer "iperf3 -P $streams" -P "$streams"; done
