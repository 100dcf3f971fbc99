// The kernels that work in AMX's tiles; the level's others are AVX-512's.
#pragma once

#include "ops/cpu/kernels.h"

namespace tandem::ops::cpu {

// linear_i8_avx512()'s bits, for any number of rows.
void linear_i8_amx(const LinearI8& params);

// Denormal inputs, products and sums count as zeros.
void linear_bf16_amx(const LinearBf16& params);

// Products in BF16 for pages of BF16 and of one-byte codes; other pages, and blocks that are no
// multiple of sixteen tokens, as attention_avx512(). Denormals likewise. Merged by
// merge_attention_avx512().
void attention_amx(const AttentionTile& tile);

}  // namespace tandem::ops::cpu
