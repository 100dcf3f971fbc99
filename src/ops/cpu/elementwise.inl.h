// Row-wise kernels over sixteen lanes. Included after the simd header.
#pragma once

#include "ops/cpu/exp_constants.h"
#include "ops/cpu/kernels.h"

namespace tandem::ops::cpu {
namespace {

inline Vec exp_vec(Vec x) {
  namespace c = exp_constants;
  const Vec bounded = max(splat(c::kLowest), min(splat(c::kHighest), x));  // this order keeps NaN
  const Vec n = round_nearest(mul(bounded, splat(c::kLog2E)));
  const Vec r = fnma(n, splat(c::kLn2Low), fnma(n, splat(c::kLn2High), bounded));
  Vec p = fma(splat(c::kC6), r, splat(c::kC5));
  p = fma(p, r, splat(c::kC4));
  p = fma(p, r, splat(c::kC3));
  p = fma(p, r, splat(c::kC2));
  p = fma(p, r, splat(1.0F));
  p = fma(p, r, splat(1.0F));
  return keep_at_least(scale_by_power(p, n), x, splat(c::kLowest));
}

inline float exp_one(float x) {
  alignas(64) float lanes[16];
  store(lanes, exp_vec(splat(x)));
  return lanes[0];
}

inline void quantize_row(const float* x, int32_t columns, ActivationBlock* out) {
  const IntVec magnitude = splat_i32(0x7FFFFFFF);
  for (int32_t block = 0; block < columns / 32; ++block, x += 32, ++out) {
    const Vec a = load(x);
    const Vec b = load(x + 16);
    // Magnitudes compare as integers, and there NaN is largest, so it cannot hide.
    const int32_t peak_bits =
        max_lanes(max_i32(bit_and(bits_of(a), magnitude), bit_and(bits_of(b), magnitude)));
    const bool finite = peak_bits < 0x7F800000;
    const float peak = finite ? __builtin_bit_cast(float, peak_bits) : 0.0F;
    const float scale = peak > 0x1p-120F ? 127.0F / peak : 0.0F;
    IntVec qa = splat_i32(0);
    IntVec qb = splat_i32(0);
    if (finite) {
      qa = to_int(mul(a, splat(scale)));
      qb = to_int(mul(b, splat(scale)));
    }
    store_i8(out->q, qa);
    store_i8(out->q + 16, qb);
    const int32_t low = sum_lanes(qa);
    const int32_t high = sum_lanes(qb);
    out->d = finite ? peak * (1.0F / 127.0F) : __builtin_nanf("");
    out->d_times_sum = out->d * static_cast<float>(low + high);
    out->minus_8_sum = -8 * (low + high);
    out->minus_half[0] = static_cast<int16_t>(-low);
    out->minus_half[1] = static_cast<int16_t>(-high);
  }
}

inline void rms_norm(const float* x, const float* weight, int32_t columns, float epsilon,
                     float* out) {
  Vec squares = zero();
  int32_t i = 0;
  for (; i + 16 <= columns; i += 16) squares = fma(load(x + i), load(x + i), squares);
  if (i < columns) {
    const Vec tail = load_partial(x + i, columns - i);
    squares = fma(tail, tail, squares);
  }
  const float mean = sum_lanes(squares) / static_cast<float>(columns);
  const float scale = 1.0F / __builtin_sqrtf(mean + epsilon);
  const Vec wide = splat(scale);
  for (i = 0; i + 16 <= columns; i += 16)
    store(out + i, mul(mul(load(x + i), wide), load(weight + i)));
  for (; i < columns; ++i) out[i] = x[i] * scale * weight[i];
}

inline void rope(float* x, int32_t heads, int32_t head_dim, int32_t pairs, const float* cos_sin) {
  for (int32_t head = 0; head < heads; ++head, x += head_dim) {
    int32_t i = 0;
    for (; i + 8 <= pairs; i += 8)
      store(x + 2 * i, rotate_pairs(load(x + 2 * i), load(cos_sin + 2 * i)));
    for (; i < pairs; ++i) {
      const float a = x[2 * i];
      const float b = x[2 * i + 1];
      x[2 * i] = a * cos_sin[2 * i] - b * cos_sin[2 * i + 1];
      x[2 * i + 1] = a * cos_sin[2 * i + 1] + b * cos_sin[2 * i];
    }
  }
}

inline void rope_halves(float* x, int32_t heads, int32_t head_dim, int32_t pairs,
                        const float* cos_sin) {
  for (int32_t head = 0; head < heads; ++head, x += head_dim) {
    int32_t i = 0;
    for (; i + 16 <= pairs; i += 16) {
      const Vec a = load(x + i);
      const Vec b = load(x + pairs + i);
      const Vec cosine = load(cos_sin + i);
      const Vec sine = load(cos_sin + pairs + i);
      store(x + i, sub(mul(a, cosine), mul(b, sine)));
      store(x + pairs + i, add(mul(b, cosine), mul(a, sine)));
    }
    for (; i < pairs; ++i) {
      const float a = x[i];
      const float b = x[pairs + i];
      x[i] = a * cos_sin[i] - b * cos_sin[pairs + i];
      x[pairs + i] = b * cos_sin[i] + a * cos_sin[pairs + i];
    }
  }
}

// tanh(x) = 1 - 2 / (exp(2x) + 1): within 2e-7 of the true value.
inline Vec tanh_vec(Vec x) {
  return sub(splat(1.0F), div(splat(2.0F), add(exp_vec(add(x, x)), splat(1.0F))));
}

// Applies `function` to every value of a row; the tail goes through a padded vector.
template <typename Function>
inline void map_row(int32_t columns, float* in_out, Function function) {
  int32_t i = 0;
  for (; i + 16 <= columns; i += 16) store(in_out + i, function(load(in_out + i)));
  if (i < columns) {
    alignas(64) float lanes[16];
    store(lanes, function(load_partial(in_out + i, columns - i)));
    for (int32_t j = i; j < columns; ++j) in_out[j] = lanes[j - i];
  }
}

inline void soft_cap(float cap, int32_t columns, float* in_out) {
  map_row(columns, in_out, [cap](Vec x) { return mul(splat(cap), tanh_vec(div(x, splat(cap)))); });
}

inline void scale_row(float factor, int32_t columns, float* in_out) {
  map_row(columns, in_out, [factor](Vec x) { return mul(x, splat(factor)); });
}

inline Vec silu(Vec gate) { return div(gate, add(splat(1.0F), exp_vec(sub(zero(), gate)))); }

// x * (1 + tanh(u)) / 2 = x / (1 + exp(-2u)) with u = sqrt(2 / pi) * (x + 0.044715 x^3).
inline Vec gelu(Vec x) {
  const Vec cubic = mul(mul(x, x), x);
  const Vec minus_2u =
      mul(fma(cubic, splat(gelu_constants::kCubic), x), splat(gelu_constants::kMinusTwoRoot));
  return div(x, add(splat(1.0F), exp_vec(minus_2u)));
}

template <typename Activation>
inline void activate_mul(const float* gate, const float* up, int32_t columns, float* out,
                         Activation activation) {
  int32_t i = 0;
  for (; i + 16 <= columns; i += 16) store(out + i, mul(activation(load(gate + i)), load(up + i)));
  if (i < columns) {
    alignas(64) float lanes[16];
    store(lanes,
          mul(activation(load_partial(gate + i, columns - i)), load_partial(up + i, columns - i)));
    for (int32_t j = i; j < columns; ++j) out[j] = lanes[j - i];
  }
}

inline void silu_mul(const float* gate, const float* up, int32_t columns, float* out) {
  activate_mul(gate, up, columns, out, [](Vec x) { return silu(x); });
}

inline void gelu_mul(const float* gate, const float* up, int32_t columns, float* out) {
  activate_mul(gate, up, columns, out, [](Vec x) { return gelu(x); });
}

inline void add_scaled(const float* x, float factor, int32_t columns, float* in_out) {
  int32_t i = 0;
  for (; i + 16 <= columns; i += 16)
    store(in_out + i, fma(load(x + i), splat(factor), load(in_out + i)));
  if (i < columns) {
    alignas(64) float lanes[16];
    store(lanes, fma(load_partial(x + i, columns - i), splat(factor),
                     load_partial(in_out + i, columns - i)));
    for (int32_t j = i; j < columns; ++j) in_out[j] = lanes[j - i];
  }
}

inline void add_rows(const float* x, int32_t columns, float* in_out) {
  int32_t i = 0;
  for (; i + 16 <= columns; i += 16) store(in_out + i, add(load(in_out + i), load(x + i)));
  for (; i < columns; ++i) in_out[i] += x[i];
}

}  // namespace
}  // namespace tandem::ops::cpu
