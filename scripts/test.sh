#!/usr/bin/env bash
# test.sh check | all | soak | venv (the Python environment of the tests alone). Each part prints its time; the budget of `all` on two cores from nothing is 40 minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=${1:-all}
jobs=${JOBS:-2}
began=$SECONDS
passed=0
failed=0

part() {  # part NAME COMMAND...: runs it, says how long it took; a failure is remembered and ends the run at the end
  local name=$1 start=$SECONDS
  shift
  echo "== $name"
  if "$@"; then
    passed=$((passed + 1))
    echo "== $name: ok, $((SECONDS - start)) s"
  else
    failed=$((failed + 1))
    echo "== $name: FAILED after $((SECONDS - start)) s"
  fi
}

build() {  # build PRESET [TARGET...]
  local preset=$1
  shift
  cmake --preset "$preset" > "build/configure-$preset.log" 2>&1 || { cat "build/configure-$preset.log"; return 1; }
  cmake --build --preset "$preset" -j "$jobs" ${1:+--target "$@"} > "build/build-$preset.log" 2>&1 || { tail -60 "build/build-$preset.log"; return 1; }
}

unit() {  # unit PRESET [CTEST ARGUMENT...]
  local preset=$1
  shift
  ctest --preset "$preset" -j "$jobs" --no-tests=error --progress "$@"
}

# Under a sanitizer some kinds stand for all, and time is not looked at: the rest of the same code would take minutes more.
unit_sanitized() {
  GTEST_FILTER='-*TakeLinearTime*:*Conformance*/process:*Conformance*/memory_module:*Conformance*/tcp1:*Conformance*/troubled_shm:*ChunksOfAny*/f16:*ChunksOfAny*/bf16:*ChunksOfAny*/fp8inline' unit "$@"
}

levels() {  # the whole stack with a lower instruction set forced; the unit tests go through all levels themselves
  local level tried=0
  for level in avx2:avx512f avx512:amx_tile; do
    grep -qw "${level#*:}" /proc/cpuinfo || continue
    tried=1
    TANDEM_ISA=${level%:*} end_to_end build/release/tandem quick tests/e2e/test_client.py || return 1
  done
  [ "$tried" = 1 ] || echo "this machine's highest level is what ran before"
}

venv() {
  local stamp=build/venv/.stamp
  if [ ! -e "$stamp" ] || [ tests/requirements.txt -nt "$stamp" ]; then
    rm -rf build/venv && python3 -m venv build/venv && build/venv/bin/pip install -q --no-compile --disable-pip-version-check -r tests/requirements.txt && touch "$stamp"
  fi
}

end_to_end() {  # end_to_end BINARY TIER [PYTEST ARGUMENT...]
  local binary=$1 tier=$2
  shift 2
  # Most of them wait most of the time. A file is run by one process: its tests share servers. A soak has the machine to itself.
  local beside=()
  [ "$tier" != quick ] || beside=(-n "$jobs" --dist loadfile)
  build/venv/bin/python -m pytest "${@:-tests/e2e}" --tandem "$binary" -m "$tier" -q --tb=short "${beside[@]}"
}

env_sanitized() { TANDEM_SANITIZED=1 "$@"; }

# What runs under sanitizers end to end: the client's view, a storm of disconnects, dead and frozen workers; beside these, under
# address and undefined, hostile bodies and every field of the API's document, and under thread, several models.
sanitized=(tests/e2e/test_client.py tests/e2e/test_storm.py tests/e2e/test_faults.py)
address_sanitized=("${sanitized[@]}" tests/e2e/test_bad_input.py tests/e2e/test_openapi.py)
thread_sanitized=("${sanitized[@]}" tests/e2e/test_models.py)

fuzz_one() {  # fuzz_one SECONDS FUZZER: from its seeds in tests/corpus and what earlier runs found
  local seconds=$1 fuzzer=$2 name
  name=$(basename "$fuzzer" _fuzz)
  local corpora=("build/corpus/$name")
  mkdir -p "${corpora[0]}"
  [ ! -d "tests/corpus/$name" ] || corpora+=("tests/corpus/$name")
  "$fuzzer" -max_total_time="$seconds" -rss_limit_mb=4096 -timeout=20 -print_final_stats=0 -verbosity=0 \
    -artifact_prefix="build/fuzz-$name-" "${corpora[@]}" > "build/fuzz-$name.log" 2>&1 ||
    { echo "fuzz: $name found something:"; tail -30 "build/fuzz-$name.log"; return 1; }
}
export -f fuzz_one

fuzz() {  # fuzz SECONDS: every fuzzer for so long, as many at once as there are jobs
  printf '%s\n' build/asan/fuzz/*_fuzz | xargs -P "$jobs" -I FUZZER bash -c "fuzz_one $1 FUZZER"
}

finish() {
  echo "total: $((SECONDS - began)) s"
  echo "parts: $passed passed, $failed failed"
  [ "$failed" -eq 0 ]
}

model() { scripts/fetch-model.sh smollm2-135m; }
export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0 UBSAN_OPTIONS=print_stacktrace=1 "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=$PWD/tests/tsan.supp"
export ASAN_SYMBOLIZER_PATH=/usr/bin/llvm-symbolizer-19 TSAN_SYMBOLIZER_PATH=/usr/bin/llvm-symbolizer-19

case $mode in
check)
  part "unit tests" unit release
  part "registers of the kernels" scripts/check_spills.py
  part "lint of changed files" scripts/lint.sh changed
  ;;
all)
  part "release build" build release
  part "model" model
  part "unit tests" unit release
  part "registers of the kernels" scripts/check_spills.py
  part "model of the handoff" scripts/spin.sh
  part "lint" env TANDEM_TIDY_FILES="${TANDEM_TIDY_FILES:-24}" scripts/lint.sh changed
  part "python environment" venv
  part "end-to-end tests" end_to_end build/release/tandem quick
  part "end-to-end tests at a lower instruction set" levels
  part "address and undefined sanitizer build" build asan
  part "unit tests under address and undefined sanitizers" unit_sanitized asan -E '^model$'
  part "short end-to-end run under address and undefined sanitizers" env_sanitized end_to_end build/asan/tandem quick "${address_sanitized[@]}"
  part "fuzzers, a few seconds each" fuzz "${TANDEM_FUZZ_SECONDS:-4}"
  part "thread sanitizer build" build tsan net_test worker_test router_test kv_transfer_test kv_handoff_test engine_test engine_scheduler_test device_test eval_test tandem
  part "unit tests under the thread sanitizer" unit_sanitized tsan -R '^(net|worker|router|kv_transfer|kv_handoff|engine|engine_scheduler|device|eval)$'
  part "short end-to-end run under the thread sanitizer" env_sanitized end_to_end build/tsan/tandem quick "${thread_sanitized[@]}"
  ;;
soak)
  part "release build" build release
  part "model of the handoff, more goes wrong" env TROUBLE=6 scripts/spin.sh
  part "simulation of the KV plane" build/release/tandem simulate kv --runs 1000000 --seed 100001
  part "model" model
  part "python environment" venv
  part "program of the grammars" build release bench_grammar
  part "JSON-Schema-Test-Suite" build/venv/bin/python scripts/reference/json_schema_suite.py --program build/release/bench_grammar --fetch build/suite
  part "random schemas" build/venv/bin/python scripts/reference/json_schema_random.py models/smollm2-135m-instruct.Q4_1.gguf
  part "full end-to-end tests" end_to_end build/release/tandem "quick or full or soak"
  part "address and undefined sanitizer build" build asan all model_test
  part "unit tests under address and undefined sanitizers" unit asan
  part "end-to-end soak under address and undefined sanitizers" env_sanitized end_to_end build/asan/tandem "quick or soak" "${address_sanitized[@]}" tests/e2e/test_router_chaos.py
  part "fuzzers, a minute each" fuzz 60
  part "thread sanitizer build" build tsan
  part "unit tests under the thread sanitizer" unit tsan -E '^(model|ops)$'
  part "end-to-end soak under the thread sanitizer" env_sanitized end_to_end build/tsan/tandem "quick or soak" "${thread_sanitized[@]}" tests/e2e/test_router_chaos.py
  ;;
venv) venv && exit ;;
*) echo "test.sh check | all | soak | venv" >&2; exit 2 ;;
esac
finish
