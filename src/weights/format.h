// Weight formats: how a row of values is stored in a file. Blocks are little-endian and packed.
//
// Every quantized format is one scheme with different numbers (FormatShape): a block of 32 or 256
// values holds unsigned codes of 2 to 8 bits and scales, and
//
//   value = scale * (code - zero) [+ minimum]     or     value = scale * table[code]
//
// where scale is the block's d, or d times a small integer that each sub-block of 16 or 32 values
// has of its own (likewise the minimum: m, or minus m times an integer). unpack_block() turns any
// format's bytes into these parts; decoding, packing for the kernels and encoding are written once
// on top of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tandem::weights {

// Numbers are GGUF's type ids.
enum class Format : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ40 = 2,
  kQ41 = 3,
  kQ50 = 6,
  kQ51 = 7,
  kQ80 = 8,
  kQ2K = 10,
  kQ3K = 11,
  kQ4K = 12,
  kQ5K = 13,
  kQ6K = 14,
  kIQ4NL = 20,
  kIQ4XS = 23,
  kBF16 = 30,
  kMXFP4 = 39,
};

inline constexpr Format kAllFormats[] = {
    Format::kF32, Format::kF16,   Format::kBF16,  Format::kQ80,  Format::kQ40, Format::kQ41,
    Format::kQ50, Format::kQ51,   Format::kQ2K,   Format::kQ3K,  Format::kQ4K, Format::kQ5K,
    Format::kQ6K, Format::kIQ4NL, Format::kIQ4XS, Format::kMXFP4};

inline constexpr int8_t kIQ4Table[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                         1,    13,   25,  38,  53,  69,  89,  113};
// E2M1 times two; the scale is halved instead, as ggml does.
inline constexpr int8_t kMXFP4Table[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

struct FormatShape {
  int32_t values = 1;      // per block; 1 for plain floating-point formats, 32 or 256
  int32_t bytes = 4;       // per block
  int32_t sub_values = 0;  // values that share a scale: `values`, or fewer with sub-scales
  int32_t bits = 0;        // of a code
  int32_t zero = 0;        // subtracted from a code; 0 for tables and formats with a minimum
  bool has_minimum = false;
  int32_t sub_scale_low = 0;   // range of a sub-block's integer scale (and from 0 of its minimum);
  int32_t sub_scale_high = 0;  // 0 when there are none
  const int8_t* table = nullptr;

  constexpr bool quantized() const { return values > 1; }
  constexpr bool has_sub_scales() const { return sub_scale_high > 0; }
};

constexpr FormatShape format_shape(Format format) {
  switch (format) {
    case Format::kF32:
      return {.values = 1, .bytes = 4};
    case Format::kF16:
    case Format::kBF16:
      return {.values = 1, .bytes = 2};
    case Format::kQ40:
      return {.values = 32, .bytes = 18, .sub_values = 32, .bits = 4, .zero = 8};
    case Format::kQ41:
      return {.values = 32, .bytes = 20, .sub_values = 32, .bits = 4, .has_minimum = true};
    case Format::kQ50:
      return {.values = 32, .bytes = 22, .sub_values = 32, .bits = 5, .zero = 16};
    case Format::kQ51:
      return {.values = 32, .bytes = 24, .sub_values = 32, .bits = 5, .has_minimum = true};
    case Format::kQ80:
      return {.values = 32, .bytes = 34, .sub_values = 32, .bits = 8, .zero = 128};
    case Format::kQ2K:
      return {.values = 256,
              .bytes = 84,
              .sub_values = 16,
              .bits = 2,
              .has_minimum = true,
              .sub_scale_high = 15};
    case Format::kQ3K:
      return {.values = 256,
              .bytes = 110,
              .sub_values = 16,
              .bits = 3,
              .zero = 4,
              .sub_scale_low = -32,
              .sub_scale_high = 31};
    case Format::kQ4K:
      return {.values = 256,
              .bytes = 144,
              .sub_values = 32,
              .bits = 4,
              .has_minimum = true,
              .sub_scale_high = 63};
    case Format::kQ5K:
      return {.values = 256,
              .bytes = 176,
              .sub_values = 32,
              .bits = 5,
              .has_minimum = true,
              .sub_scale_high = 63};
    case Format::kQ6K:
      return {.values = 256,
              .bytes = 210,
              .sub_values = 16,
              .bits = 6,
              .zero = 32,
              .sub_scale_low = -128,
              .sub_scale_high = 127};
    case Format::kIQ4NL:
      return {.values = 32, .bytes = 18, .sub_values = 32, .bits = 4, .table = kIQ4Table};
    case Format::kIQ4XS:
      return {.values = 256,
              .bytes = 136,
              .sub_values = 32,
              .bits = 4,
              .sub_scale_low = -32,
              .sub_scale_high = 31,
              .table = kIQ4Table};
    case Format::kMXFP4:
      return {.values = 32, .bytes = 17, .sub_values = 32, .bits = 4, .table = kMXFP4Table};
  }
  return {};
}

std::optional<Format> format_from_gguf(uint32_t type_id);
std::string_view format_name(Format format);
std::string format_names();  // "F32, F16, ...", for messages

constexpr int32_t block_values(Format format) { return format_shape(format).values; }
constexpr int32_t block_bytes(Format format) { return format_shape(format).bytes; }

// Bytes of one row of `columns` values; `columns` is a multiple of block_values(format).
constexpr size_t row_bytes(Format format, int64_t columns) {
  return static_cast<size_t>(columns / block_values(format)) *
         static_cast<size_t>(block_bytes(format));
}

// One block's parts. Only what the shape says exists is set.
struct UnpackedBlock {
  uint16_t d = 0;  // f16; bf16 for MXFP4, whose scales are powers of two from 2^-128 to 2^127
  uint16_t m = 0;  // f16
  int8_t sub_scale[16] = {};
  uint8_t sub_minimum[16] = {};
  uint8_t code[256] = {};
};

// `bytes` holds one block (block_bytes) of a quantized format. pack_block() is the inverse.
void unpack_block(Format format, const std::byte* bytes, UnpackedBlock& out);
void pack_block(Format format, const UnpackedBlock& block, std::byte* bytes);

// The block's d as float32, exactly.
float block_scale(Format format, uint16_t d);

// The normative decoder: float32 values of one row. `row` holds exactly row_bytes(format,
// out.size()) bytes and need not be aligned. Products are exact in float32 and a minimum is added
// with one rounding, so the order of operations does not show. A scale that is infinite or NaN
// gives infinities and NaNs, as arithmetic has it.
void dequantize_row(Format format, std::span<const std::byte> row, std::span<float> out);

// Encodes a row by simple round-to-nearest per block, for tests and generated models; not a good
// quantizer.
void quantize_row(Format format, std::span<const float> values, std::span<std::byte> row);

}  // namespace tandem::weights
