// The normative linear kernels: plain loops over 16 rows, which the compiler turns into baseline
// vector code.
//
// f32: one multiply and one add per weight and row, in column order, one accumulator per output.
// i8:  per block of 32 an exact integer dot product, then one multiply-add in float32.
#include <algorithm>

#include "ops/cpu/decode_scalar.h"
#include "ops/cpu/scalar.h"

namespace tandem::ops::cpu {
namespace {

constexpr int kRows = 4;  // rows of activations per pass over a panel

// Float32 weights of columns [begin, begin + depth) of one group, as [column][16].
const float* decode_panel(const PackedView& view, int32_t group, int32_t begin, int32_t depth,
                          float* panel) {
  if (view.format == weights::Format::kF32) {
    return reinterpret_cast<const float*>(view.group(group) + view.code_offset) +
           static_cast<size_t>(begin) * 16;
  }
  for (int32_t k = 0; k < depth; ++k) {
    for (int lane = 0; lane < kGroupRows; ++lane)
      panel[k * 16 + lane] = packed_weight(view, group, lane, begin + k);
  }
  return panel;
}

template <int kCount>
void multiply(const float* panel, int32_t depth, const float* x, size_t stride_x, float* sums) {
  float acc[kCount][kGroupRows];
  for (int m = 0; m < kCount; ++m) {
    for (int lane = 0; lane < kGroupRows; ++lane) acc[m][lane] = sums[m * kGroupRows + lane];
  }
  for (int32_t k = 0; k < depth; ++k) {
    for (int m = 0; m < kCount; ++m) {
      const float value = x[m * stride_x + k];
      for (int lane = 0; lane < kGroupRows; ++lane)
        acc[m][lane] += panel[k * kGroupRows + lane] * value;
    }
  }
  for (int m = 0; m < kCount; ++m) {
    for (int lane = 0; lane < kGroupRows; ++lane) sums[m * kGroupRows + lane] = acc[m][lane];
  }
}

void store_block(const float* sums, int32_t rows, int32_t valid, float* out, size_t stride_out) {
  for (int32_t m = 0; m < rows; ++m)
    std::copy_n(sums + m * kGroupRows, valid, out + m * stride_out);
}

float block_dot(const PackedView& view, int32_t group, size_t block, int lane,
                const ActivationBlock& x, float acc) {
  const std::byte* scales = view.group(group);
  const std::byte* codes = scales + view.code_offset;
  int32_t sum = 0;
  for (int k = 0; k < 32; ++k) sum += packed_code32(view.format, codes, block, k, lane) * x.q[k];
  if (view.format == weights::Format::kQ4_1) {
    acc += (packed_f16(scales, block * 32 + lane) * x.d) * static_cast<float>(sum);
    return acc + packed_f16(scales, block * 32 + 16 + lane) * x.d_times_sum;
  }
  sum += view.format == weights::Format::kQ8_0 ? x.minus_128_sum : x.minus_8_sum;
  return acc + (packed_f16(scales, block * 16 + lane) * x.d) * static_cast<float>(sum);
}

}  // namespace

void linear_f32_scalar(const LinearF32& p) {
  alignas(64) float sums[kRowBlock * kGroupRows];
  for (int32_t group = p.group_begin; group < p.group_end; ++group) {
    const int32_t valid = std::min(kGroupRows, p.weights.rows - group * kGroupRows);
    for (int32_t row = 0; row < p.rows; row += kRowBlock) {
      const int32_t rows = std::min(kRowBlock, p.rows - row);
      std::fill_n(sums, rows * kGroupRows, 0.0F);
      for (int32_t k = 0; k < p.weights.columns; k += kPanelDepth) {
        const int32_t depth = std::min(kPanelDepth, p.weights.columns - k);
        const float* panel = decode_panel(p.weights, group, k, depth, p.panel);
        const float* x = p.x + row * p.stride_x + k;
        int32_t m = 0;
        for (; m + kRows <= rows; m += kRows) {
          multiply<kRows>(panel, depth, x + m * p.stride_x, p.stride_x, sums + m * kGroupRows);
        }
        for (; m < rows; ++m)
          multiply<1>(panel, depth, x + m * p.stride_x, p.stride_x, sums + m * kGroupRows);
      }
      store_block(sums, rows, valid, p.out + row * p.stride_out + group * kGroupRows, p.stride_out);
    }
  }
}

void linear_i8_scalar(const LinearI8& p) {
  const auto blocks = static_cast<size_t>(p.weights.columns / 32);
  for (int32_t group = p.group_begin; group < p.group_end; ++group) {
    const int32_t valid = std::min(kGroupRows, p.weights.rows - group * kGroupRows);
    for (int32_t row = 0; row < p.rows; ++row) {
      for (int lane = 0; lane < valid; ++lane) {
        float acc = 0;
        for (size_t block = 0; block < blocks; ++block) {
          acc = block_dot(p.weights, group, block, lane, p.x[row * p.stride_x + block], acc);
        }
        p.out[row * p.stride_out + group * kGroupRows + lane] = acc;
      }
    }
  }
}

}  // namespace tandem::ops::cpu
