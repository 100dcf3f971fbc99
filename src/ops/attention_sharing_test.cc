// Attention of sequences that share leading pages: the pages are read once, and the bits are those
// of each sequence alone.
#include <algorithm>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "ops/operators.h"
#include "ops/ops_test_support.h"

namespace tandem::ops {
namespace {

// A sequence whose first `shared` tokens lie in the pages of sequence `with`.
struct Member {
  int32_t tokens;  // with those of this pass
  int32_t rows;
  int32_t with;
  int32_t shared;
};

class SharedPages {
 public:
  SharedPages(const TestShape& shape, KvDtype dtype, const std::vector<Member>& members)
      : shape_(shape), members_(members), scales_(static_cast<size_t>(shape.kv_heads), 0.02F) {
    pages_.layout = {.dtype = dtype,
                     .layout_id = kCpuLayoutId,
                     .layers = 1,
                     .kv_heads = shape.kv_heads,
                     .head_dim = shape.head_dim,
                     .block_tokens = shape.block_tokens};
    pages_.stride = (pages_.layout.page_bytes() + 63) / 64 * 64;
    for (const Member& member : members) {
      std::vector<int32_t> table;
      const int32_t blocks = (member.tokens + shape.block_tokens - 1) / shape.block_tokens;
      for (int32_t block = 0; block < blocks; ++block) {
        const bool same = (block + 1) * shape.block_tokens <= member.shared;
        table.push_back(same ? tables_[member.with][block] : pages_.page_count++);
      }
      tables_.push_back(std::move(table));
    }
    storage_ = allocate_aligned(pages_.stride * pages_.page_count);
    std::memset(storage_.get(), 0xFF, pages_.stride * pages_.page_count);
    pages_.base = storage_.get();
    const CpuExecutor executor = *CpuExecutor::create(*machine_kernels().back(), 1, shape.head_dim);
    for (size_t i = 0; i < members.size(); ++i) write(executor, i);
  }

  AttentionShape shape() const {
    return {.heads = shape_.heads,
            .kv_heads = shape_.kv_heads,
            .head_dim = shape_.head_dim,
            .scale = 0.2F,
            .softcap = shape_.softcap};
  }

  // The rows of these members as one pass.
  std::vector<float> run(const CpuExecutor& executor, const std::vector<size_t>& batch,
                         int64_t* spans = nullptr, int32_t positions = 4096) const {
    std::vector<SequenceRows> sequences;
    std::vector<float> q;
    int32_t rows = 0;
    for (const size_t i : batch) {
      const Member& member = members_[i];
      sequences.push_back({.first_row = rows,
                           .row_count = member.rows,
                           .first_position = member.tokens - member.rows,
                           .pages = tables_[i]});
      rows += member.rows;
      const auto own = queries(i);
      q.insert(q.end(), own.begin(), own.end());
    }
    std::vector<float> out(q.size());
    AttentionPlan plan(rows, shape(), positions);
    plan.plan(sequences, pages_.layout, executor);
    if (spans != nullptr) *spans = plan.planned_spans();
    plan.run(executor, q.data(), out.data(), layer(), pages_);
    return out;
  }

 private:
  AttentionLayer layer() const {
    return {
        .place = {}, .window = shape_.window, .scales = {.k = scales_.data(), .v = scales_.data()}};
  }
  std::vector<float> queries(size_t member) const {
    return random_values(
        static_cast<size_t>(members_[member].rows) * shape_.heads * shape_.head_dim,
        static_cast<uint32_t>(1000 + member));
  }
  void write(const CpuExecutor& executor, size_t i) {
    const int32_t own = members_[i].shared / shape_.block_tokens * shape_.block_tokens;
    const SequenceRows rows[] = {{.first_row = 0,
                                  .row_count = members_[i].tokens - own,
                                  .first_position = own,
                                  .pages = tables_[i]}};
    const auto count = static_cast<size_t>(rows[0].row_count);
    const auto seed = static_cast<uint32_t>(10 * i);
    std::vector<float> q(count * shape_.heads * shape_.head_dim);
    std::vector<float> k = random_values(count * shape_.kv_heads * shape_.head_dim, seed);
    std::vector<float> v = random_values(k.size(), seed + 1);
    finish_qkv(executor, shape(), {}, rows, q.data(), k.data(), v.data(), layer(), pages_);
  }

  TestShape shape_;
  std::vector<Member> members_;
  std::vector<float> scales_;
  PageArenaView pages_;
  AlignedBytes storage_;
  std::vector<std::vector<int32_t>> tables_;
};

const std::vector<TestShape> kShapes = {
    {6, 2, 16, 16},       {9, 3, 64, 16},           {4, 4, 32, 32},
    {16, 1, 16, 24},      {4, 2, 24, 8, 300, 3.0F}, {4, 2, 32, 16, 300, 3.0F},
    {32, 2, 16, 16, 100},
};

// A tree: all but two share a span, some of them two or three, two have several rows; one has the
// pages of nobody, one the pages of others but not for a whole span. More pairs than fit a tile.
const std::vector<Member> kTree = {
    {900, 1, -1, 0},  {1000, 1, 0, 768}, {810, 3, 0, 800}, {600, 1, 0, 520},
    {560, 1, 3, 544}, {700, 1, -1, 0},   {400, 1, 0, 256}, {300, 2, 0, 290},
    {500, 1, 0, 240}, {777, 1, 1, 768},  {778, 1, 1, 768}, {779, 1, 9, 776},
};

class SharedAttentionTest : public testing::TestWithParam<KvDtype> {};

TEST_P(SharedAttentionTest, GivesTheBitsOfEachSequenceAlone) {
  for (const TestShape& shape : kShapes) {
    const SharedPages shared(shape, GetParam(), kTree);
    std::vector<size_t> all(kTree.size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = (i * 5) % all.size();
    for (const cpu::Kernels* kernels : machine_kernels()) {
      const bool scalar = kernels->isa == cpu::Isa::kScalar;
      if (scalar && &shape != &kShapes.front()) continue;  // it takes its time
      const CpuExecutor one = *CpuExecutor::create(*kernels, 1, shape.head_dim);
      std::vector<float> expected;
      for (const size_t i : all) {
        const auto alone = shared.run(one, {i});
        expected.insert(expected.end(), alone.begin(), alone.end());
      }
      for (const int threads : {1, 2}) {
        const CpuExecutor executor = *CpuExecutor::create(*kernels, threads, shape.head_dim);
        const auto together = shared.run(executor, all);
        ASSERT_EQ(std::memcmp(together.data(), expected.data(), expected.size() * sizeof(float)), 0)
            << kernels->name << " threads " << threads << " heads " << shape.heads;
      }
    }
  }
}

TEST(SharedAttention, WithRoomForSomeGivesTheSameBits) {
  const TestShape shape = {9, 3, 64, 16};
  const SharedPages shared(shape, KvDtype::kFp8Inline, kTree);
  std::vector<size_t> all(kTree.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  const CpuExecutor executor = *CpuExecutor::create(*machine_kernels().back(), 2, shape.head_dim);
  const auto expected = shared.run(executor, all);
  for (const int32_t positions : {1, 257, 513, 769}) {
    const auto some = shared.run(executor, all, nullptr, positions);
    EXPECT_EQ(std::memcmp(some.data(), expected.data(), some.size() * sizeof(float)), 0)
        << positions;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, SharedAttentionTest, testing::ValuesIn(kAllKvDtypes),
                         [](const auto& info) {
                           std::string name(kv_dtype_name(info.param));
                           std::erase(name, '-');
                           return name;
                         });

// How often spans are read: of each KV head, once for what a tile's sequences have in common.
TEST(SharedAttention, ReadsSharedSpansOnceForATile) {
  const CpuExecutor executor = *CpuExecutor::create(*machine_kernels().back(), 1, 16);
  const auto spans = [&](const TestShape& shape, const std::vector<Member>& members) {
    const SharedPages shared(shape, KvDtype::kBF16, members);
    std::vector<size_t> all(members.size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = i;
    int64_t found = 0;
    (void)shared.run(executor, all, &found);
    return found;
  };
  const TestShape shape = {4, 2, 16, 16};  // two pairs for each KV head
  const Member first = {1025, 1, -1, 0};
  EXPECT_EQ(spans(shape, {first}), 2 * 5);
  EXPECT_EQ(spans(shape, {first, {1025, 1, -1, 0}}), 2 * 10);
  EXPECT_EQ(spans(shape, {first, {1025, 1, 0, 1024}}), 2 * (4 + 2));
  // All have two spans in common, two of them two more.
  EXPECT_EQ(spans(shape, {first, {1025, 1, 0, 1024}, {1025, 1, 0, 512}}), 2 * (2 + 2 + 2 + 3));
  // Seventeen sequences of two pairs are more than a tile has room for.
  std::vector<Member> many(17, {1025, 1, 0, 1024});
  many[0] = first;
  EXPECT_EQ(spans(shape, many), 2 * (4 + 4 + 17));
  // The last span is not whole: it may get tokens of this pass.
  EXPECT_EQ(spans(shape, {{1024, 1, -1, 0}, {1024, 1, 0, 1008}}), 2 * (3 + 2));
}

}  // namespace
}  // namespace tandem::ops
