#include "model/memory_budget.h"

#include <gtest/gtest.h>

#include "base/bytes.h"

namespace tandem::model {
namespace {

// SmolLM2-135M: 30 layers, 3 KV heads of 64.
constexpr ops::PageLayout kLayout = {.dtype = ops::KvDtype::kBF16,
                                     .layout_id = ops::kCpuLayoutId,
                                     .layers = 30,
                                     .kv_heads = 3,
                                     .head_dim = 64,
                                     .block_tokens = 16};

const PageGroup kEverything[] = {{.window = 0, .layers = {}}};
KvNeeds sequence_of(int64_t tokens) { return {.groups = kEverything, .min_tokens = tokens}; }

TEST(MemoryBudget, CountsWholePages) {
  const auto budget = plan_memory({.weights = 100, .activations = 10}, kLayout, size_t{64} << 20,
                                  sequence_of(8192));
  ASSERT_FALSE(budget);
  const auto fits = plan_memory({.weights = 100, .activations = 10}, kLayout, size_t{256} << 20,
                                sequence_of(8192));
  ASSERT_TRUE(fits);
  EXPECT_EQ(fits->bytes_per_token(), 23040U);
  EXPECT_EQ(fits->page_stride, 23040U * 16);
  EXPECT_EQ(fits->pages, (256 << 20) / (23040 * 16));
  EXPECT_EQ(fits->tokens, int64_t{fits->pages} * 16);
  EXPECT_LE(fits->kv, size_t{256} << 20);
  EXPECT_EQ(fits->total(), 110 + fits->kv);
}

TEST(MemoryBudget, TooLittleNamesWhatItTakes) {
  const auto budget = plan_memory({}, kLayout, 1000, sequence_of(100));
  ASSERT_FALSE(budget);
  EXPECT_EQ(budget.error().code, "kv_memory_too_small");
  EXPECT_NE(budget.error().message.find(format_bytes(7 * 23040 * 16)), std::string::npos)
      << budget.error().message;
  EXPECT_TRUE(plan_memory({}, kLayout, 7 * 23040 * 16, sequence_of(100)));
  EXPECT_FALSE(plan_memory({}, kLayout, 7 * 23040 * 16 - 1, sequence_of(100)));
}

// Gemma 3 270M: one group that sees everything, five with a window of 512.
TEST(MemoryBudget, WindowsAreBoundedAndOnlyFullGroupsGrow) {
  std::vector<PageGroup> groups(6);
  for (size_t i = 1; i < groups.size(); ++i) groups[i].window = 512;
  const ops::PageLayout layout = {.dtype = ops::KvDtype::kBF16,
                                  .layout_id = ops::kCpuLayoutId,
                                  .layers = 3,
                                  .kv_heads = 1,
                                  .head_dim = 256,
                                  .block_tokens = 16,
                                  .groups = 6};
  const KvNeeds needs = {.groups = groups, .pass_tokens = 64, .min_tokens = 32768};
  EXPECT_EQ(needs.pages(160, 16), 60);
  EXPECT_EQ(needs.pages(32768, 16), 2048 + 5 * (36 + 1));
  const size_t stride = layout.page_bytes();
  EXPECT_FALSE(plan_memory({}, layout, (2048 + 5 * 37) * stride - 1, needs));
  const auto budget = plan_memory({}, layout, (2048 + 5 * 37) * stride, needs);
  ASSERT_TRUE(budget);
  EXPECT_EQ(budget->tokens, 32768);
  EXPECT_EQ(budget->bytes_per_token(), 3072U);
  EXPECT_EQ(budget->window_bytes(), 5 * 37 * stride);
}

TEST(MemoryBudget, BytesReadWell) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(size_t{3} << 30), "3.0 GiB");
}

}  // namespace
}  // namespace tandem::model
