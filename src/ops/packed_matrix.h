// PackedMatrix: a weight matrix in the order the kernels read it, still in its own quantized
// format.
//
// Rows are taken in groups of 16 (one AVX-512 vector, two AVX2 vectors of float32), each group one
// contiguous region; missing rows of the last group are zeros. The order is the same for every
// instruction set:
//
//   F32, F16, BF16  [column][16]
//   others          chunks of one or two blocks: the blocks' scales, then the blocks' codes
//   (ChunkShape) Q8_0            scales d[16] f16; codes [8][16][4] as value + 128 Q4_0 scales
//   d[16] f16; codes [4][16][4]: low nibble column 4j+b, high nibble column 16+4j+b Q4_1 scales
//   d[16], m[16] f16; codes as Q4_0 Q6_K            scales d[16] f16, scale[16][16] int8; codes [16
//   sub-blocks]{low[8][16] bytes (columns j and j+8),
//                   high[4][16] bytes (columns j, j+4, j+8, j+12)}
//
// Four neighbouring columns of one row share a 32-bit lane: the order that vpdpbusd and vpmaddubsw
// want. Codes are unsigned for the same reason. Scales lie beside their codes so that one row's
// product reads the whole matrix as a single stream, and chunks are multiples of 64 bytes so that
// no vector load splits a cache line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "device/compute_threads.h"
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

// How a block format's chunk lies in memory: `blocks` times `scale_bytes`, then `blocks` times
// `code_bytes`, padded to `bytes`.
struct ChunkShape {
  size_t blocks;
  size_t scale_bytes;
  size_t code_bytes;
  size_t bytes;
};
constexpr ChunkShape chunk_shape(weights::Format format) {
  switch (format) {
    case weights::Format::kQ80:
      return {2, 32, 512, 1088};
    case weights::Format::kQ40:
      return {2, 32, 256, 576};
    case weights::Format::kQ41:
      return {2, 64, 256, 640};
    case weights::Format::kQ6K:
      return {1, 320, 3072, 3392};
    default:
      return {1, 0, 0, 0};
  }
}

// What a kernel sees of a packed matrix.
struct PackedView {
  weights::Format format = weights::Format::kF32;
  int32_t rows = 0;     // outputs
  int32_t columns = 0;  // inputs
  int32_t groups = 0;
  size_t group_bytes = 0;
  const std::byte* data = nullptr;

  const std::byte* group(int32_t index) const {
    return data + static_cast<size_t>(index) * group_bytes;
  }
};

class PackedMatrix {
 public:
  PackedMatrix() = default;
  // `data` holds rows * row_bytes(format, columns) bytes in file order. Packing is split over
  // `threads`. Error 500 "out_of_memory" when the memory cannot be had.
  static Result<PackedMatrix> pack(weights::Format format, int32_t rows, int32_t columns,
                                   std::span<const std::byte> data,
                                   device::ComputeThreads& threads);

  const PackedView& view() const { return view_; }
  size_t bytes() const { return view_.group_bytes * static_cast<size_t>(view_.groups); }

 private:
  PackedView view_;
  AlignedBytes storage_;
};

// Whether fast mode multiplies this format with int8 activations; the others use float32
// activations in both modes.
inline bool has_int8_kernel(weights::Format format) {
  return format == weights::Format::kQ80 || format == weights::Format::kQ40 ||
         format == weights::Format::kQ41;
}

}  // namespace tandem::ops
