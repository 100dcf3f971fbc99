#include "kv/integrity/integrity.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "kv/integrity/page_digest.h"
#include "kv/integrity/tracker.h"

namespace tandem::kv {
namespace {

TEST(Integrity, LevelsAndFaultsAreRead) {
  EXPECT_EQ(*parse_integrity("tags"), IntegrityLevel::kTags);
  EXPECT_FALSE(parse_integrity("most"));
  EXPECT_EQ(parse_kv_fault("")->kind, KvFault::kNone);
  EXPECT_EQ(parse_kv_fault("flip-bit:12")->after, 12U);
  EXPECT_FALSE(parse_kv_fault("flip-bit:"));
  EXPECT_FALSE(parse_kv_fault("flip-bit:1x"));
  EXPECT_FALSE(parse_kv_fault("flip"));
}

TEST(Integrity, AFaultIsPlantedOnce) {
  KvFaults faults = *parse_kv_fault("swap-pages:2");
  EXPECT_FALSE(faults.due(KvFault::kFlipBit));
  EXPECT_FALSE(faults.due(KvFault::kSwapPages));
  EXPECT_FALSE(faults.due(KvFault::kSwapPages));
  EXPECT_TRUE(faults.due(KvFault::kSwapPages));
  EXPECT_FALSE(faults.due(KvFault::kSwapPages));
}

// Two sequences of three blocks, one page group or two.
class TrackerTest : public ::testing::TestWithParam<int> {
 protected:
  TrackerTest() {
    windows_.assign(1, 0);
    if (GetParam() == 2) windows_.push_back(16);
    pool_.emplace(32);
    tracker_ = make_tracker(
        {.level = IntegrityLevel::kTags, .page_count = 32, .block_tokens = 8, .windows = windows_});
    pool_->set_observer(tracker_.get());
    for (const protocol::SequenceId id : {1U, 2U}) {
      for (int32_t place = 0; place < 3 * GetParam(); ++place) {
        const PageTag tag = *pool_->allocate();
        tracker_->allocated(tag, id, place);
        tags_[id - 1].push_back(tag);
        planned_[id - 1].push_back(tag.page);
        expected_[id - 1].push_back({tag.generation, owner_key(id), tag.page});
      }
    }
  }
  std::vector<TagFault> check(int32_t position = 0) {
    const StepPages pages[] = {{planned_[0], expected_[0], position},
                               {planned_[1], expected_[1], position}};
    std::vector<TagFault> faults;
    tracker_->check(pages, faults);
    return faults;
  }
  // Exactly sequence `index` is wrong, for this reason.
  void expect_fault(size_t index, TagMismatch kind, int32_t place) {
    const auto faults = check();
    ASSERT_EQ(faults.size(), 1U);
    EXPECT_EQ(faults[0].sequence, index);
    EXPECT_EQ(mismatch_name(faults[0].kind), mismatch_name(kind));
    EXPECT_EQ(faults[0].place, place);
  }

  std::vector<int32_t> windows_;
  std::optional<PagePool> pool_;
  std::unique_ptr<IntegrityTracker> tracker_;
  std::vector<PageTag> tags_[2];
  std::vector<int32_t> planned_[2];
  std::vector<PageExpectation> expected_[2];
};
INSTANTIATE_TEST_SUITE_P(Groups, TrackerTest, ::testing::Values(1, 2));

TEST_P(TrackerTest, WhatIsRightPasses) { EXPECT_TRUE(check().empty()); }

TEST_P(TrackerTest, SwappedPagesFailBoth) {
  std::swap(planned_[0][1], planned_[1][1]);
  const auto faults = check();
  ASSERT_EQ(faults.size(), 2U);
  for (const auto& fault : faults) {
    EXPECT_EQ(fault.kind, TagMismatch::kMapping);
    EXPECT_EQ(fault.place, 1);
  }
  EXPECT_EQ(faults[0].found.owner, owner_key(2));
}

TEST_P(TrackerTest, ASwapInOneSequenceIsFound) {
  std::swap(planned_[0][1], planned_[0][2]);
  std::swap(expected_[0][1], expected_[0][2]);
  expect_fault(0, TagMismatch::kPosition, 1);
}

TEST_P(TrackerTest, AFreedPageFailsBeforeAndAfterItIsGivenOutAgain) {
  EXPECT_TRUE(pool_->drop_owner(tags_[0][2]));
  expect_fault(0, TagMismatch::kGeneration, 2);
  const PageTag again = *pool_->allocate();
  ASSERT_EQ(again.page, tags_[0][2].page);
  tracker_->allocated(again, 2, 0);
  expect_fault(0, TagMismatch::kGeneration, 2);
}

TEST_P(TrackerTest, AMissingPageFails) {
  planned_[1][0] = -1;
  expect_fault(1, TagMismatch::kMissing, 0);
  planned_[1][0] = 77;
  expect_fault(1, TagMismatch::kMissing, 0);
}

TEST_P(TrackerTest, ExpectationsMustCoverThePlan) {
  expected_[1].pop_back();
  expect_fault(1, TagMismatch::kMissing, static_cast<int32_t>(expected_[1].size()));
}

TEST_P(TrackerTest, ASharedPageMustHoldTheContentThatItsReaderWants) {
  const PageTag shared = tags_[0][0];
  tracker_->published(shared, 500);
  planned_[1][0] = shared.page;
  expected_[1][0] = {shared.generation, 500, shared.page};
  EXPECT_TRUE(check().empty()) << "its filler knows it as its own, its sharer by content";
  expected_[1][0].key = 502;
  expect_fault(1, TagMismatch::kOwner, 0);
}

TEST_P(TrackerTest, ACondemnedPageFailsEveryReader) {
  tracker_->condemn(tags_[0][0].page);
  expect_fault(0, TagMismatch::kGeneration, 0);
}

TEST_P(TrackerTest, WhatLeftTheWindowIsNotLookedAt) {
  if (GetParam() != 2) return;
  planned_[0][1] = -1;  // block 0 of the group with a window of 16
  EXPECT_EQ(check(0).size(), 1U);
  EXPECT_EQ(check(22).size(), 1U) << "position 22 sees 7";
  EXPECT_TRUE(check(23).empty());
}

TEST_P(TrackerTest, ThePagesHistoryEndsWithTheLastEvents) {
  tracker_->set_actor(9);
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(pool_->add_reader(tags_[0][0]));
    EXPECT_TRUE(pool_->drop_reader(tags_[0][0]));
  }
  EXPECT_FALSE(pool_->drop_writer(tags_[0][0]));
  const auto history = tracker_->history(tags_[0][0].page);
  ASSERT_EQ(history.size(), 8U);
  EXPECT_EQ(history.back().event, PageEvent::kRefused);
  EXPECT_EQ(history.back().actor, 9U);
  EXPECT_EQ(history.front().event, PageEvent::kReaderDropped);
}

TEST(Integrity, OffDoesNothing) {
  const auto tracker = make_tracker({.page_count = 4});
  EXPECT_EQ(tracker->level(), IntegrityLevel::kOff);
  const int32_t planned[] = {-1};
  const StepPages pages[] = {{planned, {}, 0}};
  std::vector<TagFault> faults;
  tracker->check(pages, faults);
  EXPECT_TRUE(faults.empty());
}

TEST(Integrity, DigestsAreForgottenWithTheirAllocation) {
  const auto tracker = make_tracker({.level = IntegrityLevel::kFull, .page_count = 4});
  tracker->set_digests({2, 10}, {1, 2, 3});
  EXPECT_EQ(tracker->digests({2, 10}).size(), 3U);
  EXPECT_TRUE(tracker->digests({2, 11}).empty());
  EXPECT_TRUE(tracker->digests({1, 10}).empty());
}

class DigestTest : public ::testing::TestWithParam<size_t> {
 protected:
  DigestTest() : bytes_(shape_.layer_bytes()) {
    std::mt19937 random(7);
    for (auto& byte : bytes_) byte = static_cast<std::byte>(random());
  }
  DigestShape shape_{.kv_heads = 3,
                     .head_dim = 8,
                     .block_tokens = 16,
                     .element_bytes = 2,
                     .scale_bytes = GetParam(),
                     .layers = {{4, 6}}};
  std::vector<std::byte> bytes_;
};
INSTANTIATE_TEST_SUITE_P(ScaleBytes, DigestTest, ::testing::Values(0U, 4U));

TEST_P(DigestTest, EveryBitOfWhatItCoversCountsAndNothingElse) {
  for (const int32_t length : {1, 5, 16}) {
    const uint64_t whole = layer_digest(shape_, bytes_, 4, 9, length);
    for (size_t at = 0; at < bytes_.size(); ++at) {
      const size_t in_plane = at % shape_.plane_bytes();
      const bool k = at / shape_.plane_bytes() % 2 == 0;
      const size_t element = in_plane / shape_.element_bytes;
      const size_t token = in_plane >= shape_.value_bytes()
                               ? (in_plane - shape_.value_bytes()) / shape_.scale_bytes
                           : k ? element % 16
                               : element / 8;
      bytes_[at] ^= std::byte{0x10};
      EXPECT_EQ(layer_digest(shape_, bytes_, 4, 9, length) != whole,
                token < static_cast<size_t>(length))
          << at << " of length " << length;
      bytes_[at] ^= std::byte{0x10};
    }
  }
}

TEST_P(DigestTest, PlaceAndLengthAreBoundIn) {
  const uint64_t here = layer_digest(shape_, bytes_, 4, 9, 16);
  EXPECT_NE(layer_digest(shape_, bytes_, 5, 9, 16), here);
  EXPECT_NE(layer_digest(shape_, bytes_, 4, 8, 16), here);
  EXPECT_NE(layer_digest(shape_, bytes_, 9, 4, 16), here);
  EXPECT_NE(layer_digest(shape_, bytes_, 4, 9, 15), here);
  std::vector<std::byte> swapped = bytes_;
  const auto head = static_cast<std::ptrdiff_t>(2 * shape_.plane_bytes());
  std::rotate(swapped.begin(), swapped.begin() + head, swapped.begin() + 2 * head);
  EXPECT_NE(layer_digest(shape_, swapped, 4, 9, 16), here) << "heads in each other's place";
  const std::vector<std::byte> moved = bytes_;
  EXPECT_EQ(layer_digest(shape_, moved, 4, 9, 16), here) << "where it lies does not matter";
}

TEST_P(DigestTest, RanksThatHoldSomeHeadsAddUp) {
  const size_t head = 2 * shape_.plane_bytes();
  const std::span<const std::byte> bytes = bytes_;
  EXPECT_EQ(layer_digest(shape_, bytes.first(head), 4, 9, 7, 0, 1) +
                layer_digest(shape_, bytes.subspan(head), 4, 9, 7, 1, 3),
            layer_digest(shape_, bytes_, 4, 9, 7));
}

TEST_P(DigestTest, APageHasOneForEachOfItsLayers) {
  std::vector<std::byte> page = bytes_;
  page.insert(page.end(), bytes_.begin(), bytes_.end());
  const auto digests = page_digests(shape_, page.data(), 0, 3);
  ASSERT_EQ(digests.size(), 2U);
  EXPECT_EQ(digests[0], layer_digest(shape_, bytes_, 4, 3, 16));
  EXPECT_EQ(digests[1], layer_digest(shape_, bytes_, 6, 3, 16));
}

}  // namespace
}  // namespace tandem::kv
