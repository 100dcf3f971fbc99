#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "ops/cpu/exp_constants.h"
#include "ops/cpu/scalar.h"

namespace tandem::ops::cpu {

float exp_scalar(float x) {
  namespace c = exp_constants;
  if (x < c::kLowest) return 0;
  x = std::min(x, c::kHighest);
  const float n = std::nearbyintf(x * c::kLog2E);
  const float r = (x - n * c::kLn2High) - n * c::kLn2Low;
  float p = c::kC6;
  p = p * r + c::kC5;
  p = p * r + c::kC4;
  p = p * r + c::kC3;
  p = p * r + c::kC2;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  if (!(n == n)) return n;  // NaN
  return p * std::bit_cast<float>(static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23);
}

void quantize_row_scalar(const float* x, int32_t columns, ActivationBlock* out) {
  for (int32_t block = 0; block < columns / 32; ++block, x += 32, ++out) {
    // Magnitudes compare as integers, and there NaN is largest, so it cannot hide.
    uint32_t peak_bits = 0;
    for (int i = 0; i < 32; ++i)
      peak_bits = std::max(peak_bits, std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFU);
    const bool finite = peak_bits < 0x7F800000U;
    const float peak = finite ? std::bit_cast<float>(peak_bits) : 0.0F;
    const float scale = peak > 0x1p-120F ? 127.0F / peak : 0.0F;
    int32_t half[2] = {};
    for (int i = 0; i < 32; ++i) {
      out->q[i] = finite ? static_cast<int8_t>(std::nearbyintf(x[i] * scale)) : int8_t{0};
      half[i / 16] += out->q[i];
    }
    out->d = finite ? peak * (1.0F / 127.0F) : std::numeric_limits<float>::quiet_NaN();
    out->d_times_sum = out->d * static_cast<float>(half[0] + half[1]);
    out->minus_8_sum = -8 * (half[0] + half[1]);
    for (int i = 0; i < 2; ++i) out->minus_half[i] = static_cast<int16_t>(-half[i]);
  }
}

void rms_norm_scalar(const float* x, const float* weight, int32_t columns, float epsilon,
                     float* out) {
  double squares = 0;
  for (int32_t i = 0; i < columns; ++i)
    squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  const float mean = static_cast<float>(squares / columns);
  const float scale = 1.0F / std::sqrt(mean + epsilon);
  for (int32_t i = 0; i < columns; ++i) out[i] = x[i] * scale * weight[i];
}

void rope_scalar(float* x, int32_t heads, int32_t head_dim, int32_t pairs, const float* cos_sin) {
  for (int32_t head = 0; head < heads; ++head, x += head_dim) {
    for (int32_t i = 0; i < pairs; ++i) {
      const float cosine = cos_sin[2 * i];
      const float sine = cos_sin[2 * i + 1];
      const float a = x[2 * i];
      const float b = x[2 * i + 1];
      x[2 * i] = a * cosine - b * sine;
      x[2 * i + 1] = a * sine + b * cosine;
    }
  }
}

void rope_halves_scalar(float* x, int32_t heads, int32_t head_dim, int32_t pairs,
                        const float* cos_sin) {
  for (int32_t head = 0; head < heads; ++head, x += head_dim) {
    for (int32_t i = 0; i < pairs; ++i) {
      const float cosine = cos_sin[i];
      const float sine = cos_sin[pairs + i];
      const float a = x[i];
      const float b = x[pairs + i];
      x[i] = a * cosine - b * sine;
      x[pairs + i] = b * cosine + a * sine;
    }
  }
}

void silu_mul_scalar(const float* gate, const float* up, int32_t columns, float* out) {
  for (int32_t i = 0; i < columns; ++i) out[i] = gate[i] / (1.0F + exp_scalar(-gate[i])) * up[i];
}

void gelu_mul_scalar(const float* gate, const float* up, int32_t columns, float* out) {
  for (int32_t i = 0; i < columns; ++i) {
    const float x = gate[i];
    const float minus_2u = (x * x * x * gelu_constants::kCubic + x) * gelu_constants::kMinusTwoRoot;
    out[i] = x / (1.0F + exp_scalar(minus_2u)) * up[i];
  }
}

void add_scalar(const float* x, int32_t columns, float* in_out) {
  for (int32_t i = 0; i < columns; ++i) in_out[i] += x[i];
}

void add_scaled_scalar(const float* x, float factor, int32_t columns, float* in_out) {
  for (int32_t i = 0; i < columns; ++i) in_out[i] += x[i] * factor;
}

void scale_scalar(float factor, int32_t columns, float* in_out) {
  for (int32_t i = 0; i < columns; ++i) in_out[i] *= factor;
}

float soft_cap_one_scalar(float cap, float x) {
  const float power = exp_scalar(2.0F * (x / cap));
  return cap * (1.0F - 2.0F / (power + 1.0F));
}

void soft_cap_scalar(float cap, int32_t columns, float* in_out) {
  for (int32_t i = 0; i < columns; ++i) in_out[i] = soft_cap_one_scalar(cap, in_out[i]);
}

}  // namespace tandem::ops::cpu
