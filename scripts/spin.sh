#!/usr/bin/env bash
# Checks src/kv/model/handoff.pml with spin: the model as it is must hold, with one decode worker and with two, over a transport
# that cannot be fenced, and must not go round in circles; with each protection switched off the property that it protects must
# fail, looked at alone. TROUBLE=N: how many things go wrong of themselves.
set -euo pipefail
cd "$(dirname "$0")/.."
model=$PWD/src/kv/model/handoff.pml
trouble=${TROUBLE:-4}
less=$((trouble - 1))  # where there are more states
[ "$trouble" -gt 4 ] && seconds=900 megabytes=8000 || seconds=120 megabytes=2000  # of one check
command -v spin > /dev/null || { echo "spin: not installed; make setup installs it" >&2; exit 1; }
folder=build/spin
rm -rf "$folder" && mkdir -p "$folder"

verdict() {  # verdict NAME "SPIN FLAGS" "COMPILER FLAGS" "CHECKER FLAGS": prints "holds" or what is broken
  local at=$folder/$1
  mkdir -p "$at"
  # shellcheck disable=SC2086
  (cd "$at" && spin -a $2 "$model" > spin.log && clang-19 -w -DCOLLAPSE -DVECTORSZ=1024 "-DMEMLIM=$megabytes" $3 -o pan pan.c &&
    timeout "$seconds" ./pan -m100000 $4 > pan.log) || { echo "could not be checked: see $at"; return; }
  if grep -q "errors: 0" "$at/pan.log" && ! grep -q "max search depth too small\|out of memory" "$at/pan.log"; then
    echo "holds, $(awk '/states, stored/ {print $1; exit}' "$at/pan.log") states"
  elif grep -q "errors: [1-9]" "$at/pan.log"; then
    grep -m1 '^pan:' "$at/pan.log" | sed -E 's/^pan:[0-9]+: //; s/assertion violated .*broken_([A-Z]+).*/\1/; s/ \(at depth.*//'
  else
    echo "could not be checked: see $at"
  fi
}

failures=0
expect() {  # expect VERDICT NAME FLAGS...
  local wanted=$1 said
  shift
  said=$(verdict "$@")
  echo "spin: $1: $said"
  [[ $said == "$wanted"* ]] || { failures=$((failures + 1)) && echo "spin: $1 was to be: $wanted"; }
}
breaks() { expect "$1" "$2" "-DTROUBLE=$trouble -DONE_HOST -DONLY=$1 -D$2 ${3:-}" -DSAFETY -E; }  # breaks PROPERTY SWITCH [SPIN FLAG]

expect holds two-workers "-DTROUBLE=$trouble" "-O1 -DSAFETY" ""
expect holds one-worker "-DTROUBLE=$trouble -DONE_HOST" "-O1 -DSAFETY" ""
expect holds unfenced "-DTROUBLE=$less -DONE_HOST -DUNFENCED" "-O1 -DSAFETY" ""
expect holds every-run-ends "-DTROUBLE=$less -DONE_HOST" "-O1 -DNP" -l
breaks READ NO_READERS
breaks BELIEVED NO_GENERATION
breaks READ TIME_FREES
breaks READ NO_NONCE
breaks WRITTEN EARLY_RELEASE
breaks BELIEVED NO_COVERAGE
breaks LEAKED FENCE_LEAKS
breaks WRITTEN NO_QUARANTINE -DUNFENCED
expect "invalid end state" NO_FENCE "-DTROUBLE=$trouble -DONE_HOST -DNO_FENCE" -DSAFETY -A
expect "non-progress cycle" IDLE_RENEW "-DTROUBLE=$less -DONE_HOST -DIDLE_RENEW" -DNP "-l -A -E"
[ "$failures" -eq 0 ]
