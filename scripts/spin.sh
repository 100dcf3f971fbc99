#!/usr/bin/env bash
# Checks src/kv/model/handoff.pml with spin: the model as it is must hold, with one decode worker and with two, and must not
# go round in circles; with each protection switched off it must fail. TROUBLE=N: how many things go wrong of themselves.
set -euo pipefail
cd "$(dirname "$0")/.."
model=$PWD/src/kv/model/handoff.pml
trouble=${TROUBLE:-4}
protections=(NO_READERS NO_GENERATION TIME_FREES NO_NONCE EARLY_RELEASE NO_COVERAGE NO_FENCE FENCE_LEAKS)
command -v spin > /dev/null || { echo "spin: not installed; make setup installs it" >&2; exit 1; }
folder=build/spin
rm -rf "$folder" && mkdir -p "$folder"

verdict() {  # verdict NAME "SPIN FLAGS" "COMPILER FLAGS" "CHECKER FLAGS": prints "holds" or "fails: why"
  local at=$folder/$1
  mkdir -p "$at"
  # shellcheck disable=SC2086
  (cd "$at" && spin -a "-DTROUBLE=$trouble" $2 "$model" > spin.log && clang-19 -w -DCOLLAPSE -DVECTORSZ=1024 -DMEMLIM=2000 $3 -o pan pan.c &&
    timeout 120 ./pan -m100000 $4 > pan.log) || { echo "could not be checked: see $at"; return; }
  if grep -q "errors: 0" "$at/pan.log" && ! grep -q "max search depth too small\|out of memory" "$at/pan.log"; then
    echo "holds, $(awk '/states, stored/ {print $1; exit}' "$at/pan.log") states"
  elif grep -q "errors: [1-9]" "$at/pan.log"; then
    echo "fails: $(grep -m1 '^pan:' "$at/pan.log")"
  else
    echo "could not be checked: see $at"
  fi
}

failures=0
expect() {  # expect HOLDS|FAILS NAME FLAGS...
  local wanted=$1 said
  shift
  said=$(verdict "$@")
  echo "spin: $1: $said"
  case "$wanted $said" in
  "holds holds"* | "fails fails"*) ;;
  *) failures=$((failures + 1)) && echo "spin: $1 was to be one that $wanted" ;;
  esac
}

expect holds two-workers "" "-O1 -DSAFETY" ""
expect holds one-worker -DONE_HOST "-O1 -DSAFETY" ""
expect holds every-run-ends -DONE_HOST "-O1 -DNP" -l
for protection in "${protections[@]}"; do
  expect fails "$protection" "-DONE_HOST -D$protection" -DSAFETY ""
done
[ "$failures" -eq 0 ]
