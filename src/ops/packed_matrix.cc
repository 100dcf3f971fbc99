#include "ops/packed_matrix.h"

#include <cassert>
#include <cstdlib>
#include <cstring>
#include <new>

#include <sys/mman.h>

namespace tandem::ops {
namespace {

using weights::BlockQ40;
using weights::BlockQ41;
using weights::BlockQ6K;
using weights::BlockQ80;
using weights::Format;

constexpr size_t kHugePage = size_t{2} << 20;

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// Where one block's scales and codes are inside a group.
struct BlockPlace {
  std::byte* scales;
  std::byte* codes;
};
BlockPlace place(Format format, std::byte* group, size_t block) {
  const ChunkShape shape = chunk_shape(format);
  std::byte* chunk = group + block / shape.blocks * shape.bytes;
  const size_t inside = block % shape.blocks;
  return {chunk + inside * shape.scale_bytes,
          chunk + shape.blocks * shape.scale_bytes + inside * shape.code_bytes};
}

size_t group_bytes(Format format, int32_t columns) {
  if (weights::block_values(format) == 1) {
    return round_up(static_cast<size_t>(columns) * kGroupRows *
                        static_cast<size_t>(weights::block_bytes(format)),
                    64);
  }
  const ChunkShape shape = chunk_shape(format);
  const auto blocks = static_cast<size_t>(columns / weights::block_values(format));
  return (blocks + shape.blocks - 1) / shape.blocks * shape.bytes;
}

template <typename T>
T load(const std::byte* row, size_t index) {
  T value;
  std::memcpy(&value, row + index * sizeof(T), sizeof(T));
  return value;
}

template <typename Element>
void pack_plain(const std::byte* row, int32_t columns, int lane, std::byte* codes) {
  for (int32_t k = 0; k < columns; ++k) {
    std::memcpy(codes + (static_cast<size_t>(k) * kGroupRows + lane) * sizeof(Element),
                row + k * sizeof(Element), sizeof(Element));
  }
}

void put_scale(std::byte* scales, size_t index, uint16_t value) {
  std::memcpy(scales + index * sizeof(value), &value, sizeof(value));
}

void pack_q8_0(const BlockQ80& block, int lane, const BlockPlace& out) {
  put_scale(out.scales, lane, block.d);
  for (int k = 0; k < 32; ++k) {
    out.codes[(k / 4) * 64 + lane * 4 + k % 4] = static_cast<std::byte>(block.q[k] + 128);
  }
}

void pack_nibbles(const uint8_t* q, int lane, std::byte* out) {
  for (int k = 0; k < 16; ++k) out[(k / 4) * 64 + lane * 4 + k % 4] = static_cast<std::byte>(q[k]);
}

void pack_q4_0(const BlockQ40& block, int lane, const BlockPlace& out) {
  put_scale(out.scales, lane, block.d);
  pack_nibbles(block.q, lane, out.codes);
}

void pack_q4_1(const BlockQ41& block, int lane, const BlockPlace& out) {
  put_scale(out.scales, lane, block.d);
  put_scale(out.scales, 16 + lane, block.m);
  pack_nibbles(block.q, lane, out.codes);
}

void pack_q6_k(const BlockQ6K& block, int lane, const BlockPlace& out) {
  put_scale(out.scales, lane, block.d);
  for (int s = 0; s < 16; ++s) {
    out.scales[32 + s * 16 + lane] = static_cast<std::byte>(block.scale[s]);
    std::byte* low = out.codes + static_cast<size_t>(s) * 192;
    std::byte* high = low + 128;
    for (int k = 0; k < 16; ++k) {
      const int code = weights::q6k_code(block, s * 16 + k);
      low[(k % 8) * 16 + lane] |= static_cast<std::byte>((code & 15) << (k / 8 * 4));
      high[(k % 4) * 16 + lane] |= static_cast<std::byte>((code >> 4) << (k / 4 * 2));
    }
  }
}

template <typename Block, typename Pack>
void pack_blocks(const PackedView& view, const std::byte* row, int lane, std::byte* group,
                 Pack pack) {
  const auto blocks = static_cast<size_t>(view.columns / weights::block_values(view.format));
  for (size_t i = 0; i < blocks; ++i) pack(load<Block>(row, i), lane, place(view.format, group, i));
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
    case Format::kQ80:
      pack_blocks<BlockQ80>(view, row, lane, group, pack_q8_0);
      break;
    case Format::kQ40:
      pack_blocks<BlockQ40>(view, row, lane, group, pack_q4_0);
      break;
    case Format::kQ41:
      pack_blocks<BlockQ41>(view, row, lane, group, pack_q4_1);
      break;
    case Format::kQ6K:
      pack_blocks<BlockQ6K>(view, row, lane, group, pack_q6_k);
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
                                        device::ComputeThreads& threads) {
  const size_t row_size = weights::row_bytes(format, columns);
  assert(columns % weights::block_values(format) == 0);
  assert(data.size() == row_size * static_cast<size_t>(rows));
  PackedMatrix matrix;
  PackedView& view = matrix.view_;
  view.format = format;
  view.rows = rows;
  view.columns = columns;
  view.groups = (rows + kGroupRows - 1) / kGroupRows;
  view.group_bytes = group_bytes(format, columns);
  matrix.storage_ = allocate_aligned(matrix.bytes());
  if (!matrix.storage_) {
    return make_error(
        500, "out_of_memory",
        "no memory for " + std::to_string(matrix.bytes()) + " bytes of packed weights");
  }
  view.data = matrix.storage_.get();
  std::byte* base = matrix.storage_.get();
  threads.parallel([&](int index, int count) {
    const device::WorkRange range = device::split_work(view.groups, index, count);
    for (int32_t group = range.begin; group < range.end; ++group) {
      for (int lane = 0; lane < kGroupRows && group * kGroupRows + lane < rows; ++lane) {
        const size_t row = static_cast<size_t>(group) * kGroupRows + lane;
        pack_row(view, data.data() + row * row_size, lane,
                 base + static_cast<size_t>(group) * view.group_bytes);
      }
    }
  });
  return matrix;
}

}  // namespace tandem::ops
