#include "worker/page_importer.h"

#include <gtest/gtest.h>

#include "kv/transfer/peer_connection.h"
#include "ops/cpu/dispatch.h"

namespace tandem::worker {
namespace {

// Six layers in two groups, alternating, as a model with windows has them.
protocol::HelloFrame hello() {
  protocol::HelloFrame out;
  out.lineage = "m";
  out.block_tokens = 16;
  out.layers = 6;
  out.kv_heads = 3;
  out.head_dim = 8;
  out.kv_dtype = static_cast<uint32_t>(ops::KvDtype::kBF16);
  out.layout_id = ops::kCpuLayoutId;
  out.windows = {0, 32};
  for (int32_t layer = 0; layer < 6; ++layer) {
    out.layer_places.push_back(layer % 2);
    out.layer_places.push_back(layer / 2);
  }
  return out;
}
const ops::PageLayout kLayout{.dtype = ops::KvDtype::kBF16,
                              .layers = 3,
                              .kv_heads = 3,
                              .head_dim = 8,
                              .block_tokens = 16,
                              .groups = 2};

Result<std::shared_ptr<const PageImporter>> import(const protocol::HelloFrame& sender,
                                                   const ops::PageLayout& to = kLayout) {
  static const ops::KvScales kNoScales;
  return PageImporter::make(ops::cpu::kernels_for(ops::cpu::machine_isa()), sender, hello(), to,
                            kNoScales);
}

TEST(PageImporter, ALayerOfAPageIsOneReadFromThePlaceThatTheLayoutNames) {
  const auto importer = import(hello());
  ASSERT_TRUE(importer) << importer.error().message;
  EXPECT_FALSE((*importer)->converts());
  for (uint32_t layer = 0; layer < 6; ++layer) {
    const LayerCut& cut = (*importer)->cut(layer);
    EXPECT_EQ(cut.source_offset, kLayout.k_offset(static_cast<int>(layer / 2), 0));
    EXPECT_EQ(cut.target_offset, cut.source_offset);
    EXPECT_EQ(cut.bytes, kLayout.layer_bytes());
  }
}

TEST(PageImporter, AnotherFormatIsReadFromItsOwnOffsets) {
  ops::PageLayout narrow = kLayout;
  narrow.dtype = ops::KvDtype::kFp8Inline;
  const auto importer = import(hello(), narrow);
  ASSERT_TRUE(importer) << importer.error().message;
  EXPECT_TRUE((*importer)->converts());
  const LayerCut& cut = (*importer)->cut(4);
  EXPECT_EQ(cut.source_offset, kLayout.k_offset(2, 0));
  EXPECT_EQ(cut.bytes, kLayout.layer_bytes());
  EXPECT_EQ(cut.target_offset, narrow.k_offset(2, 0));
}

TEST(PageImporter, WhatTheSenderConvertsIsReadThroughAViewAndNotConvertedAgain) {
  ops::PageLayout narrow = kLayout;
  narrow.dtype = ops::KvDtype::kFp8Inline;
  protocol::HelloFrame sender = hello();
  sender.converted = true;
  const auto importer = import(sender, narrow);
  ASSERT_TRUE(importer) << importer.error().message;
  EXPECT_FALSE((*importer)->converts());
  EXPECT_EQ((*importer)->arriving(), narrow);
  const LayerCut& cut = (*importer)->cut(4);
  EXPECT_EQ(cut.source_offset, kLayout.k_offset(2, 0));
  EXPECT_EQ(cut.bytes, narrow.layer_bytes());
  EXPECT_EQ(cut.view, 1 + 4 * 6 + 4);
  EXPECT_EQ(cut.target_offset, narrow.k_offset(2, 0));
}

TEST(PageImporter, PlacesThatMakeNoLayoutAreRefused) {
  protocol::HelloFrame twice = hello();
  twice.layer_places[2] = 0;
  twice.layer_places[3] = 0;
  const auto importer = import(twice);
  ASSERT_FALSE(importer);
  EXPECT_EQ(importer.error().code, "kv_layout");
  protocol::HelloFrame split = hello();
  split.tensor_ranks = 3;  // one head each: three reads
  EXPECT_FALSE(import(split));
}

// Until a worker has several ranks: both ends refuse, in the same words.
TEST(PageImporter, WorkersOfSeveralRanksAreRefusedAtHello) {
  EXPECT_TRUE(kv::check_compatible(hello(), hello()));
  protocol::HelloFrame wide = hello();
  wide.tensor_ranks = 2;
  wide.stages = {0, 3};
  for (const auto& verdict :
       {kv::check_compatible(wide, hello()), kv::check_compatible(hello(), wide)}) {
    ASSERT_FALSE(verdict);
    EXPECT_EQ(verdict.error().code, "handoff_refused");
    EXPECT_NE(verdict.error().message.find("on 4 ranks"), std::string::npos);
  }
}

}  // namespace
}  // namespace tandem::worker
