// The Avx512 kernels, one per entry of Kernels. Call them only through the table that dispatch.h
// chooses.
#pragma once

#include "ops/cpu/kernels.h"

namespace tandem::ops::cpu {

void linear_f32_avx512(const LinearF32& params);
void linear_i8_avx512(const LinearI8& params);
void linear_bf16_avx512(const LinearBf16& params);
void quantize_row_avx512(const float* x, int32_t columns, ActivationBlock* out);
void rms_norm_avx512(const float* x, const float* weight, int32_t columns, float epsilon,
                     float* out);
void rope_avx512(float* x, int32_t heads, int32_t head_dim, int32_t pairs, const float* cos_sin);
void rope_halves_avx512(float* x, int32_t heads, int32_t head_dim, int32_t pairs,
                        const float* cos_sin);
void silu_mul_avx512(const float* gate, const float* up, int32_t columns, float* out);
void gelu_mul_avx512(const float* gate, const float* up, int32_t columns, float* out);
void add_avx512(const float* x, int32_t columns, float* in_out);
void add_scaled_avx512(const float* x, float factor, int32_t columns, float* in_out);
void scale_avx512(float factor, int32_t columns, float* in_out);
void soft_cap_avx512(float cap, int32_t columns, float* in_out);
void attention_avx512(const AttentionTile& tile);
void merge_attention_avx512(const AttentionTile& tile);
void load_values_avx512(const StoredValues& from, const std::byte* values, float* out);
void store_values_avx512(const StoredValues& to, const float* x, std::byte* out);
void raise_peaks_avx512(const float* x, int32_t count, float* in_out);

}  // namespace tandem::ops::cpu
