// The normative kernels, one per entry of Kernels.
#pragma once

#include "ops/cpu/kernels.h"

namespace tandem::ops::cpu {

void linear_f32_scalar(const LinearF32& params);
void linear_i8_scalar(const LinearI8& params);
void quantize_row_scalar(const float* x, int32_t columns, ActivationBlock* out);
void rms_norm_scalar(const float* x, const float* weight, int32_t columns, float epsilon,
                     float* out);
void rope_scalar(float* x, int32_t heads, int32_t head_dim, int32_t pairs, const float* cos_sin);
void rope_halves_scalar(float* x, int32_t heads, int32_t head_dim, int32_t pairs,
                        const float* cos_sin);
void silu_mul_scalar(const float* gate, const float* up, int32_t columns, float* out);
void gelu_mul_scalar(const float* gate, const float* up, int32_t columns, float* out);
void add_scalar(const float* x, int32_t columns, float* in_out);
void add_scaled_scalar(const float* x, float factor, int32_t columns, float* in_out);
void scale_scalar(float factor, int32_t columns, float* in_out);
void soft_cap_scalar(float cap, int32_t columns, float* in_out);
void attention_scalar(const AttentionTile& tile);
void merge_attention_scalar(const AttentionTile& tile);
void load_values_scalar(const StoredValues& from, const std::byte* values, float* out);
void store_values_scalar(const StoredValues& to, const float* x, std::byte* out);
void raise_peaks_scalar(const float* x, int32_t count, float* in_out);
float exp_scalar(float x);
float soft_cap_one_scalar(float cap, float x);  // cap * tanh(x / cap)

}  // namespace tandem::ops::cpu
