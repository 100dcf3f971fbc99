#!/usr/bin/env bash
# Starts the whole stack on a free port and holds a two-turn conversation through it.
set -euo pipefail
binary=$1 model=$2
folder=$(mktemp -d)
"$binary" up "$model" --port 0 --no-access-log > "$folder/out" 2> "$folder/log" &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; rm -rf "$folder"' EXIT
for _ in $(seq 600); do
  grep -q '^listening on' "$folder/out" && break
  kill -0 "$server" 2>/dev/null || { cat "$folder/log" >&2; exit 1; }
  sleep 0.1
done
cat "$folder/out"
echo
"$binary" chat "$(sed -n 's/^listening on //p' "$folder/out")" --temperature 0 --max-tokens 96 \
  --message "What is the capital of France, and what is it known for?" --message "Now say that in one short sentence."
