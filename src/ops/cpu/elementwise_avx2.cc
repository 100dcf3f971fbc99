// The simd header must come first: the shared bodies are written in its types.
// clang-format off
#include "ops/cpu/simd_avx2.h"
#include "ops/cpu/elementwise.inl.h"
// clang-format on
#include "ops/cpu/avx2.h"

namespace tandem::ops::cpu {

void quantize_row_avx2(const float* x, int32_t columns, ActivationBlock* out) {
  quantize_row(x, columns, out);
}

void rms_norm_avx2(const float* x, const float* weight, int32_t columns, float epsilon,
                   float* out) {
  rms_norm(x, weight, columns, epsilon, out);
}

void rope_avx2(float* x, int32_t heads, int32_t head_dim, int32_t pairs, const float* cos_sin) {
  rope(x, heads, head_dim, pairs, cos_sin);
}

void silu_mul_avx2(const float* gate, const float* up, int32_t columns, float* out) {
  silu_mul(gate, up, columns, out);
}

void add_avx2(const float* x, int32_t columns, float* in_out) { add_rows(x, columns, in_out); }

void rope_halves_avx2(float* x, int32_t heads, int32_t head_dim, int32_t pairs,
                      const float* cos_sin) {
  rope_halves(x, heads, head_dim, pairs, cos_sin);
}

void gelu_mul_avx2(const float* gate, const float* up, int32_t columns, float* out) {
  gelu_mul(gate, up, columns, out);
}

void add_scaled_avx2(const float* x, float factor, int32_t columns, float* in_out) {
  add_scaled(x, factor, columns, in_out);
}

void scale_avx2(float factor, int32_t columns, float* in_out) {
  scale_row(factor, columns, in_out);
}

void soft_cap_avx2(float cap, int32_t columns, float* in_out) { soft_cap(cap, columns, in_out); }

}  // namespace tandem::ops::cpu
