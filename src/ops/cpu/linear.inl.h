// linear with float32 activations, any weight format: decode a panel of 256 columns by 16 rows to
// float32 in L1, once per 64 rows of activations, and multiply it with fma_tile. The weights in
// memory stay quantized.
//
// Per weight and row one fused multiply-add. The bound is the multiply-add rate for many rows,
// memory for one. Included after the simd header.
#pragma once

#include "ops/cpu/fma_tile.inl.h"
#include "ops/cpu/kernels.h"

namespace tandem::ops::cpu {
namespace {

inline const std::byte* group_data(const PackedView& view, int32_t group) {
  return view.data + static_cast<size_t>(group) * view.group_bytes;
}

template <weights::Format kFormat>
inline const uint16_t* block_scales(const std::byte* group, size_t block) {
  constexpr ChunkShape kShape = chunk_shape(kFormat);
  const std::byte* chunk = group + block / kShape.blocks * kShape.bytes;
  return reinterpret_cast<const uint16_t*>(chunk + block % kShape.blocks * kShape.scale_bytes);
}
template <weights::Format kFormat>
inline const std::byte* block_codes(const std::byte* group, size_t block) {
  constexpr ChunkShape kShape = chunk_shape(kFormat);
  const std::byte* chunk = group + block / kShape.blocks * kShape.bytes;
  return chunk + kShape.blocks * kShape.scale_bytes + block % kShape.blocks * kShape.code_bytes;
}

// Decodes one block of 32 columns whose codes are bytes, [8][16][4]: value = d * (code - 128).
inline void decode_q8_0(const uint16_t* scales, const std::byte* codes, float* out) {
  const Vec d = load_f16(scales);
  const IntVec low_byte = splat_i32(255);
  const IntVec zero_point = splat_i32(-128);
  for (int j = 0; j < 8; ++j) {
    const IntVec four = load_i32(codes + j * 64);
    for (int b = 0; b < 4; ++b) {
      const IntVec code = add_i32(bit_and(shift_right(four, 8 * b), low_byte), zero_point);
      store(out + (4 * j + b) * 16, mul(d, to_float(code)));
    }
  }
}

// One block of 32 columns of nibbles, [4][16][4]: value = d * (code - zero) + m, where either zero
// or m is 0.
template <bool kHasMinimum>
inline void decode_q4(const uint16_t* scales, const std::byte* codes, float* out) {
  const Vec d = load_f16(scales);
  const Vec m = kHasMinimum ? load_f16(scales + 16) : zero();
  const IntVec nibble = splat_i32(15);
  const IntVec zero_point = splat_i32(kHasMinimum ? 0 : -8);
  for (int j = 0; j < 4; ++j) {
    const IntVec four = load_i32(codes + j * 64);
    for (int b = 0; b < 4; ++b) {
      const Vec low = to_float(add_i32(bit_and(shift_right(four, 8 * b), nibble), zero_point));
      const Vec high = to_float(add_i32(bit_and(shift_right(four, 8 * b + 4), nibble), zero_point));
      // d * code is exact in float32, so adding m rounds once, as the normative decoder does.
      store(out + (4 * j + b) * 16, kHasMinimum ? add(mul(d, low), m) : mul(d, low));
      store(out + (16 + 4 * j + b) * 16, kHasMinimum ? add(mul(d, high), m) : mul(d, high));
    }
  }
}

// One sub-block of 16 columns of Q6_K: value = (d * scale) * (code - 32).
inline void decode_q6_k(Vec d, const std::byte* scale, const std::byte* codes, float* out) {
  const Vec s = mul(d, to_float(widen_i8(scale)));
  const IntVec nibble = splat_i32(15);
  const IntVec two_bits = splat_i32(3);
  const IntVec zero_point = splat_i32(-32);
  for (int k = 0; k < 16; ++k) {
    const IntVec low = bit_and(shift_right(widen_u8(codes + (k % 8) * 16), k / 8 * 4), nibble);
    const IntVec high =
        bit_and(shift_right(widen_u8(codes + 128 + (k % 4) * 16), k / 4 * 2), two_bits);
    const IntVec code = add_i32(bit_or(low, shift_left(high, 4)), zero_point);
    store(out + k * 16, mul(s, to_float(code)));
  }
}

// Columns [begin, begin + depth) of one group as float32 [column][16]; begin is a multiple of
// kPanelDepth.
inline void decode_panel(const PackedView& view, const std::byte* group, int32_t begin,
                         int32_t depth, float* panel) {
  using weights::Format;
  const size_t plain = static_cast<size_t>(begin) * 16;
  const auto first_block = static_cast<size_t>(begin) / 32;
  const auto blocks = static_cast<size_t>(depth) / 32;
  switch (view.format) {
    case Format::kF32:
      break;  // already a panel
    case Format::kF16:
      for (int32_t k = 0; k < depth; ++k) {
        store(panel + k * 16, load_f16(reinterpret_cast<const uint16_t*>(group) + plain + k * 16));
      }
      break;
    case Format::kBF16:
      for (int32_t k = 0; k < depth; ++k) {
        store(panel + k * 16, load_bf16(reinterpret_cast<const uint16_t*>(group) + plain + k * 16));
      }
      break;
    case Format::kQ80:
      for (size_t i = 0; i < blocks; ++i) {
        decode_q8_0(block_scales<Format::kQ80>(group, first_block + i),
                    block_codes<Format::kQ80>(group, first_block + i), panel + i * 512);
      }
      break;
    case Format::kQ40:
      for (size_t i = 0; i < blocks; ++i) {
        decode_q4<false>(block_scales<Format::kQ40>(group, first_block + i),
                         block_codes<Format::kQ40>(group, first_block + i), panel + i * 512);
      }
      break;
    case Format::kQ41:
      for (size_t i = 0; i < blocks; ++i) {
        decode_q4<true>(block_scales<Format::kQ41>(group, first_block + i),
                        block_codes<Format::kQ41>(group, first_block + i), panel + i * 512);
      }
      break;
    case Format::kQ6K: {
      const size_t block = static_cast<size_t>(begin) / 256;
      const uint16_t* scales = block_scales<Format::kQ6K>(group, block);
      const std::byte* codes = block_codes<Format::kQ6K>(group, block);
      const auto* sub_scales = reinterpret_cast<const std::byte*>(scales + 16);
      const Vec d = load_f16(scales);
      for (int32_t k = 0; k < depth; k += 16) {
        decode_q6_k(d, sub_scales + k, codes + static_cast<size_t>(k / 16) * 192, panel + k * 16);
      }
      break;
    }
  }
}

// Up to this many rows a widened panel would not be used often enough to pay for itself.
constexpr int32_t kDirectRows = 8;

// sums[m][16] += the product over columns [begin, begin + depth).
inline void multiply_columns(const LinearF32& p, const std::byte* group, int32_t begin,
                             int32_t depth, const float* x, int32_t rows, float* sums) {
  const std::byte* codes = group;
  const size_t first = static_cast<size_t>(begin) * 16;
  if (p.weights.format == weights::Format::kF32) {
    fma_rows(LoadF32{reinterpret_cast<const float*>(codes) + first, 16}, depth, x, p.stride_x, rows,
             sums, 16);
  } else if (p.weights.format == weights::Format::kF16 && rows <= kDirectRows) {
    fma_rows(LoadF16{reinterpret_cast<const uint16_t*>(codes) + first, 16}, depth, x, p.stride_x,
             rows, sums, 16);
  } else if (p.weights.format == weights::Format::kBF16 && rows <= kDirectRows) {
    fma_rows(LoadBF16{reinterpret_cast<const uint16_t*>(codes) + first, 16}, depth, x, p.stride_x,
             rows, sums, 16);
  } else {
    decode_panel(p.weights, group, begin, depth, p.panel);
    fma_rows(LoadF32{p.panel, 16}, depth, x, p.stride_x, rows, sums, 16);
  }
}

inline void copy_sums(const float* sums, int32_t rows, int32_t valid, float* out,
                      size_t stride_out) {
  for (int32_t m = 0; m < rows; ++m) {
    if (valid == kGroupRows) {
      store(out + m * stride_out, load(sums + m * kGroupRows));
    } else {
      for (int32_t lane = 0; lane < valid; ++lane)
        out[m * stride_out + lane] = sums[m * kGroupRows + lane];
    }
  }
}

inline void linear_f32(const LinearF32& p) {
  alignas(64) float sums[kRowBlock * kGroupRows];
  for (int32_t group = p.group_begin; group < p.group_end; ++group) {
    const std::byte* data = group_data(p.weights, group);
    const int32_t left = p.weights.rows - group * kGroupRows;
    const int32_t valid = left < kGroupRows ? left : kGroupRows;
    for (int32_t row = 0; row < p.rows; row += kRowBlock) {
      const int32_t rows = p.rows - row < kRowBlock ? p.rows - row : kRowBlock;
      for (int32_t m = 0; m < rows; ++m) store(sums + m * kGroupRows, zero());
      for (int32_t k = 0; k < p.weights.columns; k += kPanelDepth) {
        const int32_t depth =
            p.weights.columns - k < kPanelDepth ? p.weights.columns - k : kPanelDepth;
        multiply_columns(p, data, k, depth, p.x + row * p.stride_x + k, rows, sums);
      }
      copy_sums(sums, rows, valid, p.out + row * p.stride_out + group * kGroupRows, p.stride_out);
    }
  }
}

}  // namespace
}  // namespace tandem::ops::cpu
