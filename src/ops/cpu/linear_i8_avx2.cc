// The simd header must come first: the shared bodies are written in its types.
// clang-format off
#include "ops/cpu/simd_avx2.h"
#include "ops/cpu/linear_i8_avx2.inl.h"
// clang-format on
#include "ops/cpu/avx2.h"

namespace tandem::ops::cpu {

void linear_i8_avx2(const LinearI8& params) { linear_i8(params); }

}  // namespace tandem::ops::cpu
