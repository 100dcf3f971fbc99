#!/usr/bin/env bash
# Makes tests/golden/logits/ from transformers and tests/golden/formats.txt from gguf. Needs scripts/reference/setup.sh, the model of
# scripts/fetch-model.sh smollm2-135m, and a build of model_test.
#
# usage: make_goldens.sh [BUILD_DIR]    (default build/release)
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build/release}
python=.venv/bin/python
model=models/smollm2-135m-instruct.Q4_1.gguf
golden=tests/golden/logits
for needed in "$python" "$build/tests/model_test" "$model"; do
  [[ -e $needed ]] || { echo "missing: $needed" >&2; exit 1; }
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$golden"
TANDEM_TINY_MODEL_DIR=$work "$build/tests/model_test" --gtest_filter='GoldenLogits.WritesTinyModelsWhenAsked' >/dev/null
for name in tiny-plain tiny-quant tiny-q6k; do
  "$python" scripts/reference/logits.py "$work/$name.gguf" "$work/$name.i32" "$golden/$name.golden"
done
gemma=models/gemma-3-270m.Q4_K_M.gguf  # scripts/fetch-model.sh gemma3-270m
if [[ -e $gemma ]]; then
  cat scripts/reference/prompt.txt scripts/reference/prompt.txt >"$work/long.txt"
  "$python" scripts/reference/tokens.py "$gemma" "$work/long.txt" "$work/long.i32" --limit 1200
  "$python" scripts/reference/logits.py "$gemma" "$work/long.i32" "$golden/gemma3-270m.golden" --samples 2
fi
"$python" scripts/reference/families.py tests/golden/families
"$python" scripts/reference/tokens.py "$model" scripts/reference/prompt.txt "$work/prompt.i32" --limit 600
"$python" scripts/reference/logits.py "$model" "$work/prompt.i32" "$golden/smollm2-135m.golden"
"$python" scripts/reference/formats.py tests/golden/formats.txt
