#include "ops/packed_matrix.h"

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <cstring>
#include <new>

#include <sys/mman.h>

#include "numerics/float_formats.h"

namespace tandem::ops {
namespace {

using weights::Format;
using weights::FormatShape;
using weights::UnpackedBlock;

constexpr size_t kHugePage = size_t{2} << 20;

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

size_t group_bytes(Format format, int32_t columns, bool pairs) {
  if (pairs) return (static_cast<size_t>(columns) + 1) / 2 * 64;
  if (!weights::format_shape(format).quantized()) {
    return round_up(static_cast<size_t>(columns) * kGroupRows *
                        static_cast<size_t>(weights::block_bytes(format)),
                    64);
  }
  const ChunkShape shape = chunk_shape(format);
  const auto tiles = static_cast<size_t>(columns) / 32;
  const auto per_chunk = static_cast<size_t>(shape.tiles);
  return (tiles + per_chunk - 1) / per_chunk * shape.bytes;
}

template <typename Element>
void pack_plain(const std::byte* row, int32_t columns, int lane, std::byte* codes) {
  for (int32_t k = 0; k < columns; ++k) {
    std::memcpy(codes + (static_cast<size_t>(k) * kGroupRows + lane) * sizeof(Element),
                row + k * sizeof(Element), sizeof(Element));
  }
}

// Words of two neighbouring columns.
void pack_pairs(Format format, const std::byte* row, int32_t columns, int lane, std::byte* codes) {
  constexpr int32_t kAtOnce = 256;
  uint16_t values[kAtOnce];
  for (int32_t begin = 0; begin < columns; begin += kAtOnce) {
    const int32_t count = std::min(kAtOnce, columns - begin);
    const std::byte* from = row + weights::row_bytes(format, begin);
    if (format == Format::kBF16) {
      std::memcpy(values, from, static_cast<size_t>(count) * 2);
    } else {
      float wide[kAtOnce];
      weights::dequantize_row(format, {from, weights::row_bytes(format, count)},
                              {wide, static_cast<size_t>(count)});
      for (int32_t i = 0; i < count; ++i) values[i] = numerics::f32_to_bf16(wide[i]);
    }
    if (count % 2 != 0) values[count] = 0;
    std::byte* to = codes + static_cast<size_t>(begin) * 32 + lane * 4;
    for (int32_t i = 0; i < count; i += 2, to += 64) std::memcpy(to, values + i, 4);
  }
}

void put_scale(std::byte* scales, int lane, uint16_t value) {
  std::memcpy(scales + lane * sizeof(value), &value, sizeof(value));
}

void put_header(const FormatShape& shape, const ChunkShape& chunk, const UnpackedBlock& block,
                int lane, int32_t tile, std::byte* header) {
  if (!shape.has_sub_scales()) header += tile * chunk.header_bytes / 2;
  put_scale(header, lane, block.d);
  if (shape.has_minimum) put_scale(header + chunk.minimum_offset, lane, block.m);
  if (!shape.has_sub_scales()) return;
  const bool nibbles = chunk.sub_minimum_offset == chunk.sub_scale_offset;
  for (int32_t j = 0; j < chunk.tiles * chunk.subs; ++j) {
    const size_t at = static_cast<size_t>(j) * kGroupRows + lane;
    header[chunk.sub_scale_offset + at] = static_cast<std::byte>(block.sub_scale[j]);
    if (!shape.has_minimum) continue;
    std::byte& minimum = header[chunk.sub_minimum_offset + at];
    minimum |= static_cast<std::byte>(block.sub_minimum[j] << (nibbles ? 4 : 0));
  }
}

// Spreads 32 codes of one row over a plane of `bits` bits each; the tile's bytes start as zeros.
void put_plane(const uint8_t* code, int shift, int bits, int lane, std::byte* plane) {
  const uint32_t mask = ((1U << bits) - 1) * 0x01010101U;  // four codes at a time
  for (int j = 0; j < 8; ++j) {
    std::byte* out = plane + (j % bits) * 64 + lane * 4;
    uint32_t four;
    uint32_t word;
    std::memcpy(&four, code + static_cast<ptrdiff_t>(4) * j, sizeof(four));
    std::memcpy(&word, out, sizeof(word));
    word |= ((four >> shift) & mask) << (j / bits * bits);
    std::memcpy(out, &word, sizeof(word));
  }
}

// Blocks of 32 whose file order has the packed order's words already: 4-bit codes with column k and
// k + 16 in one byte, and bytes. Packing them is copying words.
void pack_words(const PackedView& view, const std::byte* row, int lane, std::byte* group) {
  const FormatShape shape = weights::format_shape(view.format);
  const ChunkShape chunk = chunk_shape(view.format);
  const uint32_t flip = view.format == Format::kQ80 ? 0x80808080U : 0;  // stored signed
  for (int32_t tile = 0; tile < view.columns / 32; ++tile, row += shape.bytes) {
    std::byte* base = group + static_cast<size_t>(tile / 2) * chunk.bytes;
    std::byte* header = base + static_cast<size_t>(tile % 2) * chunk.header_bytes / 2;
    std::byte* codes =
        base + chunk.header_bytes + static_cast<size_t>(tile % 2) * chunk.tile_bytes + lane * 4;
    std::memcpy(header + lane * 2, row, 2);
    if (shape.has_minimum) std::memcpy(header + chunk.minimum_offset + lane * 2, row + 2, 2);
    const std::byte* from = row + (shape.has_minimum ? 4 : 2);
    for (int32_t i = 0; i < shape.bits; ++i) {
      uint32_t word;
      std::memcpy(&word, from + static_cast<ptrdiff_t>(4) * i, sizeof(word));
      word ^= flip;
      std::memcpy(codes + static_cast<ptrdiff_t>(64) * i, &word, sizeof(word));
    }
  }
}

void pack_quantized(const PackedView& view, const std::byte* row, int lane, std::byte* group) {
  const FormatShape shape = weights::format_shape(view.format);
  const ChunkShape chunk = chunk_shape(view.format);
  const int32_t tiles_per_block = shape.values / 32;
  UnpackedBlock block;
  for (int32_t i = 0; i < view.columns / shape.values; ++i) {
    weights::unpack_block(view.format, row + static_cast<size_t>(i) * shape.bytes, block);
    const int32_t first = i * tiles_per_block;
    std::byte* base = group + static_cast<size_t>(first / chunk.tiles) * chunk.bytes;
    put_header(shape, chunk, block, lane, first % chunk.tiles, base);
    for (int32_t t = 0; t < tiles_per_block; ++t) {
      std::byte* tile = base + chunk.header_bytes +
                        static_cast<size_t>(first % chunk.tiles + t) * chunk.tile_bytes;
      put_plane(block.code + t * 32, 0, chunk.low_bits, lane, tile);
      if (chunk.high_bits > 0) {
        put_plane(block.code + t * 32, chunk.low_bits, chunk.high_bits, lane,
                  tile + chunk.low_bits * 64);
      }
    }
  }
}

void pack_row(const PackedView& view, const std::byte* row, int lane, std::byte* group) {
  switch (view.format) {
    case Format::kF32:
      pack_plain<float>(row, view.columns, lane, group);
      break;
    case Format::kF16:
    case Format::kBF16:
      pack_plain<uint16_t>(row, view.columns, lane, group);
      break;
    case Format::kQ40:
    case Format::kQ41:
    case Format::kIQ4NL:
    case Format::kQ80:
      pack_words(view, row, lane, group);
      break;
    default:
      pack_quantized(view, row, lane, group);
      break;
  }
}

}  // namespace

void FreeAligned::operator()(std::byte* data) const { std::free(data); }

AlignedBytes allocate_aligned(size_t bytes) {
  const bool huge = bytes >= kHugePage;
  const size_t alignment = huge ? kHugePage : 64;
  const size_t size = round_up(bytes == 0 ? 1 : bytes, alignment);
  auto* data = static_cast<std::byte*>(std::aligned_alloc(alignment, size));
  if (data == nullptr) return nullptr;
  if (huge) ::madvise(data, size, MADV_HUGEPAGE);
  std::memset(data, 0, size);
  return AlignedBytes(data);
}

Result<PackedMatrix> PackedMatrix::pack(Format format, int32_t rows, int32_t columns,
                                        std::span<const std::byte> data,
                                        device::ComputeThreads& threads, WeightArena* arena,
                                        Pairs pairs) {
  const size_t row_size = weights::row_bytes(format, columns);
  assert(columns % weights::block_values(format) == 0);
  assert(data.size() == row_size * static_cast<size_t>(rows));
  PackedMatrix matrix;
  PackedView& view = matrix.view_;
  view.pairs = packed_in_pairs(format, pairs);
  view.format = view.pairs ? Format::kBF16 : format;
  view.rows = rows;
  view.columns = columns;
  view.groups = (rows + kGroupRows - 1) / kGroupRows;
  view.group_bytes = group_bytes(format, columns, view.pairs);
  if (arena == nullptr) matrix.storage_ = allocate_aligned(matrix.bytes());
  std::byte* base = arena == nullptr ? matrix.storage_.get() : arena->allocate(matrix.bytes());
  if (base == nullptr) {
    return make_error(
        500, "out_of_memory",
        "no memory for " + std::to_string(matrix.bytes()) + " bytes of packed weights");
  }
  view.data = base;
  threads.parallel([&](int index, int count) {
    const device::WorkRange range = device::split_work(view.groups, index, count);
    for (int32_t group = range.begin; group < range.end; ++group) {
      for (int lane = 0; lane < kGroupRows && group * kGroupRows + lane < rows; ++lane) {
        const size_t row = static_cast<size_t>(group) * kGroupRows + lane;
        std::byte* to = base + static_cast<size_t>(group) * view.group_bytes;
        if (view.pairs) {
          pack_pairs(format, data.data() + row * row_size, columns, lane, to);
        } else {
          pack_row(view, data.data() + row * row_size, lane, to);
        }
      }
    }
  });
  return matrix;
}

}  // namespace tandem::ops
