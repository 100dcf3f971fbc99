// linear: every instruction set and format against a double-precision product, over odd shapes;
// GEMV equal to GEMM.
#include <cmath>
#include <cstring>

#include "numerics/error.h"
#include "ops/cpu/decode_scalar.h"
#include "ops/operators.h"
#include "ops/ops_test_support.h"

namespace tandem::ops {
namespace {

using weights::Format;

std::vector<int32_t> column_counts(Format format) {
  switch (weights::block_values(format)) {
    case 1:
      return {1, 7, 40, 256, 300};
    case 32:
      return {32, 96, 288, 576};
    default:
      return {256, 768};
  }
}

std::vector<double> reference_product(const TestMatrix& matrix, int32_t rows, int32_t columns,
                                      const std::vector<float>& x, int32_t m) {
  std::vector<double> out(static_cast<size_t>(m) * rows);
  for (int32_t i = 0; i < m; ++i) {
    for (int32_t row = 0; row < rows; ++row) {
      double sum = 0;
      for (int32_t k = 0; k < columns; ++k) {
        sum += static_cast<double>(matrix.decoded[static_cast<size_t>(row) * columns + k]) *
               static_cast<double>(x[static_cast<size_t>(i) * columns + k]);
      }
      out[static_cast<size_t>(i) * rows + row] = sum;
    }
  }
  return out;
}

// The values that int8 activations stand for.
std::vector<float> dequantize_activations(const std::vector<cpu::ActivationBlock>& blocks) {
  std::vector<float> out;
  for (const cpu::ActivationBlock& block : blocks) {
    for (const int8_t q : block.q) out.push_back(block.d * static_cast<float>(q));
  }
  return out;
}

struct Product {
  std::vector<float> out;
  void run(const CpuExecutor& executor, const TestMatrix& matrix, Activations x, int32_t rows) {
    out.assign(static_cast<size_t>(x.rows) * rows, -7.0F);
    const LinearTarget target[] = {{&matrix.packed, out.data(), static_cast<size_t>(rows)}};
    linear(executor, x, target);
  }
};

class LinearTest : public testing::TestWithParam<Format> {};

TEST_P(LinearTest, PackedOrderHoldsTheSameValues) {
  const Format format = GetParam();
  const int32_t columns = weights::block_values(format) == 1 ? 37 : 512;
  const TestMatrix matrix = make_matrix(format, 21, columns, 1);
  for (int32_t row = 0; row < 21; ++row) {
    for (int32_t k = 0; k < columns; ++k) {
      ASSERT_EQ(cpu::packed_weight(matrix.packed.view(), row / 16, row % 16, k),
                matrix.decoded[static_cast<size_t>(row) * columns + k]);
    }
  }
}

TEST_P(LinearTest, Float32ActivationsMatchDoublePrecision) {
  for (const cpu::Kernels* kernels : machine_kernels()) {
    const CpuExecutor executor = *CpuExecutor::create(*kernels, 1, 64);
    for (const int32_t columns : column_counts(GetParam())) {
      for (const int32_t rows : {1, 16, 23, 64}) {
        const TestMatrix matrix = make_matrix(GetParam(), rows, columns, 2);
        for (const int32_t m : {1, 2, 3, 5, 9, 13, 70}) {
          auto x = random_values(static_cast<size_t>(m) * columns, 3);
          Product product;
          product.run(executor, matrix, {x.data(), nullptr, m, columns}, rows);
          const auto expected = reference_product(matrix, rows, columns, x, m);
          for (size_t i = 0; i < expected.size(); ++i) {
            ASSERT_NEAR(product.out[i], expected[i], 2e-5 * std::sqrt(columns))
                << kernels->name << " " << rows << "x" << columns << " m " << m;
          }
        }
      }
    }
  }
}

TEST_P(LinearTest, Int8ActivationsMatchDoublePrecision) {
  if (!has_int8_kernel(GetParam())) return;
  for (const cpu::Kernels* kernels : machine_kernels()) {
    const CpuExecutor executor = *CpuExecutor::create(*kernels, 1, 64);
    for (const int32_t columns : column_counts(GetParam())) {
      for (const int32_t rows : {1, 7, 16, 29, 64}) {
        const TestMatrix matrix = make_matrix(GetParam(), rows, columns, 4);
        for (const int32_t m : {1, 2, 3, 4, 5, 13, 30}) {
          auto x = random_values(static_cast<size_t>(m) * columns, 5);
          std::vector<cpu::ActivationBlock> blocks(x.size() / 32);
          const Activations activations = {x.data(), blocks.data(), m, columns};
          quantize(executor, activations);
          Product product;
          product.run(executor, matrix, activations, rows);
          const auto expected =
              reference_product(matrix, rows, columns, dequantize_activations(blocks), m);
          for (size_t i = 0; i < expected.size(); ++i) {
            ASSERT_NEAR(product.out[i], expected[i], 2e-5 * std::sqrt(columns))
                << kernels->name << " " << rows << "x" << columns << " m " << m;
          }
        }
      }
    }
  }
}

TEST_P(LinearTest, ARowsBitsDoNotDependOnOtherRowsOrThreads) {
  const int32_t columns = weights::block_values(GetParam()) == 1 ? 300 : 768;
  const int32_t rows = 83;
  const int32_t m = 77;
  const TestMatrix matrix = make_matrix(GetParam(), rows, columns, 6);
  auto x = random_values(static_cast<size_t>(m) * columns, 7);
  for (const cpu::Kernels* kernels : machine_kernels()) {
    for (const bool quantized : {false, true}) {
      if (quantized && columns % 32 != 0) continue;
      std::vector<cpu::ActivationBlock> blocks(x.size() / 32);
      const auto activations = [&](int32_t first, int32_t count) {
        return Activations{
            x.data() + static_cast<size_t>(first) * columns,
            quantized ? blocks.data() + static_cast<size_t>(first) * (columns / 32) : nullptr,
            count, columns};
      };
      const CpuExecutor one = *CpuExecutor::create(*kernels, 1, 64);
      quantize(one, activations(0, m));
      Product whole;
      whole.run(one, matrix, activations(0, m), rows);
      for (const int threads : {1, 2, 3}) {
        const CpuExecutor executor = *CpuExecutor::create(*kernels, threads, 64);
        for (const int32_t chunk : {1, 2, 3, 4, 7, 16, 64, 77}) {
          for (int32_t first = 0; first < m; first += chunk) {
            const int32_t count = std::min(chunk, m - first);
            Product part;
            part.run(executor, matrix, activations(first, count), rows);
            ASSERT_EQ(
                std::memcmp(part.out.data(), whole.out.data() + static_cast<size_t>(first) * rows,
                            part.out.size() * sizeof(float)),
                0)
                << kernels->name << " threads " << threads << " chunk " << chunk << " int8 "
                << quantized;
          }
        }
      }
    }
  }
}

// Few rows go without tiles, so what a row gives must not tell.
TEST_P(LinearTest, TilesGiveTheBitsOfVectors) {
  if (!has_int8_kernel(GetParam())) return;
  if (cpu::machine_isa() < cpu::Isa::kAmx) GTEST_SKIP() << "this machine has no AMX";
  const CpuExecutor tiles = *CpuExecutor::create(cpu::kernels_for(cpu::Isa::kAmx), 1, 64);
  const CpuExecutor vectors = *CpuExecutor::create(cpu::kernels_for(cpu::Isa::kAvx512), 1, 64);
  const bool small_blocks = weights::block_values(GetParam()) == 32;
  for (const int32_t columns :
       small_blocks ? std::vector{32, 96, 224, 576, 1600, 2048} : std::vector{256, 768, 2048}) {
    for (const int32_t rows : {7, 16, 29, 48}) {
      const TestMatrix matrix = make_matrix(GetParam(), rows, columns, 4);
      for (const int32_t m : {1, 15, 31, 32, 47, 64, 70, 80}) {
        auto x = random_values(static_cast<size_t>(m) * columns, 5);
        x[m - 1] = m == 70 ? NAN : 0.0F;
        std::vector<cpu::ActivationBlock> blocks(x.size() / 32);
        const Activations activations = {x.data(), blocks.data(), m, columns};
        quantize(tiles, activations);
        Product expected;
        expected.run(vectors, matrix, activations, rows);
        Product product;
        product.run(tiles, matrix, activations, rows);
        ASSERT_EQ(std::memcmp(product.out.data(), expected.out.data(),
                              expected.out.size() * sizeof(float)),
                  0)
            << rows << "x" << columns << " m " << m;
      }
    }
  }
}

class PairsTest : public testing::TestWithParam<Format> {
 protected:
  void SetUp() override {
    if (kernels().linear_bf16 == nullptr)
      GTEST_SKIP() << "this machine has no products of BF16 pairs, or slow ones";
  }
  static const cpu::Kernels& kernels() { return cpu::kernels_for(cpu::machine_isa()); }
};

TEST_P(PairsTest, PackedOrderHoldsTheRoundedValues) {
  const int32_t columns = weights::block_values(GetParam()) == 1 ? 37 : 768;
  const TestMatrix matrix = make_matrix(GetParam(), 21, columns, 1, Pairs::kAll);
  for (int32_t row = 0; row < 21; ++row) {
    for (int32_t k = 0; k < columns; ++k) {
      ASSERT_EQ(cpu::packed_weight(matrix.packed.view(), row / 16, row % 16, k),
                matrix.decoded[static_cast<size_t>(row) * columns + k]);
    }
  }
}

TEST_P(PairsTest, ProductsMatchDoublePrecisionAndNotTheOtherRowsOrThreads) {
  for (const int32_t columns : {1, 7, 40, 300, 768}) {
    if (columns % weights::block_values(GetParam()) != 0) continue;
    for (const int32_t rows : {1, 23, 83, 290}) {
      const TestMatrix matrix = make_matrix(GetParam(), rows, columns, 6, Pairs::kAll);
      const int32_t m = 77;
      auto x = random_values(static_cast<size_t>(m) * columns, 7);
      Activations all = {.values = x.data(), .rows = m, .columns = columns};
      std::vector<uint16_t> bf16(all.bf16_per_row() * m);
      all.bf16 = bf16.data();
      const CpuExecutor one = *CpuExecutor::create(kernels(), 1, 64);
      quantize(one, all);
      for (float& value : x) value = numerics::bf16_to_f32(numerics::f32_to_bf16(value));
      Product whole;
      whole.run(one, matrix, all, rows);
      const auto expected = reference_product(matrix, rows, columns, x, m);
      for (size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(whole.out[i], expected[i], 2e-5 * std::sqrt(columns)) << rows << "x" << columns;
      const CpuExecutor executor = *CpuExecutor::create(kernels(), 3, 64);
      for (const int32_t chunk : {1, 2, 3, 7, 13, 20, 77}) {
        for (int32_t first = 0; first < m; first += chunk) {
          Activations some = all;
          some.rows = std::min(chunk, m - first);
          some.bf16 += first * some.bf16_per_row();
          Product part;
          part.run(executor, matrix, some, rows);
          ASSERT_EQ(
              std::memcmp(part.out.data(), whole.out.data() + static_cast<size_t>(first) * rows,
                          part.out.size() * sizeof(float)),
              0)
              << rows << "x" << columns << " chunk " << chunk;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, PairsTest,
                         testing::Values(Format::kF32, Format::kF16, Format::kBF16, Format::kQ40,
                                         Format::kQ41, Format::kQ80, Format::kQ6K, Format::kMXFP4),
                         [](const auto& info) {
                           return std::string(weights::format_name(info.param));
                         });

TEST_P(LinearTest, LargestCodesDoNotOverflow) {
  // Every code, scale and activation at its extreme: the sums that the kernels' overflow arguments
  // are about.
  const Format format = GetParam();
  if (!has_int8_kernel(format)) return;
  const weights::FormatShape shape = weights::format_shape(format);
  constexpr int kColumns = 512;
  const size_t size = weights::row_bytes(format, kColumns);
  std::vector<std::byte> file(size * 16);
  std::vector<float> decoded(16 * kColumns);
  for (int row = 0; row < 16; ++row) {
    weights::UnpackedBlock block;
    block.d = format == Format::kMXFP4 ? 0x3F80 : 0x3C00;  // 1
    block.m = 0xBC00;                                      // -1
    const int top = (1 << shape.bits) - 1;
    // Tables have their largest magnitudes at codes 0 and 15 (IQ4), 7 and 15 (MXFP4).
    const int code = row % 2 == 0 ? top : format == Format::kMXFP4 ? 7 : 0;
    std::fill(std::begin(block.code), std::end(block.code), static_cast<uint8_t>(code));
    const int scale = row % 4 < 2 ? shape.sub_scale_high : shape.sub_scale_low;
    std::fill(std::begin(block.sub_scale), std::end(block.sub_scale), static_cast<int8_t>(scale));
    std::fill(std::begin(block.sub_minimum), std::end(block.sub_minimum),
              static_cast<uint8_t>(shape.sub_scale_high));
    const auto bytes = std::span(file).subspan(row * size, size);
    for (int i = 0; i < kColumns / shape.values; ++i)
      weights::pack_block(format, block, bytes.data() + static_cast<ptrdiff_t>(i) * shape.bytes);
    weights::dequantize_row(format, bytes, std::span(decoded).subspan(row * kColumns, kColumns));
  }
  device::ComputeThreads threads(1);
  const PackedMatrix packed = *PackedMatrix::pack(format, 16, kColumns, file, threads);
  for (const float sign : {1.0F, -1.0F}) {
    std::vector<float> x(kColumns, sign * 127);
    std::vector<cpu::ActivationBlock> blocks(kColumns / 32);
    for (const cpu::Kernels* kernels : machine_kernels()) {
      const CpuExecutor executor = *CpuExecutor::create(*kernels, 1, 64);
      const Activations activations = {x.data(), blocks.data(), 1, kColumns};
      quantize(executor, activations);
      std::vector<float> out(16);
      const LinearTarget target[] = {{&packed, out.data(), 16}};
      linear(executor, activations, target);
      for (int row = 0; row < 16; ++row) {
        double expected = 0;
        double magnitude = 0;
        for (int k = 0; k < kColumns; ++k) {
          const cpu::ActivationBlock& block = blocks[static_cast<size_t>(k) / 32];
          expected += static_cast<double>(decoded[row * kColumns + k]) *
                      static_cast<double>(block.d) * block.q[k % 32];
          magnitude += 127 * std::abs(static_cast<double>(decoded[row * kColumns + k]));
        }
        EXPECT_NEAR(out[row], expected, magnitude * 1e-5) << kernels->name << " row " << row;
      }
    }
  }
}

TEST_P(LinearTest, SpecialScalesDecodeAlikeInEveryKernel) {
  // Subnormal and extreme scales with random codes: a product with a unit vector is the weight.
  const Format format = GetParam();
  const int32_t columns = 256;
  TestMatrix matrix = make_matrix(format, 16, columns, 11);
  const size_t size = weights::row_bytes(format, columns);
  const weights::FormatShape shape = weights::format_shape(format);
  constexpr uint16_t kSpecial[] = {0x0001, 0x8001, 0x03FF, 0x0400, 0x0000, 0x8000, 0x5BFF, 0xDBFF};
  if (!shape.quantized()) return;
  for (size_t row = 0; row < 16; ++row) {
    for (int32_t i = 0; i < columns / shape.values; ++i) {
      std::byte* bytes = matrix.file.data() + row * size + static_cast<size_t>(i) * shape.bytes;
      weights::UnpackedBlock block;
      weights::unpack_block(format, bytes, block);
      block.d = format == Format::kMXFP4 ? static_cast<uint16_t>(0x20 << row) : kSpecial[row % 8];
      block.m = kSpecial[(row + 3) % 8];
      weights::pack_block(format, block, bytes);
    }
    weights::dequantize_row(format, std::span(matrix.file).subspan(row * size, size),
                            std::span(matrix.decoded).subspan(row * columns, columns));
  }
  device::ComputeThreads threads(1);
  const PackedMatrix packed = *PackedMatrix::pack(format, 16, columns, matrix.file, threads);
  for (const cpu::Kernels* kernels : machine_kernels()) {
    const CpuExecutor executor = *CpuExecutor::create(*kernels, 1, 64);
    for (int32_t k = 0; k < columns; ++k) {
      std::vector<float> x(columns);
      x[k] = 1;
      std::vector<float> out(16);
      const LinearTarget target[] = {{&packed, out.data(), 16}};
      linear(executor, {x.data(), nullptr, 1, columns}, target);
      for (int row = 0; row < 16; ++row)
        ASSERT_EQ(out[row], matrix.decoded[row * columns + k]) << kernels->name << " row " << row;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, LinearTest, testing::ValuesIn(weights::kAllFormats),
                         [](const auto& info) {
                           return std::string(weights::format_name(info.param));
                         });

// The parts' own scratch, many rows or few, and whether the values are kept show nowhere.
TEST(GatedFfn, GivesWhatTheProductsAndTheGateGive) {
  constexpr int32_t kColumns = 96;
  constexpr int32_t kWidth = 160;
  constexpr int32_t kMost = 300;
  const TestMatrix gate_matrix = make_matrix(Format::kQ40, kWidth, kColumns, 21);
  const TestMatrix up_matrix = make_matrix(Format::kQ40, kWidth, kColumns, 22);
  auto x = random_values(static_cast<size_t>(kMost) * kColumns, 23);
  for (const cpu::Kernels* kernels : machine_kernels()) {
    std::vector<cpu::ActivationBlock> x_blocks(x.size() / 32);
    const CpuExecutor one = *CpuExecutor::create(*kernels, 1, 64);
    Activations input = {x.data(), x_blocks.data(), kMost, kColumns};
    quantize(one, input);
    Product gate_product;
    Product up_product;
    gate_product.run(one, gate_matrix, input, kWidth);
    up_product.run(one, up_matrix, input, kWidth);
    std::vector<float> expected(static_cast<size_t>(kMost) * kWidth);
    std::vector<cpu::ActivationBlock> expected_blocks(expected.size() / 32);
    gate(one, gate_product.out.data(), up_product.out.data(), Activation::kSilu,
         {expected.data(), expected_blocks.data(), kMost, kWidth});
    for (const int32_t rows : {1, 7, 32, 33, 64, 130, 300}) {
      for (const bool keep : {true, false}) {
        const CpuExecutor executor = *CpuExecutor::create(*kernels, 1 + rows % 3, 64);
        std::vector<float> values(expected.size());
        std::vector<cpu::ActivationBlock> blocks(expected_blocks.size());
        std::vector<float> scratch(static_cast<size_t>(2) * kGatedRows * kWidth);
        input.rows = rows;
        gated_ffn(executor, input, gate_matrix.packed, up_matrix.packed, Activation::kSilu,
                  scratch.data(), scratch.data() + scratch.size() / 2,
                  {.values = values.data(),
                   .blocks = blocks.data(),
                   .rows = rows,
                   .columns = kWidth,
                   .keep_values = keep});
        const size_t count = static_cast<size_t>(rows) * (kWidth / 32);
        EXPECT_EQ(std::memcmp(blocks.data(), expected_blocks.data(),
                              count * sizeof(cpu::ActivationBlock)),
                  0)
            << kernels->name << " rows " << rows << " kept " << keep;
        if (!keep) continue;
        EXPECT_EQ(std::memcmp(values.data(), expected.data(), count * 32 * sizeof(float)), 0)
            << kernels->name << " rows " << rows;
      }
    }
  }
}

TEST(QuantizeRow, AllInstructionSetsGiveTheSameBytesAndNonFiniteInputsShow) {
  auto x = random_values(32 * 40, 8);
  for (size_t i = 0; i < 32; ++i) x[i] = 0;
  for (size_t i = 32; i < 64; ++i) x[i] = 1e-40F;
  x[70] = INFINITY;
  x[100] = NAN;
  x[140] = -1e30F;
  std::vector<cpu::ActivationBlock> expected(40);
  cpu::kernels_for(cpu::Isa::kScalar).quantize_row(x.data(), 32 * 40, expected.data());
  EXPECT_TRUE(std::isnan(expected[2].d));
  EXPECT_TRUE(std::isnan(expected[3].d));
  EXPECT_TRUE(std::isfinite(expected[0].d) && std::isfinite(expected[1].d) &&
              std::isfinite(expected[4].d));
  for (const cpu::Kernels* kernels : machine_kernels()) {
    std::vector<cpu::ActivationBlock> blocks(40);
    kernels->quantize_row(x.data(), 32 * 40, blocks.data());
    for (size_t i = 0; i < 40; ++i) {
      EXPECT_EQ(std::memcmp(&blocks[i].q, &expected[i].q, 32), 0)
          << kernels->name << " block " << i;
      EXPECT_EQ(std::isnan(blocks[i].d), std::isnan(expected[i].d));
      if (!std::isnan(blocks[i].d)) {
        EXPECT_EQ(blocks[i].d, expected[i].d);
        EXPECT_EQ(blocks[i].d_times_sum, expected[i].d_times_sum);
      }
      EXPECT_EQ(blocks[i].minus_8_sum, expected[i].minus_8_sum);
      for (int half = 0; half < 2; ++half) {
        EXPECT_EQ(blocks[i].minus_half[half], expected[i].minus_half[half]);
      }
    }
  }
}

}  // namespace
}  // namespace tandem::ops
