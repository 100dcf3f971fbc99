#!/usr/bin/env bash
# Running streams while long prompts arrive at 70 % of the pair's prefill capacity: a prefill/decode pair (one core each)
# against one unified worker on the same two cores, at several chunk sizes. Prints one table row for each.
#   bench/pair_vs_unified.sh [MODEL]    SECONDS_EACH=60 STREAMS=4 PROMPT=1024 CHUNKS="32 64 128 256 512" PAIR="--prompt-numerics bf16"
set -euo pipefail
cd "$(dirname "$0")/.."
model=${1:-models/smollm2-135m-instruct.Q4_1.gguf}
each=${SECONDS_EACH:-60} streams=${STREAMS:-4} prompt=${PROMPT:-1024} chunks=${CHUNKS:-32 64 128 256 512}
binary=build/release/tandem bench=build/release/bench_interference
folder=$(mktemp -d)
server=""
stop() { [ -n "$server" ] && kill "$server" 2>/dev/null && wait "$server" 2>/dev/null; server=""; true; }
trap 'stop; rm -rf "$folder"' EXIT
start() {
  "$binary" up "$model" --port 0 --no-access-log --log-level warning "$@" > "$folder/out" 2> "$folder/log" &
  server=$!
  until grep -q '^listening on' "$folder/out"; do kill -0 "$server" || { cat "$folder/log"; exit 1; }; sleep 0.1; done
  url=$(sed -n 's/^listening on //p' "$folder/out")
}
# shellcheck disable=SC2086  # words
start --prefill 1 --decode 1 ${PAIR:-}
capacity=$("$bench" "$url" --measure --prompt-tokens "$prompt")
rate=$(awk -v c="$capacity" -v p="$prompt" 'BEGIN { printf "%.3f", 0.7 * c / p }')
echo "pair's prefill capacity: $capacity tokens/s; prompts of $prompt tokens at $rate a second, $streams streams, $each s each"
printf '%-22s %s\n' "pair" "$("$bench" "$url" --rate "$rate" --seconds "$each" --streams "$streams" --prompt-tokens "$prompt")"
stop
for chunk in $chunks; do
  start --unified 1 --threads 2 --prefill-chunk "$chunk"
  printf '%-22s %s\n' "unified, chunk $chunk" "$("$bench" "$url" --rate "$rate" --seconds "$each" --streams "$streams" --prompt-tokens "$prompt")"
  stop
done
