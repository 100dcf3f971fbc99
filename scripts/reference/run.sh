#!/usr/bin/env bash
# Everything that is checked against references which were not written here: makes the goldens again, compares token ids of
# 10,000 random strings with `tokenizers` and 200 conversations with jinja2. Needs `make build` and setup.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
model=models/smollm2-135m-instruct.Q4_1.gguf
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "reference: goldens of logits (transformers, float32)"
scripts/reference/make_goldens.sh build/release
git diff --stat -- tests/golden/logits
build/release/tests/model_test --gtest_brief=1 --gtest_filter='Golden*'
echo "reference: token ids of 10,000 strings (tokenizers), 200 conversations (jinja2)"
.venv/bin/python scripts/reference/tokenizer.py model "$model" "$work"
.venv/bin/python scripts/reference/templates.py model "$model" "$work"
TANDEM_TEXT_REFERENCE=$work build/release/tests/text_test --gtest_brief=1
echo "reference: token ids of every tokenizer at hand (tokenizers, sentencepiece, tiktoken), templates of other families (jinja2)"
cmake --build --preset release --target bench_text > /dev/null
.venv/bin/python scripts/reference/token_ids.py build/release/bench_text "$work/tokenizers"
.venv/bin/python scripts/reference/family_templates.py build/release/bench_text || echo "reference: some templates differ (see docs/performance.md)"
if [ -n "${TANDEM_PERPLEXITY_TEXT:-}" ]; then
  echo "reference: perplexity on $TANDEM_PERPLEXITY_TEXT"
  .venv/bin/python scripts/reference/tokens.py "$model" "$TANDEM_PERPLEXITY_TEXT" "$work/text.i32"
  for numerics in exact fast; do
    build/release/tandem eval perplexity "$TANDEM_PERPLEXITY_TEXT" --model "$model" --numerics $numerics ${TANDEM_PERPLEXITY_LIMIT:+--limit "$TANDEM_PERPLEXITY_LIMIT"}
  done
  .venv/bin/python scripts/reference/perplexity.py "$model" "$work/text.i32" ${TANDEM_PERPLEXITY_LIMIT:+--limit "$TANDEM_PERPLEXITY_LIMIT"}
fi
