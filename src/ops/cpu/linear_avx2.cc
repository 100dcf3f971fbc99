// The simd header must come first: the shared bodies are written in its types.
// clang-format off
#include "ops/cpu/bytes_avx2.h"
#include "ops/cpu/linear.inl.h"
// clang-format on
#include "ops/cpu/avx2.h"

namespace tandem::ops::cpu {

void linear_f32_avx2(const LinearF32& params) { linear_f32(params); }

}  // namespace tandem::ops::cpu
