// PackedMatrix: a weight matrix in the order the kernels read it, still in its own quantized
// format.
//
// Rows are taken in groups of 16 (one AVX-512 vector, two AVX2 vectors of float32), each group one
// contiguous region; missing rows of the last group are zeros. The order is the same for every
// instruction set. F32, F16 and BF16 are [column][16], or, rounded to
// BF16 for products of pairs, [column pair][16][2] with a zero after an odd last column. Quantized
// formats are chunks of 64 or 256 columns (two blocks of 32, or one of 256): a header of scales,
// then one tile of codes for every 32 columns.
//
//   header  blocks of 32: for each of the two tiles d[16] (f16; MXFP4: bf16) and, if the format has
//           one, m[16]. Blocks of 256: d[16], m[16], then for every sub-block a byte per row of its
//           integer scale (int8) and then of its minimum (uint8); Q2_K has both in one byte, the
//           scale in the low nibble. Padded to 64 bytes.
//   tile    512 codes of `bits` bits as planes. A code vector is 64 bytes, [16 rows][4]: columns 4j
//           to 4j+3, j = 0..7. The low plane has 8, 4 or 2 bits of each code (8 for 8, 4 for 4, 5
//           and 6, 2 for 2 and 3): its vector i holds at bit position `low_bits` * n the code
//           vector i + n * (number of vectors in the plane). The high plane holds the remaining one
//           or two bits in the same manner.
//
// Four neighbouring columns of one row share a 32-bit lane: the order that vpdpbusd and vpmaddubsw
// want. Codes are unsigned for the same reason. Scales lie beside their codes so that one row's
// product reads the whole matrix as a single stream, and everything is a multiple of 64 bytes so
// that no vector load splits a cache line.
//
// Bits per weight, packed (file): Q8_0 8.5 (8.5), Q4_0 4.5 (4.5), Q4_1 5 (5), Q5_0 5.5 (5.5), Q5_1
// 6 (6), Q2_K 2.625 (2.625), Q3_K 3.625 (3.4375), Q4_K 4.625 (4.5), Q5_K 5.625 (5.5), Q6_K 6.625
// (6.5625), IQ4_NL 4.5 (4.5), IQ4_XS 4.375 (4.25), MXFP4 4.5 (4.25).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "device/compute_threads.h"
#include "ops/weight_arena.h"
#include "weights/format.h"

namespace tandem::ops {

inline constexpr int32_t kGroupRows = 16;

// Zero-filled memory aligned for huge pages; freed by its deleter.
struct FreeAligned {
  void operator()(std::byte* data) const;
};
using AlignedBytes = std::unique_ptr<std::byte[], FreeAligned>;
// Null when the memory cannot be had.
AlignedBytes allocate_aligned(size_t bytes);

// How a quantized format's chunk lies in memory.
struct ChunkShape {
  int32_t tiles = 0;  // of 32 columns
  int32_t subs = 0;   // scales per tile: 1 or 2
  int32_t low_bits = 0;
  int32_t high_bits = 0;
  size_t minimum_offset = 0;      // of m[16] from d[16]
  size_t sub_scale_offset = 0;    // of the sub-blocks' scales; [tile * subs + sub][16] bytes
  size_t sub_minimum_offset = 0;  // of their minimums; the same as above when nibbles share bytes
  size_t header_bytes = 0;
  size_t tile_bytes = 0;
  size_t bytes = 0;
};
constexpr ChunkShape chunk_shape(weights::Format format) {
  const weights::FormatShape shape = weights::format_shape(format);
  ChunkShape chunk;
  if (!shape.quantized()) return chunk;
  chunk.tiles = shape.has_sub_scales() ? 8 : 2;
  chunk.subs = shape.sub_values == 16 ? 2 : 1;
  chunk.low_bits = shape.bits == 8 ? 8 : shape.bits >= 4 ? 4 : 2;
  chunk.high_bits = shape.bits - chunk.low_bits;
  chunk.tile_bytes = static_cast<size_t>(64) * static_cast<size_t>(shape.bits);
  chunk.minimum_offset = 32;
  const size_t scales = shape.has_minimum ? 64 : 32;
  if (!shape.has_sub_scales()) {
    chunk.header_bytes = 2 * scales;
  } else {
    const size_t subs = static_cast<size_t>(chunk.tiles) * static_cast<size_t>(chunk.subs) * 16;
    const bool nibbles = shape.has_minimum && shape.sub_scale_high < 16;
    chunk.sub_scale_offset = scales;
    chunk.sub_minimum_offset = nibbles ? scales : scales + subs;
    const size_t end = scales + (shape.has_minimum && !nibbles ? 2 * subs : subs);
    chunk.header_bytes = (end + 63) / 64 * 64;
  }
  chunk.bytes = chunk.header_bytes + static_cast<size_t>(chunk.tiles) * chunk.tile_bytes;
  return chunk;
}

// What a kernel sees of a packed matrix.
struct PackedView {
  weights::Format format = weights::Format::kF32;
  int32_t rows = 0;     // outputs
  int32_t columns = 0;  // inputs
  int32_t groups = 0;
  size_t group_bytes = 0;
  bool pairs = false;  // BF16 in pairs of columns; `format` is kBF16
  const std::byte* data = nullptr;

  const std::byte* group(int32_t index) const {
    return data + static_cast<size_t>(index) * group_bytes;
  }
  // Groups [begin, end) as a matrix of their own.
  PackedView slice(int32_t begin, int32_t end) const {
    PackedView part = *this;
    part.rows = std::min(rows, end * kGroupRows) - begin * kGroupRows;
    part.groups = end - begin;
    part.data = group(begin);
    return part;
  }
};

// Which formats are rounded to BF16 and packed in pairs, for Kernels::linear_bf16.
enum class Pairs : uint8_t { kNone, kF16AndBf16, kAll };
inline bool packed_in_pairs(weights::Format format, Pairs pairs) {
  const bool wide = format == weights::Format::kF16 || format == weights::Format::kBF16;
  return pairs == Pairs::kAll || (pairs == Pairs::kF16AndBf16 && wide);
}

class PackedMatrix {
 public:
  PackedMatrix() = default;
  // `data` holds rows * row_bytes(format, columns) bytes in file order. Packing is split over
  // `threads`. Its memory is `arena`'s, which has to outlive it, or its own when that is null.
  // Error 500 "out_of_memory" when the memory cannot be had.
  static Result<PackedMatrix> pack(weights::Format format, int32_t rows, int32_t columns,
                                   std::span<const std::byte> data, device::ComputeThreads& threads,
                                   WeightArena* arena = nullptr, Pairs pairs = Pairs::kNone);

  const PackedView& view() const { return view_; }
  size_t bytes() const { return view_.group_bytes * static_cast<size_t>(view_.groups); }

 private:
  PackedView view_;
  AlignedBytes storage_;
};

// Whether fast mode multiplies this format with int8 activations.
inline bool has_int8_kernel(weights::Format format) {
  return weights::format_shape(format).quantized();
}

}  // namespace tandem::ops
