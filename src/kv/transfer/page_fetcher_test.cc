#include "kv/transfer/page_fetcher.h"

#include <cstring>
#include <future>

#include <gtest/gtest.h>

#include "kv/transfer/local_transport.h"

namespace tandem::kv {
namespace {

using std::chrono::milliseconds;

// A peer whose answers the test gives itself.
class HandRemote : public Remote {
 public:
  struct Posted {
    std::vector<Read> reads;
    Done done;
  };
  TransferStatus post(std::span<const Read> reads, Duration, Done done) override {
    if (next != TransferStatus::kOk) return next;
    posted.push_back({{reads.begin(), reads.end()}, std::move(done)});
    return TransferStatus::kOk;
  }
  void disconnect() override {
    for (auto& batch : std::exchange(posted, {})) batch.done(TransferStatus::kLost);
    ++disconnects;
  }
  uint64_t bytes_in_flight() const override { return 0; }

  // Answers all that is posted now, reading from `arena`.
  void answer(const device::SharedArena& arena, TransferStatus status = TransferStatus::kOk) {
    for (auto& batch : std::exchange(posted, {})) {
      for (const Read& read : batch.reads) {
        if (status == TransferStatus::kOk)
          std::memcpy(read.into, arena.segment().data() + read.offset, read.bytes);
      }
      batch.done(status);
    }
  }
  std::vector<Posted> posted;
  TransferStatus next = TransferStatus::kOk;
  int disconnects = 0;
};

class PageFetcherTest : public ::testing::Test {
 protected:
  static constexpr size_t kPage = 4096;
  static constexpr int32_t kPages = 64;
  PageFetcherTest() {
    arena_ = std::move(*device::SharedArena::create(kPage, kPages));
    for (int32_t page = 0; page < kPages; ++page) {
      arena_->set_generation(page, generation(page));
      std::memset(arena_->pages() + static_cast<size_t>(page) * kPage, page, kPage);
    }
    remote_ = std::make_shared<HandRemote>();
    fetcher_.on_peer_failed = [this](uint64_t peer) { failed_.push_back(peer); };
    open(1, remote_);
  }
  static uint64_t generation(int32_t page) { return static_cast<uint64_t>(page) + 100; }
  void open(uint64_t peer, std::shared_ptr<Remote> remote, Fence fence = Fence::kLocal) {
    fetcher_.open_peer(peer, {std::move(remote), fence, arena_->shape()});
  }

  struct Answers {
    std::vector<CopyResult> pages;
    size_t given = 0;
  };
  std::shared_ptr<Answers> fetch(uint64_t owner, int32_t first, int32_t count, PageStep step = {},
                                 uint64_t peer = 1) {
    FetchRequest request;
    request.offset = 1024;
    request.bytes = 512;
    for (int32_t page = first; page < first + count; ++page) {
      request.source.push_back({page, generation(page)});
      request.target.push_back(local_.data() + static_cast<size_t>(page) * 512);
    }
    request.step = std::move(step);
    auto answers = std::make_shared<Answers>();
    answers->pages.resize(static_cast<size_t>(count));
    fetcher_.fetch(owner, peer, std::move(request),
                   [answers](size_t at, size_t pages, CopyResult result) {
                     for (size_t i = at; i < at + pages; ++i) answers->pages.at(i) = result;
                     answers->given += pages;
                   });
    return answers;
  }
  void turn() {  // lets posted functions run
    net::run_until_done(reactor_, [](net::Reactor& reactor) -> boost::asio::awaitable<void> {
      co_await reactor.sleep(milliseconds(20));
    }(reactor_));
  }
  void answer_all() {  // the bytes, then the generations
    for (int i = 0; i < 2 * kPages && (i < 2 || fetcher_.in_flight() > 0); ++i) {
      remote_->answer(*arena_);
      turn();
    }
  }

  std::unique_ptr<device::SharedArena> arena_;
  std::shared_ptr<HandRemote> remote_;
  net::Reactor reactor_;
  net::WorkPool pool_{2};
  PageFetcher fetcher_{
      reactor_,
      pool_,
      {.batch_bytes = 1024, .batches_per_peer = 3, .limit = std::chrono::seconds(1)}};
  std::vector<std::byte> local_ = std::vector<std::byte>(kPages * 512);
  std::vector<uint64_t> failed_;
};

TEST_F(PageFetcherTest, BytesArriveInTheirPlacesAndAreAnsweredOnce) {
  const auto answers = fetch(7, 3, 9);
  answer_all();
  EXPECT_EQ(answers->given, 9U);
  for (const auto result : answers->pages) EXPECT_EQ(result, CopyResult::kIntact);
  for (size_t page = 3; page < 12; ++page) {
    EXPECT_EQ(local_[page * 512], static_cast<std::byte>(page));
    EXPECT_EQ(local_[page * 512 + 511], static_cast<std::byte>(page));
  }
  EXPECT_EQ(local_[2 * 512 + 511], std::byte{0});
  EXPECT_EQ(fetcher_.in_flight(), 0U);
}

TEST_F(PageFetcherTest, APageThatWasReusedMeanwhileIsStale) {
  const auto answers = fetch(7, 0, 4);  // two batches
  remote_->answer(*arena_);
  arena_->set_generation(3, 999);  // after its bytes were read, before its generation is
  turn();
  remote_->answer(*arena_);
  turn();
  EXPECT_EQ(answers->given, 4U);
  EXPECT_EQ(answers->pages[0], CopyResult::kIntact);
  EXPECT_EQ(answers->pages[3], CopyResult::kStale);
}

TEST_F(PageFetcherTest, OwnersTakeTurns) {
  const auto first = fetch(1, 0, 40);   // twenty batches
  const auto second = fetch(2, 40, 4);  // two
  EXPECT_EQ(remote_->posted.size(), 3U) << "the bound of one peer";
  for (int i = 0; i < 8; ++i) {
    remote_->answer(*arena_);
    turn();
  }
  EXPECT_EQ(second->given, 4U);
  EXPECT_LT(first->given, 40U);
  answer_all();
  EXPECT_EQ(first->given, 40U);
}

TEST_F(PageFetcherTest, ASlowPeerDoesNotHoldAnotherUp) {
  auto quick = std::make_shared<HandRemote>();
  open(2, quick);
  const auto stuck = fetch(1, 0, 40);
  const auto answers = fetch(2, 40, 4, {}, 2);
  for (int i = 0; i < 4; ++i) {
    quick->answer(*arena_);
    turn();
  }
  EXPECT_EQ(answers->given, 4U);
  EXPECT_EQ(stuck->given, 0U);
  answer_all();
}

TEST_F(PageFetcherTest, AStepSeesTheBytesAndMayRefuseThem) {
  std::atomic<int> seen = 0;
  const auto answers = fetch(
      1, 8, 2, {.staged = true, .finish = [&](size_t index, std::span<const std::byte> arrived) {
                  EXPECT_EQ(arrived.size(), 512U);
                  EXPECT_EQ(arrived[5], static_cast<std::byte>(8 + index));
                  ++seen;
                  return index == 1 ? CopyResult::kCorrupt : CopyResult::kIntact;
                }});
  answer_all();
  EXPECT_EQ(seen, 2);
  EXPECT_EQ(answers->pages[1], CopyResult::kCorrupt);
  EXPECT_EQ(local_[8 * 512], std::byte{0}) << "staged bytes are the step's to place";
}

TEST_F(PageFetcherTest, StoppingAnswersWhatHasNotBegunAtOnce) {
  const auto answers = fetch(1, 0, 20);
  fetcher_.stop(1);
  EXPECT_EQ(answers->given, 14U);
  EXPECT_EQ(answers->pages[19], CopyResult::kFailed);
  answer_all();
  EXPECT_EQ(answers->given, 20U);
  EXPECT_EQ(answers->pages[0], CopyResult::kIntact);
}

TEST_F(PageFetcherTest, AFailureIsThePeersAndEndsAll) {
  const auto answers = fetch(1, 0, 20);
  remote_->answer(*arena_, TransferStatus::kTimeout);
  turn();
  EXPECT_EQ(failed_, std::vector<uint64_t>{1});
  fetcher_.close_peer(1);  // as the owner of the connections does
  turn();
  EXPECT_EQ(answers->given, 20U);
  for (const auto result : answers->pages) EXPECT_EQ(result, CopyResult::kFailed);
  EXPECT_EQ(remote_->disconnects, 1);
  EXPECT_EQ(fetcher_.in_flight(), 0U);
  EXPECT_EQ(fetch(2, 0, 1)->pages[0], CopyResult::kFailed) << "it is closed";
}

TEST_F(PageFetcherTest, WhatCannotBeFencedSaysSo) {
  auto remote = std::make_shared<HandRemote>();
  open(3, remote, Fence::kNone);
  const auto answers = fetch(1, 0, 2, {}, 3);
  remote->answer(*arena_, TransferStatus::kTimeout);
  turn();
  EXPECT_EQ(answers->pages[0], CopyResult::kUnfenced);
  EXPECT_EQ(fetcher_.lost_slots(), 1U);
  uint64_t peer = 4;
  for (const auto status : {TransferStatus::kTimeout, TransferStatus::kLost}) {
    auto fenced = std::make_shared<HandRemote>();
    open(peer, fenced, Fence::kConnection);
    const auto other = fetch(1, 0, 2, {}, peer++);
    fenced->answer(*arena_, status);
    turn();
    EXPECT_EQ(other->pages[0], CopyResult::kFailed);
    EXPECT_EQ(fenced->disconnects, 1) << "before the pages are said to be free";
  }
}

// As over a module whose thread waits for a dead peer.
TEST_F(PageFetcherTest, ADisconnectThatTakesLongHoldsUpOnlyItsOwnPages) {
  struct SlowRemote final : HandRemote {
    void disconnect() override {
      open.get_future().wait();
      HandRemote::disconnect();
    }
    std::promise<void> open;
  };
  const auto slow = std::make_shared<SlowRemote>();
  open(2, slow, Fence::kConnection);
  const auto late = fetch(1, 0, 8, {}, 2);
  auto first = std::move(slow->posted.front());
  slow->posted.erase(slow->posted.begin());
  first.done(TransferStatus::kTimeout);
  turn();
  fetcher_.close_peer(2);
  const auto others = fetch(3, 0, 6);
  for (int i = 0; i < 50 && others->given < 6; ++i) {
    remote_->answer(*arena_);
    turn();
  }
  EXPECT_EQ(others->given, 6U) << "the reactor went on";
  EXPECT_EQ(late->given, 2U) << "what was not begun; the rest may still be written";
  slow->open.set_value();
  for (int i = 0; i < 100 && late->given < 8; ++i) turn();
  EXPECT_EQ(late->given, 8U);
  for (const auto result : late->pages) EXPECT_EQ(result, CopyResult::kFailed);
  EXPECT_EQ(slow->disconnects, 1);
}

TEST_F(PageFetcherTest, RangesOutsideThePeersPagesAreRefused) {
  FetchRequest request;
  request.offset = kPage - 100;
  request.bytes = 101;
  request.source = {{0, generation(0)}};
  request.target = {local_.data()};
  CopyResult result = CopyResult::kIntact;
  fetcher_.fetch(1, 1, request, [&](size_t, size_t, CopyResult ended) { result = ended; });
  EXPECT_EQ(result, CopyResult::kFailed);
  for (const int32_t page : {-1, kPages}) {
    request.offset = 0;
    request.source = {{page, 1}};
    result = CopyResult::kIntact;
    fetcher_.fetch(1, 1, request, [&](size_t, size_t, CopyResult ended) { result = ended; });
    EXPECT_EQ(result, CopyResult::kFailed);
  }
  EXPECT_TRUE(remote_->posted.empty());
}

}  // namespace
}  // namespace tandem::kv
