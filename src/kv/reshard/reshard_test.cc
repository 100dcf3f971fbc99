#include <ranges>

#include <gtest/gtest.h>

#include "kv/reshard/coverage.h"
#include "kv/reshard/reshard_oracle.h"
#include "kv/reshard/reshard_plan.h"

namespace tandem::kv {
namespace {

std::vector<LayerShape> heads_model(int32_t layers, int32_t heads) {
  return std::vector<LayerShape>(static_cast<size_t>(layers), {false, heads, 4, 4});
}
std::vector<LayerShape> latent_model(int32_t layers) {
  return std::vector<LayerShape>(static_cast<size_t>(layers), {true, 1, 6, 0});
}
KvPlace place(int32_t layers, int32_t tensor_ranks, std::vector<int32_t> stages = {0}) {
  KvPlace out;
  out.layout.tensor_ranks = tensor_ranks;
  out.layout.stages = std::move(stages);
  out.layout.block_tokens = 8;
  for (int32_t layer = 0; layer < layers; ++layer) out.layout.pages.push_back({0, layer});
  return out;
}
// Bytes that each source rank gives for `blocks` blocks.
std::map<int32_t, uint64_t> load(const ReshardPlan& plan, int32_t layers, int32_t dest_ranks,
                                 int64_t tokens) {
  std::map<int32_t, uint64_t> out;
  for (int32_t reader = 0; reader < dest_ranks; ++reader) {
    for (const int32_t source : plan.sources_of(reader)) {
      for (int32_t layer = 0; layer < layers; ++layer) {
        for (const PageCopy& page : plan.pages(source, reader, layer, {0, tokens}))
          out[source] += page.copy->dest_bytes();
      }
    }
  }
  return out;
}

TEST(ReshardPlan, OneRankEachGivesOneRunPerLayerAndPage) {
  const auto model = heads_model(6, 4);
  const auto plan = ReshardPlan::make(model, place(6, 1), place(6, 1));
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->copies().size(), 1U);
  const auto pages = plan->pages(0, 0, 5, {8, 25});
  ASSERT_EQ(pages.size(), 3U);
  const uint64_t layer_bytes = 2 * 4 * 4 * 8 * 2;
  for (size_t i = 0; i < pages.size(); ++i) {
    EXPECT_EQ(pages[i].source_block, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(pages[i].dest_block, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(pages[i].source_shift, 5 * layer_bytes);
    ASSERT_EQ(pages[i].copy->runs.size(), 1U);
    EXPECT_EQ(pages[i].copy->runs[0].source_bytes, layer_bytes);
  }
}

TEST(ReshardPlan, MatchesAnElementwiseReshardingOfRandomPairs) {
  RandomLayouts random(20261);
  int planned = 0;
  for (int run = 0; run < 10000; ++run) {
    const auto model = random.model();
    const ValueFormat format = random.format();
    const KvPlace source = random.place(model, format);
    KvPlace dest = random.place(model, format);
    if (random.pick(0, 1) == 1) dest.layout.block_tokens = source.layout.block_tokens;
    const auto plan = ReshardPlan::make(model, source, dest);
    ASSERT_TRUE(plan) << "run " << run << ": " << plan.error().message;
    const Status proof = prove_coverage(model, source, dest, plan->copies());
    ASSERT_TRUE(proof) << "run " << run << ": " << proof.error().message;
    const int64_t first = random.pick(0, 1) == 0 ? 0 : random.pick(0, 20);
    const TokenRange tokens{first, first + random.pick(1, 40)};
    ASSERT_EQ(run_on_shadow(model, source, dest, *plan, tokens), "") << "run " << run;
    ++planned;
  }
  EXPECT_EQ(planned, 10000);
}

TEST(ReshardPlan, EveryMistakeThatTheOracleSeesFailsTheProof) {
  RandomLayouts random(77);
  int mistakes = 0;
  for (int run = 0; run < 3000; ++run) {
    const auto model = random.model();
    const ValueFormat format = random.format();
    const KvPlace source = random.place(model, format);
    const KvPlace dest = random.place(model, format);
    const auto plan = ReshardPlan::make(model, source, dest);
    ASSERT_TRUE(plan);
    std::vector<ReshardCopy> copies(plan->copies().begin(), plan->copies().end());
    const auto at = static_cast<size_t>(random.pick(0, static_cast<int32_t>(copies.size()) - 1));
    ReshardCopy& copy = copies[at];
    CopyRun& part =
        copy.runs[static_cast<size_t>(random.pick(0, static_cast<int32_t>(copy.runs.size()) - 1))];
    switch (random.pick(0, 11)) {
      case 0:
        copies.erase(copies.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      case 1:
        copies.insert(copies.begin() + static_cast<std::ptrdiff_t>(at), ReshardCopy(copy));
        break;
      case 2:
        part.source_offset += 1;
        break;
      case 3:
        part.dest_offset += static_cast<uint64_t>(format.value_bytes);
        break;
      case 4:
        part.source_bytes -= 1;
        part.dest_bytes -= 1;
        break;
      case 5:
        part.count += 1;
        break;
      case 6:
        copy.source_block += 1;
        break;
      case 7:
        copy.dest_step *= 2;
        copy.source_step *= 2;
        break;
      case 8:
        copy.dest_layer_stride += 1;
        break;
      case 9:
        copy.layers -= 1;
        break;
      case 10:
        copy.source_rank = random.pick(0, source.layout.ranks() - 1);
        break;
      default:
        copy.runs.pop_back();
        break;
    }
    const ReshardPlan broken(dest.layout.block_tokens, copies);
    if (run_on_shadow(model, source, dest, broken, {0, 60}).empty()) continue;
    ++mistakes;
    ASSERT_FALSE(prove_coverage(model, source, dest, copies)) << "run " << run;
  }
  EXPECT_GT(mistakes, 1500);
}

TEST(ReshardPlan, ConvertedValuesMoveAsWholeHeads) {
  RandomLayouts random(5);
  for (int run = 0; run < 500; ++run) {
    const auto model = random.model();
    const KvPlace source = random.place(model, {2, 2, 0});
    KvPlace dest = random.place(model, {3, 1, 2});
    dest.layout.block_tokens = source.layout.block_tokens;
    const auto plan = ReshardPlan::make(model, source, dest);
    ASSERT_TRUE(plan) << plan.error().message;
    const Status proof = prove_coverage(model, source, dest, plan->copies());
    ASSERT_TRUE(proof) << "run " << run << ": " << proof.error().message;
    for (const ReshardCopy& copy : plan->copies()) {
      const LayerShape& shape = model[static_cast<size_t>(copy.first_layer)];
      const auto values = static_cast<uint64_t>(copy.heads * (shape.k_dim + shape.v_dim));
      const auto tokens = static_cast<uint64_t>(copy.tokens);
      ASSERT_EQ(copy.runs.size(), 1U);
      EXPECT_EQ(copy.runs[0].source_bytes, values * tokens * 2);
      EXPECT_EQ(copy.runs[0].dest_bytes, values * tokens + (shape.v_dim > 0 ? 2U : 1U) * 2 *
                                                               tokens *
                                                               static_cast<uint64_t>(copy.heads));
    }
  }
}

// An impossible pair for each rule of the layouts.
TEST(ReshardPlan, RefusesPairsThatHaveNoPlanAndSaysWhy) {
  const auto model = heads_model(4, 6);
  const KvPlace good = place(4, 2);
  ASSERT_TRUE(ReshardPlan::make(model, good, good));
  const auto plan = *ReshardPlan::make(model, good, good);
  const auto refused = [&](const std::vector<LayerShape>& shapes, const KvPlace& source,
                           const KvPlace& dest, std::string_view why) {
    const auto made = ReshardPlan::make(shapes, source, dest);
    const auto proven = prove_coverage(shapes, source, dest, plan.copies());
    ASSERT_FALSE(made) << why;
    ASSERT_FALSE(proven) << why;
    EXPECT_EQ(made.error().code, "kv_layout");
    EXPECT_EQ(proven.error().code, "kv_layout");
    EXPECT_NE(made.error().message.find(why), std::string::npos) << made.error().message;
  };
  const auto changed = [&](auto&& change) {
    KvPlace out = good;
    change(out);
    return out;
  };
  refused(model, place(4, 4), good,
          "6 KV heads of layer 0 cannot be split evenly over prefill's 4");
  refused(model, good, place(4, 9), "over decode's 9 tensor ranks");
  refused(model, place(4, 1, {0, 2, 2}), good, "Stage 1 of prefill has no layers");
  refused(model, place(4, 1, {1}), good, "No rank of prefill holds layer 0");
  refused(model, place(3, 2), good, "prefill places 3 of 4 layers");
  refused(model, good, place(4, 0), "decode has an impossible number of ranks");
  refused(model, changed([](KvPlace& p) { p.owner = 1; }), good, "prefill has no data rank 1");
  refused(model, good, changed([](KvPlace& p) { p.layout.layout_id = 2; }), "page layout 2");
  refused(model, good, changed([](KvPlace& p) { p.layout.pages[3].slot = 0; }),
          "no place of its own for layer 3");
  refused(model, good, changed([](KvPlace& p) { p.layout.block_tokens = 0; }), "0 tokens");
  refused(model, good, changed([](KvPlace& p) {
            p.layout.format.dtype = 3;
            p.layout.block_tokens = 16;
          }),
          "only between blocks of the same size");
  refused({}, good, good, "0 layers");
  auto mixed = model;
  mixed[1].k_dim = 8;
  refused(mixed, good, good, "mixes layers of different shapes");
  mixed = model;
  mixed[2] = {true, 2, 8, 0};
  refused(mixed, good, good, "impossible shape");
}

TEST(ReshardPlan, BlocksThatNeverMeetInATimeWorthPlanningAreRefused) {
  KvPlace source = place(1, 1021);
  KvPlace dest = place(1, 1019);
  source.layout.latent = dest.layout.latent = LatentPlacement::kByBlock;
  const auto made = ReshardPlan::make(latent_model(1), source, dest);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, "kv_layout");
  EXPECT_NE(made.error().message.find("meet only every"), std::string::npos);
}

TEST(ReshardPlan, TheProofRefusesAPlanMadeForAnotherPair) {
  const auto model = heads_model(4, 8);
  const auto plan = *ReshardPlan::make(model, place(4, 2), place(4, 4));
  EXPECT_TRUE(prove_coverage(model, place(4, 2), place(4, 4), plan.copies()));
  for (const KvPlace& other : {place(4, 2), place(4, 8), place(4, 4, {0, 2})}) {
    const Status proof = prove_coverage(model, place(4, 2), other, plan.copies());
    ASSERT_FALSE(proof);
    EXPECT_EQ(proof.error().code, "kv_coverage");
  }
}

// (source ranks, dest ranks, KV heads): ranks that hold the same bytes give equally many.
TEST(ReshardPlan, ReplicatedSourcesShareTheLoadEvenly) {
  struct Case {
    int32_t source, dest, heads;  // heads 0: latent, replicated
  };
  for (const Case& c : {Case{4, 1, 0}, Case{4, 2, 0}, Case{2, 4, 0}, Case{4, 6, 0}, Case{8, 3, 0},
                        Case{8, 1, 2}, Case{8, 4, 4}, Case{16, 8, 4}, Case{4, 4, 2}}) {
    const auto model = c.heads == 0 ? latent_model(3) : heads_model(3, c.heads);
    for (const LatentPlacement spread : {LatentPlacement::kReplicated, LatentPlacement::kByBlock}) {
      KvPlace dest = place(3, c.dest);
      dest.layout.latent = spread;
      const auto plan = ReshardPlan::make(model, place(3, c.source), dest);
      ASSERT_TRUE(plan);
      ASSERT_TRUE(prove_coverage(model, place(3, c.source), dest, plan->copies()));
      const auto given = load(*plan, 3, c.dest, int64_t{8} * 1200);
      EXPECT_EQ(given.size(), static_cast<size_t>(c.source));
      const auto [least, most] = std::ranges::minmax(given | std::views::values);
      EXPECT_EQ(least, most) << c.source << " to " << c.dest << ", heads " << c.heads;
    }
  }
}

TEST(ReshardPlan, EqualNumbersOfReplicasPairUp) {
  const auto plan = *ReshardPlan::make(latent_model(2), place(2, 4), place(2, 4));
  for (int32_t rank = 0; rank < 4; ++rank)
    EXPECT_EQ(plan.sources_of(rank), std::vector<int32_t>{rank});
}

// A large pair of today's deployments is planned and proven at once, for sequences of any length.
TEST(ReshardPlan, LargeLayoutsNeedFewCopies) {
  const std::vector<LayerShape> model(80, {false, 8, 128, 128});
  KvPlace source = place(80, 8, {0, 40});
  KvPlace dest = place(80, 16, {0, 20, 40, 60});
  source.layout.format = dest.layout.format = {2, 2, 0};
  const auto plan = ReshardPlan::make(model, source, dest);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->copies().size(), 64U);
  EXPECT_TRUE(prove_coverage(model, source, dest, plan->copies()));
  const std::vector<LayerShape> latent(61, {true, 1, 576, 0});
  KvPlace many = place(61, 16);
  many.layout.latent = LatentPlacement::kByBlock;
  const auto spread = ReshardPlan::make(latent, place(61, 8), many);
  ASSERT_TRUE(spread);
  EXPECT_TRUE(prove_coverage(latent, place(61, 8), many, spread->copies()));
}

}  // namespace
}  // namespace tandem::kv
