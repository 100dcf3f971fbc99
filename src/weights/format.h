// Weight formats: how a row of values is stored in a file. Blocks are little-endian and packed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/result.h"

namespace tandem::weights {

// Numbers are GGUF's type ids.
enum class Format : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ40 = 2,
  kQ41 = 3,
  kQ80 = 8,
  kQ6K = 14,
  kBF16 = 30,
};

inline constexpr Format kAllFormats[] = {Format::kF32, Format::kF16, Format::kBF16, Format::kQ80,
                                         Format::kQ40, Format::kQ41, Format::kQ6K};

std::optional<Format> format_from_gguf(uint32_t type_id);
std::string_view format_name(Format format);
int32_t block_values(Format format);  // values per block: 1, 32 or 256
int32_t block_bytes(Format format);

// Bytes of one row of `columns` values; `columns` is a multiple of block_values(format).
inline size_t row_bytes(Format format, int64_t columns) {
  return static_cast<size_t>(columns / block_values(format)) *
         static_cast<size_t>(block_bytes(format));
}

struct BlockQ80 {  // value = d * q
  uint16_t d;      // f16
  int8_t q[32];
};
struct BlockQ40 {  // value = d * (nibble - 8); low nibbles hold values 0..15, high nibbles 16..31
  uint16_t d;      // f16
  uint8_t q[16];
};
struct BlockQ41 {  // value = d * nibble + m
  uint16_t d;      // f16
  uint16_t m;      // f16
  uint8_t q[16];
};
struct BlockQ6K {    // value = d * scale[i / 16] * (six_bits - 32)
  uint8_t low[128];  // low four bits
  uint8_t high[64];  // high two bits
  int8_t scale[16];
  uint16_t d;  // f16
};
static_assert(sizeof(BlockQ80) == 34 && sizeof(BlockQ40) == 18 && sizeof(BlockQ41) == 20 &&
              sizeof(BlockQ6K) == 210);

// Six-bit code (0..63) of value `i` (0..255) of a Q6_K block. Each half of 128 values shares 64 low
// bytes and 32 high bytes: value 32 * quarter + j takes a nibble of low[j + 32 * (quarter & 1)] and
// bits 2 * quarter of high[j].
inline int q6k_code(const BlockQ6K& block, int i) {
  const int half = i / 128;
  const int quarter = (i / 32) % 4;
  const int j = i % 32;
  const int low = block.low[64 * half + j + 32 * (quarter & 1)] >> (quarter < 2 ? 0 : 4);
  const int high = block.high[32 * half + j] >> (2 * quarter);
  return (low & 15) | ((high & 3) << 4);
}

// The normative decoder: float32 values of one row. `row` holds exactly row_bytes(format,
// out.size()) bytes.
void dequantize_row(Format format, std::span<const std::byte> row, std::span<float> out);

// Encodes a row by simple round-to-nearest per block, for tests and generated models; not a good
// quantizer.
void quantize_row(Format format, std::span<const float> values, std::span<std::byte> row);

}  // namespace tandem::weights
