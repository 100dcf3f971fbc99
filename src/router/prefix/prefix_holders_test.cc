#include "router/prefix/prefix_holders.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

namespace tandem::router {
namespace {

using protocol::AllBlocksCleared;
using protocol::BlockRemoved;
using protocol::BlockStored;
using protocol::EventMedium;
using protocol::KvEvent;
using protocol::KvEventBatch;

constexpr int32_t kBlock = 4;
const TimePoint kStart{};

std::vector<int32_t> tokens(int seed, size_t blocks) {
  std::vector<int32_t> out(blocks * kBlock);
  std::iota(out.begin(), out.end(), seed * 1000);
  return out;
}

BlockStored stored(const std::vector<uint64_t>& names, std::span<const int32_t> ids,
                   std::optional<uint64_t> parent = {}) {
  BlockStored event;
  for (const uint64_t name : names) event.hashes.push_back({.number = name});
  if (parent) event.parent = protocol::EventHash{.number = *parent};
  event.tokens.assign(ids.begin(), ids.end());
  event.block_tokens = kBlock;
  return event;
}

BlockRemoved removed(const std::vector<uint64_t>& names,
                     EventMedium medium = EventMedium::kDevice) {
  BlockRemoved event;
  for (const uint64_t name : names) event.hashes.push_back({.number = name});
  event.medium = medium;
  return event;
}

class Holders : public ::testing::Test {
 protected:
  Holders() {
    holders.describe(0, "m", true);
    holders.describe(1, "m", true);
    holders.describe(2, "m", false);
  }
  void tell(uint32_t worker, std::vector<KvEvent> events, std::optional<int32_t> rank = {},
            uint32_t stream = 0) {
    KvEventBatch batch;
    batch.events = std::move(events);
    batch.rank = rank;
    holders.apply(worker, stream, batch);
  }
  PromptKeys keys(std::span<const int32_t> ids, std::string_view adapter = {},
                  std::string_view salt = {}) const {
    const BlockKey root = holders.hasher().root("m", adapter, kBlock);
    return {kBlock, PrefixHasher::of_tokens(root, ids, kBlock, protocol::extra_of_salt(salt))};
  }
  std::vector<int32_t> held(const PromptKeys& prompt, TimePoint now = kStart) {
    std::vector<int32_t> out(3);
    for (const HeldPrefix& one : holders.match(std::span(&prompt, 1), now))
      out[one.worker] = std::max(out[one.worker], one.tokens);
    return out;
  }

  PrefixHolders holders{HolderOptions{}, 42};
};

TEST_F(Holders, EventsOfTwoEnginesMeetWhateverTheyCallTheirBlocks) {
  const auto text = tokens(1, 6);
  tell(0, {stored({10, 11, 12}, std::span(text).first(12))});
  tell(0, {stored({13}, std::span(text).subspan(12, 4), 12)});
  tell(1, {stored({0xFFFFFFFFFFFFFFFFU, 77}, std::span(text).first(8))});
  EXPECT_EQ(held(keys(text)), (std::vector<int32_t>{16, 8, 0}));
  EXPECT_EQ(held(keys(tokens(2, 6))), (std::vector<int32_t>{0, 0, 0}));
  EXPECT_EQ(holders.block_tokens(0), kBlock);
}

TEST_F(Holders, RemovalsInAnyOrderAndClearsAreFollowed) {
  const auto text = tokens(1, 4);
  tell(0, {stored({1, 2, 3, 4}, text)});
  tell(0, {removed({2})});  // a parent before its children
  EXPECT_EQ(held(keys(text))[0], 4);
  tell(0, {removed({4, 3})});
  tell(0, {stored({2}, std::span(text).subspan(4, 4), 1)});
  EXPECT_EQ(held(keys(text))[0], 8);
  tell(0, {AllBlocksCleared{}});
  EXPECT_EQ(held(keys(text))[0], 0);
  holders.tend(kStart);
  EXPECT_EQ(holders.counts().entries, 0U);
}

TEST_F(Holders, ABlockWhoseParentIsUnknownIsLeftOutAndCounted) {
  const auto text = tokens(1, 4);
  tell(0, {stored({5}, std::span(text).subspan(4, 4), 999)});
  EXPECT_EQ(holders.counts().unknown_parents, 1U);
  EXPECT_EQ(holders.counts().entries, 0U);
}

TEST_F(Holders, RanksKeepTheirBlocksApart) {
  const auto text = tokens(1, 4);
  tell(0, {stored({1, 2, 3, 4}, text)}, 0);
  tell(0, {stored({1, 2}, std::span(text).first(8))}, 1);
  tell(0, {removed({1, 2, 3, 4})}, 0);
  EXPECT_EQ(held(keys(text))[0], 8) << "rank 1 still has them";
  tell(0, {AllBlocksCleared{}}, 1);
  EXPECT_EQ(held(keys(text))[0], 0);
}

TEST_F(Holders, WhatARankHoldsIsFoundAsThatRanks) {
  holders.describe(1, "m", true, 2);
  holders.describe(2, "m", false, 2);
  const auto text = tokens(1, 4);
  const PromptKeys prompt = keys(text);
  const auto of = [&](uint32_t worker, int32_t rank) {
    for (const HeldPrefix& one : holders.match(std::span(&prompt, 1), kStart)) {
      if (one.worker == worker && one.rank == rank) return one.tokens;
    }
    return 0;
  };
  tell(1, {stored({1, 2, 3, 4}, text)}, 1, 7);
  tell(1, {stored({1}, std::span(text).first(4))}, 0, 6);
  EXPECT_EQ(of(1, 0), 4);
  EXPECT_EQ(of(1, 1), 16);
  // What is expected of a rank goes on from what that rank holds.
  holders.expect(holders.new_expectation(), 1, 0, prompt.keys, 1, kStart);
  EXPECT_EQ(of(1, 0), 16);
  holders.reset(1, 7);
  EXPECT_EQ(of(1, 1), 0);
  // Without events the same.
  holders.believe(2, 1, prompt.keys, kStart);
  EXPECT_EQ(of(2, 1), 16);
  EXPECT_EQ(of(2, 0), 0);
  // A rank of which nobody was told counts as the first, and so does one of a worker of one rank.
  tell(2, {stored({1, 2}, std::span(text).first(8))}, 5);
  EXPECT_EQ(of(2, 0), 8);
  holders.forget(2);
  EXPECT_EQ(of(2, 0) + of(2, 1), 0);
}

TEST_F(Holders, TiersCountForLess) {
  const auto text = tokens(1, 4);
  auto on_host = stored({1, 2, 3, 4}, text);
  on_host.medium = EventMedium::kHost;
  tell(0, {stored({1, 2}, std::span(text).first(8)), on_host});
  const PromptKeys prompt = keys(text);
  auto found = holders.match(std::span(&prompt, 1), kStart);
  EXPECT_EQ(found[0].tokens, 16);
  EXPECT_FLOAT_EQ(found[0].credit, 8 + 8 * 0.75F);
  tell(0, {removed({1, 2})});  // demoted
  EXPECT_FLOAT_EQ(holders.match(std::span(&prompt, 1), kStart)[0].credit, 16 * 0.75F);
  // An engine that only names the copy.
  auto named = stored({3}, {});
  named.medium = EventMedium::kStorage;
  tell(0, {named, removed({3}, EventMedium::kHost)});
  EXPECT_FLOAT_EQ(holders.match(std::span(&prompt, 1), kStart)[0].credit,
                  8 * 0.75F + 4 * 0.25F + 4 * 0.75F);
}

TEST_F(Holders, OtherLayersAndOthersCopiesDoNotCount) {
  const auto text = tokens(1, 2);
  auto window = stored({1, 2}, text);
  window.main_group = false;
  auto remote = stored({1, 2}, text);
  remote.local = false;
  tell(0, {window, remote});
  EXPECT_EQ(held(keys(text))[0], 0);
  auto main = stored({1, 2}, text);
  main.group = 0;
  auto gone = removed({1, 2});
  gone.group = 1;
  tell(0, {main, gone});
  EXPECT_EQ(held(keys(text))[0], 8) << "another group of layers let them go";
}

TEST_F(Holders, SaltsAndAdaptersAreOtherPrefixes) {
  const auto text = tokens(1, 2);
  auto salted = stored({1, 2}, text);
  salted.extras = {protocol::extra_of_salt("tenant"), ""};
  auto adapted = stored({3, 4}, text);
  adapted.lora_name = "french";
  tell(0, {salted});
  tell(1, {adapted});
  EXPECT_EQ(held(keys(text)), (std::vector<int32_t>{0, 0, 0}));
  EXPECT_EQ(held(keys(text, "", "tenant")), (std::vector<int32_t>{8, 0, 0}));
  EXPECT_EQ(held(keys(text, "french")), (std::vector<int32_t>{0, 8, 0}));
  EXPECT_EQ(held(keys(text, "french", "tenant")), (std::vector<int32_t>{0, 0, 0}));
}

TEST_F(Holders, AnExpectationHoldsUntilItsPromptIsComputedAndAMomentLonger) {
  const auto text = tokens(1, 6);
  const PromptKeys prompt = keys(text);
  tell(0, {stored({1, 2}, std::span(text).first(8))});
  const auto first = holders.new_expectation();
  holders.expect(first, 0, 0, prompt.keys, 2, kStart);
  EXPECT_EQ(held(prompt)[0], 24);
  EXPECT_EQ(holders.counts().expected, 4U);
  // However long it waits.
  const TimePoint computed = kStart + std::chrono::hours(1);
  holders.tend(computed);
  EXPECT_EQ(held(prompt, computed)[0], 24);
  holders.settle(first, std::chrono::seconds(2), computed);
  tell(0, {stored({3, 4}, std::span(text).subspan(8, 8), 2)});
  EXPECT_EQ(held(prompt, computed + std::chrono::seconds(1))[0], 24);
  const TimePoint later = computed + std::chrono::seconds(3);
  EXPECT_EQ(held(prompt, later)[0], 16) << "what came stays, what did not goes";
  EXPECT_EQ(holders.counts().expected, 0U);
}

TEST_F(Holders, ExpectationsOfOnePromptEndOnTheirOwn) {
  const PromptKeys prompt = keys(tokens(1, 200));
  const PromptKeys head{kBlock, {prompt.keys.begin(), prompt.keys.begin() + 3}};
  const auto first = holders.new_expectation();
  const auto second = holders.new_expectation();
  holders.expect(first, 0, 0, prompt.keys, 0, kStart);
  holders.expect(second, 0, 0, head.keys, 0, kStart);
  holders.settle(first, Duration::zero(), kStart);  // it failed
  holders.tend(kStart);
  EXPECT_EQ(held(prompt)[0], 12) << "the other one's";
  EXPECT_EQ(holders.counts().expected, 3U);
  holders.forget(0);
  holders.expect(holders.new_expectation(), 0, 0, prompt.keys, 0, kStart);
  holders.settle(second, Duration::zero(), kStart);
  holders.tend(kStart);
  EXPECT_EQ(held(prompt)[0], 800) << "what came before it was forgotten takes nothing back";
  EXPECT_EQ(holders.counts().expected, 200U);
}

TEST_F(Holders, AnExpectationWhoseBeginningWasForgottenEndsWhole) {
  const PromptKeys prompt = keys(tokens(1, 200));
  const PromptKeys head{kBlock, {prompt.keys.begin(), prompt.keys.begin() + 3}};
  const auto expected = holders.new_expectation();
  holders.expect(expected, 0, 0, head.keys, 0, kStart);
  holders.forget(0);  // another thread's, between two portions
  holders.expect(expected, 0, 0, prompt.keys, 0, kStart);
  EXPECT_EQ(held(prompt)[0], 800);
  EXPECT_EQ(holders.counts().expected, 200U);
  holders.settle(expected, Duration::zero(), kStart);
  for (int i = 0; i < 8; ++i) holders.tend(kStart);
  EXPECT_EQ(held(prompt)[0], 0);
  EXPECT_EQ(holders.counts().expected, 0U);
}

TEST_F(Holders, AWorkerWithoutEventsIsBelievedWhatItAnsweredUntilNobodyAsksForItAnyMore) {
  const PromptKeys prompt = keys(tokens(1, 6));
  const PromptKeys other = keys(tokens(2, 6));
  const TimePoint begin = kStart + std::chrono::hours(1);
  const auto expected = holders.new_expectation();
  holders.expect(expected, 2, 0, prompt.keys, 0, begin);
  EXPECT_EQ(held(prompt, begin)[2], 24);
  holders.settle(expected, std::chrono::seconds(2), begin);
  EXPECT_EQ(held(prompt, begin + std::chrono::seconds(3))[2], 0) << "no answer came";
  holders.believe(2, 0, prompt.keys, begin);
  holders.believe(2, 0, other.keys, begin);
  const auto at = [&](int minutes) { return begin + std::chrono::minutes(minutes); };
  EXPECT_EQ(held(prompt, at(29))[2], 24);
  holders.tend(at(31));
  EXPECT_EQ(held(prompt, at(31))[2], 24);
  holders.believe(2, 0, prompt.keys, at(40));  // renewed
  holders.tend(at(62));
  EXPECT_EQ(held(prompt, at(62))[2], 24);
  EXPECT_EQ(held(other, at(62))[2], 0);
  EXPECT_EQ(holders.counts().entries, 6U);
  holders.forget(2);
  EXPECT_EQ(held(prompt)[2], 0);
  holders.tend(at(62));
  EXPECT_EQ(holders.counts().entries, 0U);
  EXPECT_EQ(holders.counts().blocks, 0U);
}

TEST_F(Holders, AllOfItStaysWithinItsBytes) {
  constexpr size_t kBytes = size_t{2} << 20;
  PrefixHolders small({.max_bytes = kBytes}, 42);
  small.describe(0, "m", true);
  const BlockKey root = small.hasher().root("m", "", kBlock);
  for (int i = 0; i < 300; ++i) {
    const auto ids = tokens(i, 200);
    const auto chain = PrefixHasher::of_tokens(root, ids, kBlock);
    small.expect(small.new_expectation(), 0, 0, chain, 0, kStart);
    small.believe(1, 0, chain, kStart);
    KvEventBatch batch;
    std::vector<uint64_t> names(200);
    std::iota(names.begin(), names.end(), i * 1000);
    batch.events = {stored(names, ids)};
    small.apply(0, 0, batch);
    ASSERT_LE(small.counts().bytes, kBytes) << i;
  }
  EXPECT_GT(small.counts().evictions, 0U);
  EXPECT_GT(small.counts().expected, 5000U);
  const auto last = PrefixHasher::of_tokens(root, tokens(299, 200), kBlock);
  const PromptKeys prompt{kBlock, last};
  EXPECT_EQ(small.match(std::span(&prompt, 1), kStart)[0].tokens, 800);
}

TEST_F(Holders, ForgettingAWorkerForgetsNobodyElse) {
  const auto text = tokens(1, 4);
  const PromptKeys prompt = keys(text);
  tell(0, {stored({1, 2, 3, 4}, text)}, {}, 0);
  tell(1, {stored({1, 2, 3, 4}, text)}, {}, 3);
  holders.expect(holders.new_expectation(), 0, 0, prompt.keys, 0, kStart);
  holders.forget(0);
  EXPECT_EQ(held(prompt), (std::vector<int32_t>{0, 16, 0}));
  holders.reset(1, 0);
  EXPECT_EQ(held(prompt)[1], 16) << "another stream";
  holders.reset(1, 3);
  EXPECT_EQ(held(prompt)[1], 0);
  EXPECT_EQ(held(prompt, kStart + std::chrono::seconds(20))[0], 0);
}

TEST_F(Holders, AnotherBlockSizeIsAnotherKindOfKey) {
  const auto text = tokens(1, 8);
  BlockStored wide = stored({1, 2, 3, 4}, text);
  wide.block_tokens = 2 * kBlock;
  tell(1, {wide});
  EXPECT_EQ(holders.block_tokens(1), 2 * kBlock);
  const BlockKey root = holders.hasher().root("m", "", 2 * kBlock);
  const std::vector<PromptKeys> both = {
      keys(text), {2 * kBlock, PrefixHasher::of_tokens(root, text, 2 * kBlock)}};
  const auto found = holders.match(both, kStart);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].worker, 1U);
  EXPECT_EQ(found[0].tokens, 32);
}

TEST_F(Holders, BytesStandInWhereThereAreNoTokens) {
  std::string text(1000, 'a');
  text += "the end of one";
  const BlockKey root = holders.hasher().root("m", "bytes", 64);
  const PromptKeys one{16, PrefixHasher::of_bytes(root, text, 64)};
  holders.believe(2, 0, one.keys, kStart);
  EXPECT_EQ(held(one)[2], static_cast<int32_t>(one.keys.size()) * 16);
  std::string other = text;
  other[500] = 'b';
  EXPECT_EQ(held({16, PrefixHasher::of_bytes(root, other, 64)})[2], 7 * 16);
}

}  // namespace
}  // namespace tandem::router
