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

// The 16 rows' f16 scales at `scales`, widened once per block.
struct Scales {
  float value[kGroupRows];
  explicit Scales(const std::byte* scales) {
    for (int lane = 0; lane < kGroupRows; ++lane) value[lane] = packed_f16(scales, lane);
  }
};

void decode_block32(weights::Format format, const PackedBlock& block, float* out) {
  const Scales d(block.scales);
  const bool bytes = format == weights::Format::kQ80;
  const int zero = bytes ? 128 : format == weights::Format::kQ40 ? 8 : 0;
  for (int k = 0; k < 32; ++k, out += kGroupRows) {
    for (int lane = 0; lane < kGroupRows; ++lane) {
      const int code =
          bytes ? packed_byte_code(block, k, lane) : packed_nibble_code(block, k, lane);
      out[lane] = d.value[lane] * static_cast<float>(code - zero);
    }
  }
  if (format != weights::Format::kQ41) return;
  const Scales m(block.scales + 2 * kGroupRows);
  out -= 32 * kGroupRows;
  for (int i = 0; i < 32 * kGroupRows; ++i) out[i] += m.value[i % kGroupRows];
}

void decode_block256(const PackedBlock& block, int32_t depth, float* out) {
  const Scales d(block.scales);
  for (int32_t k = 0; k < depth; ++k, out += kGroupRows) {
    for (int lane = 0; lane < kGroupRows; ++lane) {
      const auto sub = packed_load<int8_t>(block.scales, 32 + k / 16 * 16 + lane);
      out[lane] = d.value[lane] * static_cast<float>(sub) *
                  static_cast<float>(packed_q6k_code(block, k, lane) - 32);
    }
  }
}

// Float32 weights of columns [begin, begin + depth) of one group, as [column][16]; begin is a
// multiple of kPanelDepth.
const float* decode_panel(const PackedView& view, int32_t group, int32_t begin, int32_t depth,
                          float* panel) {
  const size_t plain = static_cast<size_t>(begin) * kGroupRows;
  const int32_t values = depth * kGroupRows;
  switch (view.format) {
    case weights::Format::kF32:
      return reinterpret_cast<const float*>(view.group(group)) + plain;
    case weights::Format::kF16:
      for (int32_t i = 0; i < values; ++i) panel[i] = packed_f16(view.group(group), plain + i);
      break;
    case weights::Format::kBF16:
      for (int32_t i = 0; i < values; ++i) {
        panel[i] = numerics::bf16_to_f32(packed_load<uint16_t>(view.group(group), plain + i));
      }
      break;
    case weights::Format::kQ80:
    case weights::Format::kQ40:
    case weights::Format::kQ41:
      for (int32_t k = 0; k < depth; k += 32) {
        decode_block32(view.format, packed_block(view, group, (begin + k) / 32),
                       panel + k * kGroupRows);
      }
      break;
    case weights::Format::kQ6K:
      decode_block256(packed_block(view, group, begin / 256), depth, panel);
      break;
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

// Adds one block's share to the sums of all 16 rows. Pairs of 16-bit products, the shape of the
// baseline's pmaddwd.
void add_block(weights::Format format, const PackedBlock& block, const ActivationBlock& x,
               float* acc) {
  int32_t sums[kGroupRows] = {};
  for (int j = 0; j < 8; ++j) {
    const bool bytes = format == weights::Format::kQ80;
    const auto* packed = reinterpret_cast<const uint8_t*>(block.codes) + (bytes ? j : j % 4) * 64;
    int16_t codes[64];
    for (int i = 0; i < 64; ++i) {
      codes[i] = static_cast<int16_t>(bytes ? packed[i] : j < 4 ? packed[i] & 15 : packed[i] >> 4);
    }
    const int8_t* q = x.q + 4 * j;
    for (int lane = 0; lane < kGroupRows; ++lane) {
      const int16_t* c = codes + 4 * lane;
      sums[lane] += c[0] * q[0] + c[1] * q[1] + c[2] * q[2] + c[3] * q[3];
    }
  }
  const int32_t zero_share = format == weights::Format::kQ80   ? x.minus_128_sum
                             : format == weights::Format::kQ40 ? x.minus_8_sum
                                                               : 0;
  for (int lane = 0; lane < kGroupRows; ++lane) {
    acc[lane] +=
        (packed_f16(block.scales, lane) * x.d) * static_cast<float>(sums[lane] + zero_share);
    if (format == weights::Format::kQ41)
      acc[lane] += packed_f16(block.scales, 16 + lane) * x.d_times_sum;
  }
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
      float acc[kGroupRows] = {};
      for (size_t block = 0; block < blocks; ++block) {
        add_block(p.weights.format, packed_block(p.weights, group, block),
                  p.x[row * p.stride_x + block], acc);
      }
      store_block(acc, 1, valid, p.out + row * p.stride_out + group * kGroupRows, p.stride_out);
    }
  }
}

}  // namespace tandem::ops::cpu
