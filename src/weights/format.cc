#include "weights/format.h"

#include <cassert>
#include <cstring>

#include "numerics/float_formats.h"

namespace tandem::weights {
namespace {

using numerics::bf16_to_f32;
using numerics::f16_to_f32;

// A number stored in one or two bit fields of a block: the low bits in one byte, the rest (if
// high_bits > 0) in another.
struct Field {
  int low_byte = 0;
  int low_shift = 0;
  int low_bits = 0;
  int high_byte = 0;
  int high_shift = 0;
  int high_bits = 0;
};

int get(const uint8_t* block, const Field& field) {
  int value = (block[field.low_byte] >> field.low_shift) & ((1 << field.low_bits) - 1);
  if (field.high_bits > 0) {
    value |= ((block[field.high_byte] >> field.high_shift) & ((1 << field.high_bits) - 1))
             << field.low_bits;
  }
  return value;
}

// `block` starts as zeros.
void put(uint8_t* block, const Field& field, int value) {
  block[field.low_byte] |=
      static_cast<uint8_t>((value & ((1 << field.low_bits) - 1)) << field.low_shift);
  if (field.high_bits > 0) {
    block[field.high_byte] |= static_cast<uint8_t>((value >> field.low_bits) << field.high_shift);
  }
}

// Where the code of value i is. 32-value blocks keep values 0..15 in the low nibbles and 16..31 in
// the high ones; 256-value blocks go by runs of 32 values that share bytes.
template <Format kFormat>
constexpr Field code_field(int i) {
  const int nibble_byte = i % 16;
  const int nibble_shift = i / 16 * 4;
  switch (kFormat) {
    case Format::kQ80:
      return {2 + i, 0, 8};
    case Format::kQ40:
    case Format::kIQ4NL:
      return {2 + nibble_byte, nibble_shift, 4};
    case Format::kQ41:
      return {4 + nibble_byte, nibble_shift, 4};
    case Format::kMXFP4:
      return {1 + nibble_byte, nibble_shift, 4};
    case Format::kQ50:
      return {6 + nibble_byte, nibble_shift, 4, 2 + i / 8, i % 8, 1};
    case Format::kQ51:
      return {8 + nibble_byte, nibble_shift, 4, 4 + i / 8, i % 8, 1};
    case Format::kQ2K:
      return {16 + i / 128 * 32 + i % 32, i / 32 % 4 * 2, 2};
    case Format::kQ3K:
      return {32 + i / 128 * 32 + i % 32, i / 32 % 4 * 2, 2, i % 32, i / 32, 1};
    case Format::kQ4K:
      return {16 + i / 64 * 32 + i % 32, i / 32 % 2 * 4, 4};
    case Format::kQ5K:
      return {48 + i / 64 * 32 + i % 32, i / 32 % 2 * 4, 4, 16 + i % 32, i / 32, 1};
    case Format::kQ6K:
      return {i / 128 * 64 + i % 64,       i / 64 % 2 * 4, 4,
              128 + i / 128 * 32 + i % 32, i / 32 % 4 * 2, 2};
    case Format::kIQ4XS:
      return {8 + i / 32 * 16 + i % 16, i / 16 % 2 * 4, 4};
    default:
      return {};
  }
}

// Where sub-block j's scale is, as an unsigned number that sub_scale_low is added to (Q6_K: a
// signed byte). Q4_K and Q5_K keep six bits of each of the first four, and of the others the low
// four beside each other and the high two above the first four's.
template <Format kFormat>
constexpr Field scale_field(int j) {
  switch (kFormat) {
    case Format::kQ2K:
      return {j, 0, 4};
    case Format::kQ3K:
      return {96 + j % 8, j / 8 * 4, 4, 104 + j % 4, j / 4 * 2, 2};
    case Format::kQ4K:
    case Format::kQ5K:
      return j < 4 ? Field{4 + j, 0, 6} : Field{8 + j, 0, 4, j, 6, 2};
    case Format::kQ6K:
      return {192 + j, 0, 8};
    case Format::kIQ4XS:
      return {4 + j / 2, j % 2 * 4, 4, 2 + j / 4, j % 4 * 2, 2};
    default:
      return {};
  }
}
template <Format kFormat>
constexpr Field minimum_field(int j) {
  if (kFormat == Format::kQ2K) return {j, 4, 4};
  return j < 4 ? Field{8 + j, 0, 6} : Field{8 + j, 4, 4, 4 + j, 6, 2};
}

// Offsets of d and m. MXFP4 keeps an exponent byte instead.
template <Format kFormat>
constexpr int scale_offset() {
  return kFormat == Format::kQ2K   ? 80
         : kFormat == Format::kQ3K ? 108
         : kFormat == Format::kQ6K ? 208
                                   : 0;
}

// 2^(e - 128), a power of two that bfloat16 holds exactly, subnormals (e = 0, 1) included.
constexpr uint16_t e8m0_half_to_bf16(uint8_t e) {
  return e < 2 ? static_cast<uint16_t>(0x20 << e) : static_cast<uint16_t>((e - 1) << 7);
}
constexpr uint8_t bf16_to_e8m0_half(uint16_t bits) {
  return bits < 0x80 ? static_cast<uint8_t>(bits == 0x40) : static_cast<uint8_t>((bits >> 7) + 1);
}

template <Format kFormat>
void unpack(const uint8_t* in, UnpackedBlock& out) {
  constexpr FormatShape kShape = format_shape(kFormat);
  if constexpr (kFormat == Format::kMXFP4) {
    out.d = e8m0_half_to_bf16(in[0]);
  } else {
    std::memcpy(&out.d, in + scale_offset<kFormat>(), 2);
    if (kShape.has_minimum) std::memcpy(&out.m, in + scale_offset<kFormat>() + 2, 2);
  }
  if constexpr (kShape.has_sub_scales()) {
    for (int j = 0; j < kShape.values / kShape.sub_values; ++j) {
      const int scale = get(in, scale_field<kFormat>(j));
      out.sub_scale[j] = kFormat == Format::kQ6K
                             ? static_cast<int8_t>(scale)
                             : static_cast<int8_t>(scale + kShape.sub_scale_low);
      if (kShape.has_minimum)
        out.sub_minimum[j] = static_cast<uint8_t>(get(in, minimum_field<kFormat>(j)));
    }
  }
  for (int i = 0; i < kShape.values; ++i) {
    out.code[i] = static_cast<uint8_t>(get(in, code_field<kFormat>(i)));
    if (kFormat == Format::kQ80) out.code[i] ^= 0x80;  // stored signed
  }
}

template <Format kFormat>
void pack(const UnpackedBlock& block, uint8_t* out) {
  constexpr FormatShape kShape = format_shape(kFormat);
  std::memset(out, 0, kShape.bytes);
  if constexpr (kFormat == Format::kMXFP4) {
    out[0] = bf16_to_e8m0_half(block.d);
  } else {
    std::memcpy(out + scale_offset<kFormat>(), &block.d, 2);
    if (kShape.has_minimum) std::memcpy(out + scale_offset<kFormat>() + 2, &block.m, 2);
  }
  if constexpr (kShape.has_sub_scales()) {
    for (int j = 0; j < kShape.values / kShape.sub_values; ++j) {
      const int scale = kFormat == Format::kQ6K ? block.sub_scale[j] & 255
                                                : block.sub_scale[j] - kShape.sub_scale_low;
      put(out, scale_field<kFormat>(j), scale);
      if (kShape.has_minimum) put(out, minimum_field<kFormat>(j), block.sub_minimum[j]);
    }
  }
  for (int i = 0; i < kShape.values; ++i) {
    put(out, code_field<kFormat>(i),
        kFormat == Format::kQ80 ? block.code[i] ^ 0x80 : block.code[i]);
  }
}

// Calls `call` with the format as a compile-time constant.
template <typename Call>
void with_quantized(Format format, Call call) {
  switch (format) {
    case Format::kF32:
    case Format::kF16:
    case Format::kBF16:
      assert(false && "not a quantized format");
      return;
    case Format::kQ40:
      return call.template operator()<Format::kQ40>();
    case Format::kQ41:
      return call.template operator()<Format::kQ41>();
    case Format::kQ50:
      return call.template operator()<Format::kQ50>();
    case Format::kQ51:
      return call.template operator()<Format::kQ51>();
    case Format::kQ80:
      return call.template operator()<Format::kQ80>();
    case Format::kQ2K:
      return call.template operator()<Format::kQ2K>();
    case Format::kQ3K:
      return call.template operator()<Format::kQ3K>();
    case Format::kQ4K:
      return call.template operator()<Format::kQ4K>();
    case Format::kQ5K:
      return call.template operator()<Format::kQ5K>();
    case Format::kQ6K:
      return call.template operator()<Format::kQ6K>();
    case Format::kIQ4NL:
      return call.template operator()<Format::kIQ4NL>();
    case Format::kIQ4XS:
      return call.template operator()<Format::kIQ4XS>();
    case Format::kMXFP4:
      return call.template operator()<Format::kMXFP4>();
  }
}

template <Format kFormat>
void dequantize(const UnpackedBlock& block, float* out) {
  constexpr FormatShape kShape = format_shape(kFormat);
  const float d = block_scale(kFormat, block.d);
  const float m = f16_to_f32(block.m);
  for (int i = 0; i < kShape.values; ++i) {
    const int j = i / kShape.sub_values;
    const float scale = kShape.has_sub_scales() ? d * static_cast<float>(block.sub_scale[j]) : d;
    const int code =
        kShape.table != nullptr ? kShape.table[block.code[i] & 15] : block.code[i] - kShape.zero;
    out[i] = scale * static_cast<float>(code);
    if (!kShape.has_minimum) continue;
    if (kShape.has_sub_scales()) {
      out[i] -= m * static_cast<float>(block.sub_minimum[j]);
    } else {
      out[i] += m;
    }
  }
}

template <typename T>
T load(std::span<const std::byte> row, size_t index) {
  T value;
  std::memcpy(&value, row.data() + index * sizeof(T), sizeof(T));
  return value;
}

}  // namespace

std::optional<Format> format_from_gguf(uint32_t type_id) {
  for (const Format format : kAllFormats) {
    if (static_cast<uint32_t>(format) == type_id) return format;
  }
  return std::nullopt;
}

std::string_view format_name(Format format) {
  switch (format) {
    case Format::kF32:
      return "F32";
    case Format::kF16:
      return "F16";
    case Format::kBF16:
      return "BF16";
    case Format::kQ40:
      return "Q4_0";
    case Format::kQ41:
      return "Q4_1";
    case Format::kQ50:
      return "Q5_0";
    case Format::kQ51:
      return "Q5_1";
    case Format::kQ80:
      return "Q8_0";
    case Format::kQ2K:
      return "Q2_K";
    case Format::kQ3K:
      return "Q3_K";
    case Format::kQ4K:
      return "Q4_K";
    case Format::kQ5K:
      return "Q5_K";
    case Format::kQ6K:
      return "Q6_K";
    case Format::kIQ4NL:
      return "IQ4_NL";
    case Format::kIQ4XS:
      return "IQ4_XS";
    case Format::kMXFP4:
      return "MXFP4";
  }
  return "?";
}

std::string format_names() {
  std::string names;
  for (const Format format : kAllFormats) {
    if (!names.empty()) names += ", ";
    names += format_name(format);
  }
  return names;
}

float block_scale(Format format, uint16_t d) {
  return format == Format::kMXFP4 ? bf16_to_f32(d) : f16_to_f32(d);
}

void unpack_block(Format format, const std::byte* bytes, UnpackedBlock& out) {
  with_quantized(format, [&]<Format kFormat>() {
    unpack<kFormat>(reinterpret_cast<const uint8_t*>(bytes), out);
  });
}

void pack_block(Format format, const UnpackedBlock& block, std::byte* bytes) {
  with_quantized(
      format, [&]<Format kFormat>() { pack<kFormat>(block, reinterpret_cast<uint8_t*>(bytes)); });
}

void dequantize_row(Format format, std::span<const std::byte> row, std::span<float> out) {
  assert(row.size() == row_bytes(format, static_cast<int64_t>(out.size())));
  switch (format) {
    case Format::kF32:
      std::memcpy(out.data(), row.data(), row.size());
      return;
    case Format::kF16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = f16_to_f32(load<uint16_t>(row, i));
      return;
    case Format::kBF16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = bf16_to_f32(load<uint16_t>(row, i));
      return;
    default:
      break;
  }
  with_quantized(format, [&]<Format kFormat>() {
    constexpr FormatShape kShape = format_shape(kFormat);
    UnpackedBlock block;
    for (size_t i = 0; i < out.size() / kShape.values; ++i) {
      unpack<kFormat>(reinterpret_cast<const uint8_t*>(row.data()) + i * kShape.bytes, block);
      dequantize<kFormat>(block, out.data() + i * kShape.values);
    }
  });
}

}  // namespace tandem::weights
