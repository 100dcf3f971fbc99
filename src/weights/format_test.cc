// Formats: decoding bit for bit like the gguf package (goldens of scripts/reference/formats.py),
// packing as the inverse of unpacking, encoding close to its source.
#include "weights/format.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>

#include <gtest/gtest.h>

#include "numerics/digest.h"

namespace tandem::weights {
namespace {

// As in scripts/reference/formats.py.
std::vector<std::byte> random_bytes(uint64_t seed, size_t count) {
  std::vector<std::byte> out(count + 8);
  uint64_t state = seed * 0x9E3779B97F4A7C15ULL;
  for (size_t at = 0; at < count; at += 8) {
    state += 0x9E3779B97F4A7C15ULL;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    z ^= z >> 31;
    std::memcpy(out.data() + at, &z, 8);
  }
  out.resize(count);
  return out;
}

std::vector<size_t> scale_offsets(Format format) {
  switch (format) {
    case Format::kMXFP4:
      return {};
    case Format::kQ2K:
      return {80, 82};
    case Format::kQ3K:
      return {108};
    case Format::kQ6K:
      return {208};
    default:
      return format_shape(format).has_minimum ? std::vector<size_t>{0, 2} : std::vector<size_t>{0};
  }
}

std::vector<std::byte> golden_blocks(Format format, size_t count) {
  constexpr uint16_t kSpecial[] = {0x0000, 0x8000, 0x0001, 0x03FF, 0x8001, 0x0400,
                                   0x3C00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E01};
  const auto size = static_cast<size_t>(block_bytes(format));
  std::vector<std::byte> bytes = random_bytes(static_cast<uint64_t>(format), count * size);
  for (size_t i = 0; i < std::size(kSpecial); ++i) {
    for (const size_t offset : scale_offsets(format))
      std::memcpy(bytes.data() + i * size + offset, &kSpecial[i], 2);
  }
  if (format == Format::kMXFP4) {
    constexpr uint8_t kExponents[] = {0, 1, 2, 127, 254, 255};
    for (size_t i = 0; i < std::size(kExponents); ++i) bytes[i * size] = std::byte{kExponents[i]};
  }
  return bytes;
}

struct Golden {
  size_t blocks = 0;
  std::string digest;
  uint32_t shown[3] = {};
};

Golden read_golden(Format format) {
  std::ifstream in(std::string(TANDEM_SOURCE_DIR) + "/tests/golden/formats.txt");
  std::string line;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string name;
    Golden golden;
    words >> name >> golden.blocks >> golden.digest >> std::hex;
    for (uint32_t& bits : golden.shown) words >> bits;
    if (words && name == format_name(format)) return golden;
  }
  return {};
}

class FormatTest : public testing::TestWithParam<Format> {};

TEST_P(FormatTest, DecodesBitForBitLikeTheGgufPackage) {
  const Format format = GetParam();
  if (format == Format::kF32) return;  // a copy
  const Golden golden = read_golden(format);
  ASSERT_GT(golden.blocks, 0U);
  const std::vector<std::byte> bytes = golden_blocks(format, golden.blocks);
  const auto values = static_cast<size_t>(block_values(format));
  std::vector<float> decoded(golden.blocks * values);
  dequantize_row(format, bytes, decoded);
  std::vector<uint32_t> bits(decoded.size());
  for (size_t i = 0; i < decoded.size(); ++i)
    bits[i] = std::isnan(decoded[i]) ? 0x7FC00000U : std::bit_cast<uint32_t>(decoded[i]);
  size_t shown = 0;
  for (const size_t i : {0, 1, 31}) {
    EXPECT_EQ(bits[bits.size() - values + i % values], golden.shown[shown]) << i;
    ++shown;
  }
  EXPECT_EQ(numerics::to_hex(numerics::sha256(std::as_bytes(std::span(bits)))), golden.digest);
}

TEST_P(FormatTest, PackingIsTheInverseOfUnpacking) {
  const Format format = GetParam();
  if (!format_shape(format).quantized()) return;
  const auto size = static_cast<size_t>(block_bytes(format));
  std::vector<std::byte> bytes = golden_blocks(format, 32);
  if (format == Format::kMXFP4) bytes[5 * size] = std::byte{254};  // 255 decodes like no other
  for (size_t i = 0; i < 32; ++i) {
    UnpackedBlock block;
    unpack_block(format, bytes.data() + i * size, block);
    std::vector<std::byte> again(size);
    pack_block(format, block, again.data());
    EXPECT_EQ(std::memcmp(again.data(), bytes.data() + i * size, size), 0) << i;
  }
}

TEST_P(FormatTest, QuantizedRowsDecodeCloseToTheirSource) {
  const Format format = GetParam();
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> values(512);
  for (float& value : values) value = normal(random);
  std::vector<std::byte> row(row_bytes(format, 512));
  quantize_row(format, values, row);
  std::vector<float> decoded(512);
  dequantize_row(format, row, decoded);
  double error = 0;
  double power = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    error += std::pow(static_cast<double>(decoded[i]) - static_cast<double>(values[i]), 2);
    power += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  const FormatShape shape = format_shape(format);
  // Rounding to nearest with steps of peak / 2^(bits - 1), and slack for coarse scales.
  const double tolerance = format == Format::kF32    ? 0
                           : format == Format::kF16  ? 1e-3
                           : format == Format::kBF16 ? 4e-3
                                                     : 2.0 / (1 << shape.bits);
  EXPECT_LE(std::sqrt(error / power), tolerance);
}

INSTANTIATE_TEST_SUITE_P(All, FormatTest, testing::ValuesIn(kAllFormats),
                         [](const auto& info) { return std::string(format_name(info.param)); });

TEST(Format, HandMadeBlocksDecodeAsDocumented) {
  std::vector<std::byte> q41(20);
  q41[1] = std::byte{0x38};  // d = 0.5
  q41[3] = std::byte{0xBC};  // m = -1
  q41[4] = std::byte{0xF3};
  float out[32];
  dequantize_row(Format::kQ41, q41, out);
  EXPECT_EQ(out[0], 0.5F);   // 3 * 0.5 - 1
  EXPECT_EQ(out[16], 6.5F);  // 15 * 0.5 - 1
  EXPECT_EQ(out[1], -1.0F);

  std::vector<std::byte> q6k(210);
  q6k[209] = std::byte{0x3C};                     // d = 1
  q6k[192 + 8 + 6] = static_cast<std::byte>(-2);  // scale of values 224..239
  q6k[64 + 32 + 5] = std::byte{0x90};             // low bits: second half, high nibble
  q6k[128 + 32 + 5] = std::byte{0xC0};            // high bits: second half, fourth quarter
  float wide[256];
  dequantize_row(Format::kQ6K, q6k, wide);
  EXPECT_EQ(wide[128 + 96 + 5], -2.0F * (0x39 - 32));
}

TEST(Format, UnknownGgufTypesAreNotFormats) {
  EXPECT_EQ(format_from_gguf(12), Format::kQ4K);
  EXPECT_EQ(format_from_gguf(39), Format::kMXFP4);
  for (const uint32_t id : {4U, 5U, 9U, 16U, 40U, 77U, ~0U}) EXPECT_FALSE(format_from_gguf(id));
}

}  // namespace
}  // namespace tandem::weights
