// The simd header must come first: the shared bodies are written in its types.
// clang-format off
#include "ops/cpu/simd_avx2.h"
#include "ops/cpu/attention.inl.h"
// clang-format on
#include "ops/cpu/avx2.h"

namespace tandem::ops::cpu {

void attention_avx2(const AttentionTile& tile) { attention(tile); }
void merge_attention_avx2(const AttentionTile& tile) { merge_partials(tile); }

}  // namespace tandem::ops::cpu
