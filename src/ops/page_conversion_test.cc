// Page values: every instruction set gives the scalar trait's bits; conversions between all pairs
// of dtypes round once, copy what is the same, and stay inside the layer.
#include "ops/page_conversion.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/ops_test_support.h"
#include "ops/page_trait.h"

namespace tandem::ops {
namespace {

// All magnitudes that matter: every binary exponent, ties, borders of the formats, what is not
// finite.
std::vector<float> hard_values() {
  std::vector<float> values = {0.0F,
                               448.0F,
                               464.0F,
                               480.0F,
                               0x1p-6F,
                               0x1.fp-7F,
                               std::numeric_limits<float>::max(),
                               std::numeric_limits<float>::denorm_min(),
                               std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::quiet_NaN()};
  for (int exponent = -140; exponent < 128; ++exponent) {
    // Steps of a sixteenth of e4m3's last place, and their neighbours: ties among them.
    for (int step = 0; step < 128; step += exponent < -20 || exponent > 12 ? 19 : 1) {
      const float value = std::ldexp(1.0F + static_cast<float>(step) / 128.0F, exponent);
      values.push_back(value);
      values.push_back(std::nextafter(value, 0.0F));
      values.push_back(std::nextafter(value, std::numeric_limits<float>::infinity()));
    }
  }
  const size_t positive = values.size();
  for (size_t i = 0; i < positive; ++i) values.push_back(-values[i]);
  return values;
}

TEST(PageValues, EveryInstructionSetStoresAndLoadsTheScalarBits) {
  const std::vector<float> values = hard_values();
  const auto count = static_cast<int32_t>(values.size());
  std::vector<float> scales(values.size());
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = 0.01F + static_cast<float>(i % 7);
  const cpu::Kernels& scalar = cpu::kernels_for(cpu::Isa::kScalar);
  for (const KvDtype dtype : kAllKvDtypes) {
    for (const int32_t step : {0, 1}) {
      for (const int32_t length : {count, 5, 16, 31}) {
        const cpu::StoredValues run = {
            .dtype = dtype, .count = length, .scales = scales.data(), .scale_step = step};
        std::vector<std::byte> expected(values.size() * 4 + 64, std::byte{0x5A});
        scalar.store_values(run, values.data(), expected.data());
        std::vector<float> widened(values.size() + 16, 7.0F);
        scalar.load_values(run, expected.data(), widened.data());
        for (const cpu::Kernels* kernels : machine_kernels()) {
          std::vector<std::byte> stored(expected.size(), std::byte{0x5A});
          kernels->store_values(run, values.data(), stored.data());
          ASSERT_EQ(stored, expected) << kernels->name << " " << kv_dtype_name(dtype);
          std::vector<float> loaded(widened.size(), 7.0F);
          kernels->load_values(run, expected.data(), loaded.data());
          ASSERT_EQ(std::memcmp(loaded.data(), widened.data(), loaded.size() * 4), 0)
              << kernels->name << " " << kv_dtype_name(dtype);
        }
      }
    }
  }
}

TEST(PageValues, EveryCodeOfFp8LoadsTheSameEverywhere) {
  std::vector<std::byte> codes(256);
  for (size_t i = 0; i < 256; ++i) codes[i] = static_cast<std::byte>(i);
  const float scale = 1.5F;
  for (const KvDtype dtype : {KvDtype::kFp8Static, KvDtype::kInt8Inline}) {
    std::vector<float> expected(256);
    const cpu::StoredValues run = {.dtype = dtype, .count = 256, .scales = &scale};
    cpu::kernels_for(cpu::Isa::kScalar).load_values(run, codes.data(), expected.data());
    for (const cpu::Kernels* kernels : machine_kernels()) {
      std::vector<float> loaded(256);
      kernels->load_values(run, codes.data(), loaded.data());
      EXPECT_EQ(std::memcmp(loaded.data(), expected.data(), 1024), 0) << kernels->name;
    }
  }
}

TEST(PageValues, PeaksKeepNan) {
  const auto values = random_values(37, 3);
  for (const cpu::Kernels* kernels : machine_kernels()) {
    std::vector<float> peaks(37, 0.5F);
    kernels->raise_peaks(values.data(), 37, peaks.data());
    for (size_t i = 0; i < 37; ++i) EXPECT_EQ(peaks[i], std::max(0.5F, std::abs(values[i])));
    std::vector<float> bad(37, std::numeric_limits<float>::quiet_NaN());
    kernels->raise_peaks(bad.data(), 37, peaks.data());
    kernels->raise_peaks(values.data(), 37, peaks.data());
    for (const float peak : peaks) EXPECT_TRUE(std::isnan(peak)) << kernels->name;
  }
}

TEST(PageTrait, InlineScalesUseTheWholeRangeAndSaySoWhenATokenIsNotFinite) {
  using Fp8 = PageTrait<KvDtype::kFp8Inline>;
  using Int8 = PageTrait<KvDtype::kInt8Inline>;
  EXPECT_EQ(Fp8::store(3.0F, Fp8::scale_for(3.0F)), 0x7E);
  EXPECT_EQ(Int8::store(-3.0F, Int8::scale_for(3.0F)), -127);
  EXPECT_EQ(Int8::store(2.5F, 1.0F), 2);  // ties go to even
  EXPECT_EQ(Int8::store(3.5F, 1.0F), 4);
  EXPECT_EQ(Int8::store(1e30F, 1.0F), 127);
  EXPECT_EQ(Fp8::scale_for(0.0F), 1.0F);
  EXPECT_EQ(Fp8::scale_for(std::numeric_limits<float>::denorm_min()), 1.0F);
  EXPECT_TRUE(std::isnan(Fp8::scale_for(std::numeric_limits<float>::infinity())));
  EXPECT_TRUE(std::isnan(Int8::scale_for(std::numeric_limits<float>::quiet_NaN())));
}

struct Shape {
  int32_t kv_heads;
  int32_t head_dim;
  int32_t block_tokens;
};

class ConversionTest : public testing::Test {
 protected:
  static constexpr Shape kShapes[] = {
      {1, 16, 16}, {3, 64, 16}, {2, 24, 8}, {2, 128, 32}, {1, 20, 24}};

  static PageLayout layout_of(const Shape& shape, KvDtype dtype) {
    return {.dtype = dtype,
            .layout_id = kCpuLayoutId,
            .layers = 1,
            .kv_heads = shape.kv_heads,
            .head_dim = shape.head_dim,
            .block_tokens = shape.block_tokens};
  }

  // A layer written value by value through the trait: what kv_write leaves.
  static std::vector<std::byte> written(const PageLayout& layout, const KvScaleView& scales,
                                        const std::vector<float>& values) {
    std::vector<std::byte> page(layout.layer_bytes() + 64, std::byte{0xA5});
    const cpu::Kernels& scalar = cpu::kernels_for(cpu::Isa::kScalar);
    size_t next = 0;
    for (int32_t head = 0; head < layout.kv_heads; ++head) {
      for (const bool key : {true, false}) {
        std::byte* plane =
            page.data() + (key ? layout.k_offset(0, head) : layout.v_offset(0, head));
        for (int32_t token = 0; token < layout.block_tokens; ++token) {
          const auto x = std::span(values).subspan(next, static_cast<size_t>(layout.head_dim));
          next += x.size();
          float scale = key ? scales.k_of(head) : scales.v_of(head);
          if (has_inline_scales(layout.dtype)) {
            scale = token_scale(layout.dtype, x);
            std::memcpy(plane + layout.value_bytes() + token * sizeof(float), &scale,
                        sizeof(float));
          }
          for (int32_t d = 0; d < layout.head_dim; ++d) {
            const size_t at = key ? static_cast<size_t>(d) * layout.block_tokens + token
                                  : static_cast<size_t>(token) * layout.head_dim + d;
            scalar.store_values({.dtype = layout.dtype, .count = 1, .scales = &scale}, &x[d],
                                plane + at * layout.element_bytes());
          }
        }
      }
    }
    return page;
  }
};

// Float32 pages converted equal pages written at once, byte for byte, whatever the instruction set.
TEST_F(ConversionTest, ConvertingExactPagesEqualsWritingThemSo) {
  const float k_scales[] = {0.01F, 0.02F, 0.3F};
  const float v_scales[] = {0.005F, 0.5F, 1.0F};
  const KvScaleView scales = {k_scales, v_scales};
  for (const Shape& shape : kShapes) {
    const PageLayout exact = layout_of(shape, KvDtype::kF32);
    auto values = random_values(exact.layer_bytes() / 4, 5);
    values[3] = 1e9F;
    const auto source = written(exact, {}, values);
    for (const KvDtype dtype : kAllKvDtypes) {
      const PageLayout narrow = layout_of(shape, dtype);
      const auto expected = written(narrow, scales, values);
      for (const cpu::Kernels* kernels : machine_kernels()) {
        std::vector<std::byte> target(narrow.layer_bytes() + 64, std::byte{0xA5});
        const AlignedBytes scratch = allocate_aligned(conversion_scratch_floats(narrow) * 4);
        convert_layer(*kernels, {exact, {}}, source.data(), {narrow, scales}, target.data(),
                      {reinterpret_cast<float*>(scratch.get()), conversion_scratch_floats(narrow)});
        ASSERT_EQ(target, expected)
            << kernels->name << " " << kv_dtype_name(dtype) << " head_dim " << shape.head_dim;
      }
    }
  }
}

// Every pair: the result is the source's widened values, rounded once; the same representation is
// copied.
TEST_F(ConversionTest, EveryPairRoundsTheWidenedValuesOnce) {
  const float old_k[] = {0.02F, 0.03F, 0.1F};
  const float old_v[] = {0.04F, 0.01F, 0.2F};
  const float new_k[] = {0.05F, 0.01F, 0.3F};
  const float new_v[] = {0.01F, 0.02F, 0.1F};
  for (const Shape& shape : kShapes) {
    const PageLayout exact = layout_of(shape, KvDtype::kF32);
    const auto values = random_values(exact.layer_bytes() / 4, 6);
    const AlignedBytes room = allocate_aligned(conversion_scratch_floats(exact) * 4);
    const std::span<float> scratch = {reinterpret_cast<float*>(room.get()),
                                      conversion_scratch_floats(exact)};
    for (const KvDtype from : kAllKvDtypes) {
      const LayerFormat source_format = {layout_of(shape, from), {old_k, old_v}};
      const auto source = written(source_format.layout, source_format.scales, values);
      for (const KvDtype to : kAllKvDtypes) {
        for (const cpu::Kernels* kernels : machine_kernels()) {
          const LayerFormat target_format = {layout_of(shape, to), {new_k, new_v}};
          const auto convert = [&](const LayerFormat& a, const std::vector<std::byte>& bytes,
                                   const LayerFormat& b) {
            std::vector<std::byte> out(b.layout.layer_bytes() + 64, std::byte{0xA5});
            convert_layer(*kernels, a, bytes.data(), b, out.data(), scratch);
            return out;
          };
          const auto direct = convert(source_format, source, target_format);
          const auto same = from == to && from != KvDtype::kFp8Static;
          const LayerFormat middle = {exact, {}};
          ASSERT_EQ(direct,
                    same ? source
                         : convert(middle, convert(source_format, source, middle), target_format))
              << kernels->name << " " << kv_dtype_name(from) << " to " << kv_dtype_name(to);
        }
      }
      const LayerFormat again = source_format;
      std::vector<std::byte> copied(source.size(), std::byte{0xA5});
      convert_layer(cpu::kernels_for(cpu::machine_isa()), source_format, source.data(), again,
                    copied.data(), scratch);
      ASSERT_EQ(copied, source);
    }
  }
}

TEST_F(ConversionTest, OnlyTheDtypeMayDiffer) {
  const PageLayout from = layout_of(kShapes[1], KvDtype::kBF16);
  PageLayout to = layout_of(kShapes[1], KvDtype::kFp8Static);
  EXPECT_TRUE(convertible(from, to));
  to.block_tokens = 32;
  EXPECT_FALSE(convertible(from, to));
  to = layout_of(kShapes[1], KvDtype::kFp8Static);
  to.layout_id = 2;
  EXPECT_FALSE(convertible(from, to));
}

}  // namespace
}  // namespace tandem::ops
