// attention: every instruction set and page dtype against double precision over shapes; one row's
// bits whatever the batch.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "ops/cpu/scalar.h"
#include "ops/operators.h"
#include "ops/ops_test_support.h"
#include "ops/page_conversion.h"

namespace tandem::ops {
namespace {

// One value as a page gives it back; `scale` is the head's or the token's.
float through_dtype(KvDtype dtype, float value, float scale) {
  float out = 0;
  std::byte stored[4];
  cpu::store_values_scalar({.dtype = dtype, .count = 1, .scales = &scale}, &value, stored);
  cpu::load_values_scalar({.dtype = dtype, .count = 1, .scales = &scale}, stored, &out);
  return out;
}

// One sequence with its queries, keys and values, and pages to write them to.
class Fixture {
 public:
  Fixture(const TestShape& shape, KvDtype dtype, int32_t tokens, uint32_t seed)
      : shape_(shape), tokens_(tokens) {
    q_ = random_values(static_cast<size_t>(tokens) * q_columns(), seed);
    k_ = random_values(static_cast<size_t>(tokens) * kv_columns(), seed + 1);
    v_ = random_values(static_cast<size_t>(tokens) * kv_columns(), seed + 2);
    view_.layout = {.dtype = dtype,
                    .layout_id = kCpuLayoutId,
                    .layers = 2,
                    .kv_heads = shape.kv_heads,
                    .head_dim = shape.head_dim,
                    .block_tokens = shape.block_tokens,
                    .groups = kGroups};
    view_.stride = (view_.layout.page_bytes() + 63) / 64 * 64;
    view_.page_count = kGroups * ((tokens + shape.block_tokens - 1) / shape.block_tokens + 1);
    // One page more, before the first: what page -1 would be.
    const size_t bytes = view_.stride * (static_cast<size_t>(view_.page_count) + 1);
    storage_ = allocate_aligned(bytes);
    std::memset(storage_.get(), 0xFF, bytes);  // NaN in every dtype
    view_.base = storage_.get() + view_.stride;
    for (int32_t i = 0; i < view_.page_count; ++i) pages_.push_back(view_.page_count - 1 - i);
    for (int32_t head = 0; head < shape.kv_heads; ++head) {
      k_scales_.push_back(0.0125F * static_cast<float>(head + 1));
      v_scales_.push_back(0.02F / static_cast<float>(head + 1));
    }
  }

  size_t q_columns() const { return static_cast<size_t>(shape_.heads) * shape_.head_dim; }
  size_t kv_columns() const { return static_cast<size_t>(shape_.kv_heads) * shape_.head_dim; }
  AttentionShape shape() const {
    return {.heads = shape_.heads,
            .kv_heads = shape_.kv_heads,
            .head_dim = shape_.head_dim,
            .scale = 1 / std::sqrt(static_cast<float>(shape_.head_dim)),
            .softcap = shape_.softcap};
  }
  int32_t first_visible(int32_t position) const {
    return shape_.window > 0 ? std::max(0, position + 1 - shape_.window) : 0;
  }

  // Runs positions [first, first + count) as one chunk.
  // Blocks that the chunk cannot see are absent, and so is everything of the other group.
  std::vector<float> chunk(const CpuExecutor& executor, int32_t first, int32_t count) {
    std::vector<int32_t> pages_seen = pages_;
    const int32_t hidden_blocks = first_visible(first) / shape_.block_tokens;
    for (size_t i = 0; i < pages_seen.size(); ++i) {
      if (i % kGroups != kPlace.group || static_cast<int32_t>(i / kGroups) < hidden_blocks)
        pages_seen[i] = -1;
    }
    const SequenceRows rows[] = {
        {.first_row = 0, .row_count = count, .first_position = first, .pages = pages_seen}};
    std::vector<float> q(q_.begin() + first * q_columns(),
                         q_.begin() + (first + count) * q_columns());
    std::vector<float> k(k_.begin() + first * kv_columns(),
                         k_.begin() + (first + count) * kv_columns());
    std::vector<float> v(v_.begin() + first * kv_columns(),
                         v_.begin() + (first + count) * kv_columns());
    finish_qkv(executor, shape(), {}, rows, q.data(), k.data(), v.data(), layer(), view_);
    std::vector<float> out(q.size());
    AttentionPlan plan(count, shape(), tokens_);
    plan.plan(rows, view_.layout, executor);
    plan.run(executor, q.data(), out.data(), layer(), view_);
    return out;
  }

  // Each value, and how far off it may be where the queries and the weights are rounded to BF16:
  // by 2^-8 each, in numbers. Values are exact and their mean is the sum of weights that were
  // rounded, or where they have scales of their own of those that were not; float32 adds its own.
  struct Expected {
    std::vector<double> value;
    std::vector<double> bf16_error;
  };
  Expected reference() const {
    constexpr double kRounding = 0x1p-8 + 0x1p-12;  // and what exp and tanh are off by
    std::vector<double> out(q_.size());
    std::vector<double> errors(q_.size());
    const bool inline_scales = has_inline_scales(view_.layout.dtype);
    const auto keys = widened(k_, k_scales_);
    const auto values = widened(v_, v_scales_);
    const double scale = 1 / std::sqrt(static_cast<double>(shape_.head_dim));
    for (int32_t position = 0; position < tokens_; ++position) {
      for (int32_t head = 0; head < shape_.heads; ++head) {
        const size_t kv =
            static_cast<size_t>(head / (shape_.heads / shape_.kv_heads)) * shape_.head_dim;
        const size_t at = position * q_columns() + static_cast<size_t>(head) * shape_.head_dim;
        std::vector<double> scores(position + 1);
        std::vector<double> sizes(position + 1);  // of the products' sum without signs
        double peak = -std::numeric_limits<double>::infinity();
        const int32_t start = first_visible(position);
        for (int32_t t = start; t <= position; ++t) {
          for (int32_t d = 0; d < shape_.head_dim; ++d) {
            const double product = scale * q_[at + d] * keys[t * kv_columns() + kv + d];
            scores[t] += product;
            sizes[t] += std::abs(product);
          }
          if (shape_.softcap > 0)
            scores[t] = shape_.softcap * std::tanh(scores[t] / shape_.softcap);
          peak = std::max(peak, scores[t]);
        }
        double total = 0;
        for (int32_t t = start; t <= position; ++t) total += scores[t] = std::exp(scores[t] - peak);
        for (int32_t d = 0; d < shape_.head_dim; ++d) {
          double sum = 0;
          for (int32_t t = start; t <= position; ++t)
            sum += scores[t] * values[t * kv_columns() + kv + d];
          out[at + d] = sum / total;
          double error = 0;
          for (int32_t t = start; t <= position; ++t) {
            const double value = values[t * kv_columns() + kv + d];
            const double apart = std::abs(value - out[at + d]);
            error +=
                scores[t] / total * (sizes[t] * apart + (inline_scales ? std::abs(value) : apart));
          }
          errors[at + d] = 1.1 * kRounding * error;  // 1.1: exp(x) - 1 is a little more than x
        }
      }
    }
    return {std::move(out), std::move(errors)};
  }

  int32_t tokens() const { return tokens_; }

  // Makes value 1 of a token's first head NaN.
  void spoil(bool key, int32_t token) {
    (key ? k_ : v_)[static_cast<size_t>(token) * kv_columns() + 1] =
        std::numeric_limits<float>::quiet_NaN();
  }

 private:
  static constexpr int32_t kGroups = 2;
  static constexpr LayerPlace kPlace = {.group = 1, .slot = 1};

  AttentionLayer layer() const {
    return {.place = kPlace,
            .window = shape_.window,
            .scales = {.k = k_scales_.data(), .v = v_scales_.data()}};
  }

  // All values as the pages keep them.
  std::vector<double> widened(const std::vector<float>& values,
                              const std::vector<float>& scales) const {
    const KvDtype dtype = view_.layout.dtype;
    const auto head_dim = static_cast<size_t>(shape_.head_dim);
    std::vector<double> out(values.size());
    for (size_t first = 0; first < values.size(); first += head_dim) {
      const auto head = std::span(values).subspan(first, head_dim);
      const float scale = has_inline_scales(dtype) ? token_scale(dtype, head)
                                                   : scales[first % kv_columns() / head_dim];
      for (size_t d = 0; d < head_dim; ++d) out[first + d] = through_dtype(dtype, head[d], scale);
    }
    return out;
  }

  TestShape shape_;
  int32_t tokens_;
  std::vector<float> q_, k_, v_;
  std::vector<float> k_scales_, v_scales_;  // of kFp8Static, by KV head
  PageArenaView view_;
  AlignedBytes storage_;
  std::vector<int32_t> pages_;
};

const std::vector<TestShape> kShapes = {
    {9, 3, 64, 16},
    {4, 4, 16, 16},
    {8, 1, 32, 32},
    {3, 3, 40, 16},
    {6, 2, 24, 8},
    {2, 1, 8, 24},
    {1, 1, 128, 64},
    {4, 2, 32, 16, 40},
    {2, 1, 24, 8, 17, 5.0F},
    {8, 1, 16, 32, 1},
    {4, 1, 64, 16, 270, 2.0F},
    {6, 3, 16, 48, 100},
    {3, 1, 16, 16, 0, 1.5F},
    {2, 1, 80, 16, 37},
    {9, 1, 96, 32},
    {2, 1, 256, 16, 120, 3.0F},
};

class AttentionTest : public testing::TestWithParam<KvDtype> {};

TEST_P(AttentionTest, MatchesDoublePrecisionOverShapesAndLengths) {
  for (const TestShape& shape : kShapes) {
    for (const int32_t tokens : {1, 17, 300}) {
      Fixture fixture(shape, GetParam(), tokens, 10);
      const auto expected = fixture.reference();
      for (const cpu::Kernels* kernels : machine_kernels()) {
        const bool rounds = kernels->isa == cpu::Isa::kAmx && shape.block_tokens % 16 == 0 &&
                            GetParam() != KvDtype::kF32 && GetParam() != KvDtype::kF16;
        const CpuExecutor executor = *CpuExecutor::create(*kernels, 1, shape.head_dim);
        const auto actual = fixture.chunk(executor, 0, tokens);
        for (size_t i = 0; i < actual.size(); ++i) {
          ASSERT_NEAR(
              actual[i], expected.value[i],
              3e-6 * (1 + std::abs(expected.value[i])) + (rounds ? expected.bf16_error[i] : 0))
              << kernels->name << " head_dim " << shape.head_dim << " block " << shape.block_tokens
              << " at " << i;
        }
      }
    }
  }
}

TEST_P(AttentionTest, ChunksOfAnySizeAndAnyThreadsGiveTheSameBits) {
  const int32_t tokens = 530;  // three spans
  for (const TestShape& shape : {kShapes[0], kShapes[4], kShapes[7], kShapes[8], kShapes[9],
                                 kShapes[10], kShapes[11], kShapes[13], kShapes[15]}) {
    for (const cpu::Kernels* kernels : machine_kernels()) {
      if (kernels->isa == cpu::Isa::kScalar && shape.heads > 6) continue;  // it takes its time
      const CpuExecutor one = *CpuExecutor::create(*kernels, 1, shape.head_dim);
      Fixture whole_fixture(shape, GetParam(), tokens, 20);
      const auto whole = whole_fixture.chunk(one, 0, tokens);
      constexpr std::array<std::pair<int, int32_t>, 6> kWays = {
          {{1, 1}, {1, 7}, {1, 64}, {2, 7}, {2, 16}, {2, 256}}};
      for (const auto& [threads, size] : kWays) {
        const CpuExecutor executor = *CpuExecutor::create(*kernels, threads, shape.head_dim);
        if (kernels->isa == cpu::Isa::kScalar && (threads > 1 || size % 16 != 0)) continue;
        Fixture fixture(shape, GetParam(), tokens, 20);
        for (int32_t first = 0; first < tokens; first += size) {
          const int32_t count = std::min(size, tokens - first);
          const auto part = fixture.chunk(executor, first, count);
          ASSERT_EQ(std::memcmp(part.data(), whole.data() + first * fixture.q_columns(),
                                part.size() * sizeof(float)),
                    0)
              << kernels->name << " threads " << threads << " chunk " << size << " at " << first;
        }
      }
    }
  }
}

// A NaN among the keys or the values reaches whoever sees the token, and nobody before it.
TEST_P(AttentionTest, NanStaysNan) {
  for (const TestShape& shape : {kShapes[0], kShapes[3], kShapes[4]}) {
    for (const bool key : {true, false}) {
      for (const cpu::Kernels* kernels : machine_kernels()) {
        const CpuExecutor executor = *CpuExecutor::create(*kernels, 1, shape.head_dim);
        Fixture fixture(shape, GetParam(), 40, 30);
        fixture.spoil(key, 21);
        const auto before = fixture.chunk(executor, 0, 21);
        for (const float value : before) ASSERT_TRUE(std::isfinite(value)) << kernels->name;
        const auto after = fixture.chunk(executor, 21, 19);
        for (size_t row = 0; row < 19; ++row) {
          // Of the first query head, whose KV head has the NaN in its value 1.
          ASSERT_TRUE(std::isnan(after[row * fixture.q_columns() + 1]))
              << kernels->name << (key ? " key" : " value") << " row " << row;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, AttentionTest, testing::ValuesIn(kAllKvDtypes),
                         [](const auto& info) {
                           std::string name(kv_dtype_name(info.param));
                           std::erase(name, '-');
                           return name;
                         });

TEST(PageLayout, PlanesTileThePageAndUnsupportedOnesAreNamed) {
  PageLayout layout = {.dtype = KvDtype::kFp8Inline,
                       .layout_id = kCpuLayoutId,
                       .layers = 3,
                       .kv_heads = 2,
                       .head_dim = 64,
                       .block_tokens = 16};
  size_t next = 0;
  for (int layer = 0; layer < 3; ++layer) {
    for (int head = 0; head < 2; ++head) {
      EXPECT_EQ(layout.k_offset(layer, head), next);
      EXPECT_EQ(layout.v_offset(layer, head), next + layout.plane_bytes());
      next += 2 * layout.plane_bytes();
    }
  }
  EXPECT_EQ(layout.page_bytes(), next);
  EXPECT_EQ(layout.plane_bytes(), 64U * 16 + 4 * 16);
  layout.dtype = KvDtype::kFp8Static;
  const size_t half = layout.page_bytes();
  layout.dtype = KvDtype::kBF16;
  EXPECT_EQ(layout.page_bytes(), 2 * half);
  EXPECT_TRUE(check_page_layout(layout));
  layout.block_tokens = 12;
  EXPECT_FALSE(check_page_layout(layout));
}

}  // namespace
}  // namespace tandem::ops
