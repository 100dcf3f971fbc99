#include <gtest/gtest.h>

#include "protocol/content_id.h"
#include "protocol/handoff_frames.h"
#include "protocol/msgpack.h"

namespace tandem::protocol {
namespace {

TEST(ContentId, DependsOnEveryField) {
  const auto root = root_content_id("lineage", 16, "");
  EXPECT_NE(root, root_content_id("lineage2", 16, ""));
  EXPECT_NE(root, root_content_id("lineage", 32, ""));
  EXPECT_NE(root, root_content_id("lineage", 16, "tenant"));
  // A field's bytes cannot move into its neighbour.
  EXPECT_NE(root_content_id("ab", 16, "c"), root_content_id("a", 16, "bc"));
  const std::vector<int32_t> tokens{1, 2, 3};
  const auto id = next_content_id(root, tokens);
  EXPECT_NE(id, next_content_id(root, std::vector<int32_t>{1, 2}));
  const std::vector<Extra> adapter{{ExtraKind::kAdapter, "x"}};
  const std::vector<Extra> media{{ExtraKind::kMediaDigest, "x"}};
  EXPECT_NE(id, next_content_id(root, tokens, adapter));
  EXPECT_NE(next_content_id(root, tokens, media), next_content_id(root, tokens, adapter));
}

TEST(ContentId, ChainsFullBlocksOnly) {
  const auto root = root_content_id("m", 4, "");
  std::vector<int32_t> tokens{1, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto ids = content_ids(root, tokens, 4);
  ASSERT_EQ(ids.size(), 2U);
  tokens[0] = 0;
  EXPECT_NE(content_ids(root, tokens, 4)[1], ids[1])
      << "a block's identity includes everything before it";
}

HandoffFrame round_trip(const HandoffFrame& frame) {
  const std::string bytes = encode_frame(frame);
  auto header = decode_frame_header(std::string_view(bytes).substr(0, kFrameHeaderBytes));
  EXPECT_TRUE(header);
  auto decoded = decode_frame_payload(*header, std::string_view(bytes).substr(kFrameHeaderBytes));
  EXPECT_TRUE(decoded) << decoded.error().message;
  return *decoded;
}

TEST(HandoffFrames, RoundTrip) {
  const HandoffKey key{"0123456789abcdef0123456789abcdef", 3, 0xFFFFFFFFFFFFFFFFULL};
  const auto push = std::get<PushFrame>(
      round_trip(PushFrame{key, 7, 9, {{1, 2}, {3, 1ULL << 60}}, {5, ~uint64_t{0}}}));
  EXPECT_EQ(push.key, key);
  EXPECT_EQ(push.layer, 7U);
  EXPECT_EQ(push.pages[1].generation, 1ULL << 60);
  const auto offer = std::get<OfferFrame>(
      round_trip(OfferFrame{key, {0, 1, 49151, 200000}, "salt", 4, 1ULL << 40, "lora"}));
  EXPECT_EQ(offer.tokens[3], 200000);
  EXPECT_EQ(offer.bytes, 1ULL << 40);
  EXPECT_EQ(std::get<GrantFrame>(round_trip(GrantFrame{key, {0, 17, 300}})).first_missing,
            (std::vector<int32_t>{0, 17, 300}));
  HelloFrame hello;
  hello.windows = {0, 512};
  hello.layer_places = {1, 0, 0, 0};
  EXPECT_EQ(std::get<HelloFrame>(round_trip(hello)).windows, hello.windows);
  EXPECT_EQ(std::get<HelloFrame>(round_trip(hello)).layer_places, hello.layer_places);
  hello.kv_scales = "0123456789abcdef";
  hello.weights = "Q4_1";
  hello.accepts = 5;
  EXPECT_FALSE(std::get<HelloFrame>(round_trip(hello)).converted);
  hello.converted = true;
  EXPECT_TRUE(std::get<HelloFrame>(round_trip(hello)).converted);
  EXPECT_EQ(std::get<HelloFrame>(round_trip(hello)).kv_scales, hello.kv_scales);
  EXPECT_EQ(std::get<HelloFrame>(round_trip(hello)).weights, hello.weights);
  EXPECT_EQ(std::get<HelloFrame>(round_trip(hello)).accepts, hello.accepts);
  hello.tensor_ranks = 8;
  hello.data_ranks = 2;
  hello.stages = {0, 16};
  hello.rank = 31;
  const auto ranks = std::get<HelloFrame>(round_trip(hello));
  EXPECT_EQ(ranks.tensor_ranks * 100 + ranks.data_ranks, 802U);
  EXPECT_EQ(ranks.stages, hello.stages);
  EXPECT_EQ(ranks.rank, 31U);
  const auto abort = std::get<AbortFrame>(round_trip(AbortFrame{key, 400, "code", "message"}));
  EXPECT_EQ(abort.status, 400U);
}

TEST(HandoffFrames, RefusesDamage) {
  const std::string bytes =
      encode_frame(CommitFrame{{"id", 1, 2}, 3, {0}, 4, 5, {{6, -0.5F, {{7, -1}}}}, 7, 8});
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    auto header = decode_frame_header(std::string_view(damaged).substr(0, kFrameHeaderBytes));
    if (!header) continue;
    const bool type_only =
        at == 6 || at == 7;  // a changed type must still decode or fail, never crash
    const auto decoded =
        decode_frame_payload(*header, std::string_view(damaged).substr(kFrameHeaderBytes));
    if (!type_only) {
      EXPECT_FALSE(decoded) << at;
    }
  }
}

TEST(HandoffFrames, NamesTheVersionOfAForeignPeer) {
  std::string bytes = encode_frame(PingFrame{1, false});
  bytes[4] = 9;
  const auto header = decode_frame_header(std::string_view(bytes).substr(0, kFrameHeaderBytes));
  ASSERT_FALSE(header);
  EXPECT_NE(header.error().message.find("version 9"), std::string::npos);
}

TEST(Msgpack, ReaderIsBounded) {
  for (const std::string& bytes : std::initializer_list<std::string>{
           std::string("\xdd\xff\xff\xff\xff", 5), std::string("\xc6\xff\xff\xff\xff", 5),
           std::string("\xdf\x00\x00\x00\x09", 5), std::string(1000, '\x91')}) {
    MsgpackReader reader(bytes);
    EXPECT_FALSE(reader.skip());
  }
}

}  // namespace
}  // namespace tandem::protocol
