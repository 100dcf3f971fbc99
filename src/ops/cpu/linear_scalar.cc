// The normative linear kernels: plain loops over 16 rows, which the compiler turns into baseline
// vector code.
//
// f32: one multiply and one add per weight and row, in column order, one accumulator per output.
// i8:  per 16 or 32 columns an exact integer dot product, then a multiply and an add in float32.
#include <algorithm>

#include "ops/cpu/decode_scalar.h"
#include "ops/cpu/scalar.h"

namespace tandem::ops::cpu {
namespace {

constexpr int kRows = 4;  // rows of activations per pass over a panel

// One tile of 32 columns: signed codes, [8][16 rows][4 columns], and scales by row.
struct DecodedTile {
  int subs;
  bool has_minimum;
  int16_t code[512];
  float scale[2][kGroupRows];
  float minimum[2][kGroupRows];

  DecodedTile(const PackedView& view, int32_t group, int32_t index)
      : DecodedTile(PackedTile(view, group, index)) {}
  explicit DecodedTile(const PackedTile& tile)
      : subs(tile.chunk.subs), has_minimum(tile.shape.has_minimum) {
    for (int j = 0; j < 8; ++j) decode_codes(tile, j);
    for (int sub = 0; sub < subs; ++sub) {
      for (int lane = 0; lane < kGroupRows; ++lane) {
        scale[sub][lane] = tile.scale(sub, lane);
        minimum[sub][lane] = tile.minimum(sub, lane);
      }
    }
  }

 private:
  void decode_codes(const PackedTile& tile, int j) {
    const int low_bits = tile.chunk.low_bits;
    const int high_bits = tile.chunk.high_bits;
    const auto* low = reinterpret_cast<const uint8_t*>(tile.codes) + (j % low_bits) * 64;
    const int low_shift = j / low_bits * low_bits;
    const int low_mask = (1 << low_bits) - 1;
    int16_t* out = code + static_cast<ptrdiff_t>(j) * 64;
    for (int i = 0; i < 64; ++i) out[i] = static_cast<int16_t>((low[i] >> low_shift) & low_mask);
    if (high_bits > 0) {
      const auto* high = reinterpret_cast<const uint8_t*>(tile.codes) + low_bits * 64 +
                         static_cast<ptrdiff_t>(j % high_bits) * 64;
      const int high_shift = j / high_bits * high_bits;
      const int high_mask = (1 << high_bits) - 1;
      for (int i = 0; i < 64; ++i) {
        out[i] = static_cast<int16_t>(out[i] | (((high[i] >> high_shift) & high_mask) << low_bits));
      }
    }
    if (tile.shape.table != nullptr) {
      for (int i = 0; i < 64; ++i) out[i] = static_cast<int16_t>(int{tile.shape.table[out[i]]});
    } else {
      for (int i = 0; i < 64; ++i) out[i] = static_cast<int16_t>(out[i] - tile.shape.zero);
    }
  }
};

// As float32, [column][16].
void decode_tile(const DecodedTile& tile, float* out) {
  for (int k = 0; k < 32; ++k, out += kGroupRows) {
    const int sub = k / (32 / tile.subs);
    const int16_t* code = tile.code + k / 4 * 64 + k % 4;
    for (int lane = 0; lane < kGroupRows; ++lane)
      out[lane] = tile.scale[sub][lane] * static_cast<float>(code[lane * 4]);
    if (!tile.has_minimum) continue;
    for (int lane = 0; lane < kGroupRows; ++lane) out[lane] += tile.minimum[sub][lane];
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
    default:
      for (int32_t k = 0; k < depth; k += 32)
        decode_tile(DecodedTile(view, group, (begin + k) / 32), panel + k * kGroupRows);
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

// Adds one tile's share to the sums of all 16 rows. Pairs of 16-bit products, the shape of the
// baseline's pmaddwd.
void add_tile(const DecodedTile& tile, const ActivationBlock& x, float* acc) {
  for (int sub = 0; sub < tile.subs; ++sub) {
    int32_t sums[kGroupRows] = {};
    const int count = 8 / tile.subs;
    for (int j = sub * count; j < (sub + 1) * count; ++j) {
      const int8_t* q = x.q + static_cast<ptrdiff_t>(4) * j;
      for (int lane = 0; lane < kGroupRows; ++lane) {
        const int16_t* c = tile.code + j * 64 + 4 * lane;
        sums[lane] += c[0] * q[0] + c[1] * q[1] + c[2] * q[2] + c[3] * q[3];
      }
    }
    const float q_sum =
        tile.subs == 1 ? x.d_times_sum : x.d * static_cast<float>(-x.minus_half[sub]);
    for (int lane = 0; lane < kGroupRows; ++lane) {
      acc[lane] += (tile.scale[sub][lane] * x.d) * static_cast<float>(sums[lane]);
      if (tile.has_minimum) acc[lane] += tile.minimum[sub][lane] * q_sum;
    }
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
  alignas(64) float sums[kRowBlock * kGroupRows];
  const int32_t tiles = p.weights.columns / 32;
  for (int32_t group = p.group_begin; group < p.group_end; ++group) {
    const int32_t valid = std::min(kGroupRows, p.weights.rows - group * kGroupRows);
    for (int32_t row = 0; row < p.rows; row += kRowBlock) {
      const int32_t rows = std::min(kRowBlock, p.rows - row);
      std::fill_n(sums, rows * kGroupRows, 0.0F);
      for (int32_t tile = 0; tile < tiles; ++tile) {
        const DecodedTile decoded(p.weights, group, tile);
        for (int32_t m = 0; m < rows; ++m)
          add_tile(decoded, p.x[(row + m) * p.stride_x + tile], sums + m * kGroupRows);
      }
      store_block(sums, rows, valid, p.out + row * p.stride_out + group * kGroupRows, p.stride_out);
    }
  }
}

}  // namespace tandem::ops::cpu
