// Every planted fault, at every level: who notices, who is aborted, and that nobody else is
// touched.
#include <array>

#include <gtest/gtest.h>

#include "engine/engine_fixture.h"
#include "observe/log.h"

namespace tandem::engine {
namespace {

using kv::IntegrityLevel;
using kv::KvFault;

class IntegrityTest : public EngineTest {
 protected:
  void SetUp() override { observe::set_log_level(observe::LogLevel::kOff); }
  void TearDown() override { observe::set_log_level(observe::LogLevel::kInfo); }
  void start_with(IntegrityLevel level, KvFault fault = KvFault::kNone, uint32_t after = 0,
                  EngineOptions options = {.prefill_chunk = 8, .max_sequences = 8},
                  int32_t pages = 80, int step_ms = 0) {
    options.integrity.level = level;
    options.integrity.faults = {.kind = fault, .after = after};
    start(pages, std::move(options), step_ms);
  }
  double incidents(const std::string& kind) {
    return metrics_
        .counter("tandem_kv_integrity_incidents_total",
                 "Pages that were not what their reader expected.", {{"kind", kind}})
        .value();
  }
  double incidents() {
    double all = 0;
    for (const char* kind : {"missing", "mapping", "generation", "owner", "position", "digest"})
      all += incidents(kind);
    return all;
  }
  // Waits until `kind` was found as often.
  void wait_for_incidents(const std::string& kind, double count) {
    for (int i = 0; i < 1000 && incidents(kind) < count; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(incidents(kind), count);
  }
  static std::string prompt_of(int i) {
    return "fact-" + std::to_string(10 + i) + " is what you are to remember now, number " +
           std::to_string(i) + ">";
  }
  static std::string answer_of(int i) { return "it is fact-" + std::to_string(10 + i) + "!"; }

  struct Batch {
    int right = 0;
    int wrong = 0;
    int refused = 0;
  };
  // Eight sequences at once. Whatever comes of a refused one is a prefix of its right answer.
  Batch run_batch() {
    std::vector<std::future<Collected>> futures;
    futures.reserve(8);
    for (int i = 0; i < 8; ++i) futures.push_back(run(request(prompt_of(i))));
    Batch batch;
    for (int i = 0; i < 8; ++i) {
      const Collected got = futures[static_cast<size_t>(i)].get();
      const std::string& text = got.choices.contains(0) ? got.choices.at(0).text : got.text;
      if (got.error) {
        EXPECT_EQ(got.error->code, "kv_integrity") << got.error->message;
        EXPECT_EQ(got.error->status, 500);
        EXPECT_TRUE(answer_of(i).starts_with(text)) << text;
        ++batch.refused;
      } else {
        ++(text == answer_of(i) ? batch.right : batch.wrong);
      }
    }
    wait_for_used(0);
    return batch;
  }
};

TEST_F(IntegrityTest, NothingIsFoundWhereNothingIsWrong) {
  for (const auto level : {IntegrityLevel::kTags, IntegrityLevel::kFull}) {
    for (const int in_flight : {1, 2, 3}) {
      for (const std::vector<int32_t>& windows :
           {std::vector<int32_t>{}, std::vector<int32_t>{16, 16, 5}}) {
        windows_ = windows;
        EngineOptions options{.prefill_chunk = 7, .max_sequences = 6, .max_in_flight = in_flight};
        start_with(level, KvFault::kNone, 0, options, windows.empty() ? 14 : 44);
        std::vector<std::future<Collected>> futures;
        for (int i = 0; i < 40; ++i) {
          const std::string middle(static_cast<size_t>(i * 31 % 70), 'y');
          futures.push_back(
              run(request("remember fact-" + std::to_string(i % 5 * 37) + " " + middle + " ok>")));
        }
        for (int i = 0; i < 40; ++i) {
          const Collected got = futures[static_cast<size_t>(i)].get();
          EXPECT_EQ(got.text, "it is fact-" + std::to_string(i % 5 * 37) + "!");
        }
        wait_for_used(0);
        EXPECT_EQ(incidents(), 0);
      }
    }
  }
}

struct Planted {
  KvFault fault;
  const char* kind;
  int most_refused;
};

class TagFaultTest : public IntegrityTest, public ::testing::WithParamInterface<Planted> {};
INSTANTIATE_TEST_SUITE_P(Faults, TagFaultTest,
                         ::testing::Values(Planted{KvFault::kSwapPages, "mapping", 2},
                                           Planted{KvFault::kFreeEarly, "generation", 1}),
                         [](const auto& at) { return std::string(at.param.kind); });

TEST_P(TagFaultTest, OffAnswersWrongly) {
  start_with(IntegrityLevel::kOff, GetParam().fault);
  const Batch batch = run_batch();
  EXPECT_GT(batch.wrong, 0) << "or the fault does no harm and the tests below prove nothing";
  EXPECT_EQ(batch.refused, 0);
}

TEST_P(TagFaultTest, TagsRefuseTheGuiltyOnly) {
  for (const auto level : {IntegrityLevel::kTags, IntegrityLevel::kFull}) {
    for (const int in_flight : {1, 2}) {
      for (const uint32_t after : {0U, 3U, 20U, 60U}) {
        const double before = incidents(GetParam().kind);
        start_with(level, GetParam().fault, after,
                   {.prefill_chunk = 8, .max_sequences = 8, .max_in_flight = in_flight});
        const Batch batch = run_batch();
        EXPECT_EQ(batch.wrong, 0) << after;
        EXPECT_GE(batch.refused, 1) << after;
        EXPECT_LE(batch.refused, GetParam().most_refused) << after;
        EXPECT_EQ(batch.right, 8 - batch.refused);
        EXPECT_EQ(incidents(GetParam().kind) - before, batch.refused);
        EXPECT_GT(engine_->stats().pages_quarantined, 0);
      }
    }
  }
}

TEST_F(IntegrityTest, AStaleCacheEntryIsRefused) {
  for (const auto level : {IntegrityLevel::kOff, IntegrityLevel::kTags, IntegrityLevel::kFull}) {
    start_with(level, KvFault::kStaleGeneration, 0, {.prefill_chunk = 64}, 80, 4);
    EXPECT_EQ(run(request(prompt_of(1))).get().text, answer_of(1));
    auto other = run(request(prompt_of(2)));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const Collected got = run(request(prompt_of(1) + "again>")).get();
    EXPECT_EQ(other.get().text, answer_of(2)) << "the other one's pages were only read";
    if (level == IntegrityLevel::kOff) {
      EXPECT_FALSE(got.error);
      EXPECT_NE(got.text, answer_of(1));
      continue;
    }
    ASSERT_TRUE(got.error) << got.text;
    EXPECT_EQ(got.error->code, "kv_integrity");
    EXPECT_TRUE(got.choices.empty()) << "no token left";
    wait_for_used(0);
    EXPECT_EQ(run(request(prompt_of(1) + "again>")).get().text, answer_of(1)) << "planted once";
  }
  EXPECT_EQ(incidents("generation"), 2);
}

class BytesFaultTest : public IntegrityTest, public ::testing::WithParamInterface<KvFault> {};
INSTANTIATE_TEST_SUITE_P(Faults, BytesFaultTest,
                         ::testing::Values(KvFault::kFlipBit, KvFault::kLostLayer));

TEST_P(BytesFaultTest, OnlyDigestsNoticeWrongBytes) {
  for (const auto level : {IntegrityLevel::kOff, IntegrityLevel::kTags}) {
    start_with(level, GetParam());
    EXPECT_EQ(run(request(prompt_of(1))).get().text, answer_of(1));
    const Collected got = run(request(prompt_of(1) + "again>")).get();
    EXPECT_NE(got.text, answer_of(1));
    EXPECT_FALSE(got.error);
  }
  EXPECT_EQ(incidents(), 0);
}

TEST_P(BytesFaultTest, FullRefusesWhoHitsThem) {
  for (const int in_flight : {1, 2}) {
    const double before = incidents("digest");
    // Not idle for one moment: the scrubber does not come first.
    start_with(IntegrityLevel::kFull, GetParam(), 0,
               {.prefill_chunk = 8, .max_in_flight = in_flight});
    auto first = run(request(prompt_of(1)));
    EXPECT_EQ(first.get().text, answer_of(1));
    auto other = run(request(prompt_of(5)));
    const Collected got = run(request(prompt_of(1) + "again>")).get();
    EXPECT_EQ(other.get().text, answer_of(5));
    EXPECT_EQ(incidents("digest") - before, 1);
    if (got.error) {
      EXPECT_EQ(got.error->code, "kv_integrity");
      EXPECT_TRUE(got.choices.empty()) << "no token left";
    } else {
      EXPECT_EQ(got.text, answer_of(1)) << "the scrubber came first: computed again";
    }
    const Collected again = run(request(prompt_of(1) + "again>")).get();
    EXPECT_EQ(again.text, answer_of(1)) << "the block left the cache";
    EXPECT_EQ(engine_->stats().pages_quarantined, 1);
  }
}

TEST_P(BytesFaultTest, TheScrubberFindsThem) {
  start_with(IntegrityLevel::kFull, GetParam());
  EXPECT_EQ(run(request(prompt_of(1))).get().text, answer_of(1));
  wait_for_incidents("digest", 1);
  const Collected got = run(request(prompt_of(1) + "again>")).get();
  EXPECT_EQ(got.text, answer_of(1));
  EXPECT_EQ(got.finish->usage.cached_tokens, 0) << "nothing below the bad block can be reached";
  EXPECT_EQ(incidents("digest"), 1);
}

TEST_F(IntegrityTest, WhoRunsOnABadPageIsRefusedOnceItIsFound) {
  script_.replies.insert(script_.replies.begin(), {.when = "long", .reply = std::string(300, 'z')});
  start_with(IntegrityLevel::kFull, KvFault::kFlipBit, 1, {.prefill_chunk = 64, .max_sequences = 8},
             120, 2);
  const std::string common = "fact-77 is shared by both of these requests, ";
  EXPECT_EQ(run(request(common + "one>")).get().text, "it is fact-77!");
  auto longer = run(request(common + "a long one>"));  // shares the first blocks
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_EQ(run(request(common + "two>")).get().text, "it is fact-77!");  // leaves: planted
  const Collected got = longer.get();
  ASSERT_TRUE(got.error);
  EXPECT_EQ(got.error->code, "kv_integrity");
  EXPECT_EQ(incidents("digest"), 1);
  EXPECT_EQ(run(request(common + "two>")).get().text, "it is fact-77!");
}

TEST_F(IntegrityTest, VerifyingFindsWhatIsWrongAndSaysHowMuchWasSeen) {
  start_with(IntegrityLevel::kFull, KvFault::kFlipBit, 2);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run(request(prompt_of(i))).get().text, answer_of(i));
  std::promise<VerifyProgress> promise;
  engine_->verify_cache([&](const Result<VerifyProgress>& progress) {
    ASSERT_TRUE(progress);
    if (progress->done) promise.set_value(*progress);
  });
  const VerifyProgress seen = promise.get_future().get();
  EXPECT_GE(seen.total, 20);
  EXPECT_EQ(seen.checked + seen.gone, seen.total);
  wait_for_incidents("digest", 1);
}

TEST_F(IntegrityTest, WithoutDigestsThereIsNothingToVerify) {
  start_with(IntegrityLevel::kTags);
  std::promise<Result<VerifyProgress>> promise;
  engine_->verify_cache(
      [&](const Result<VerifyProgress>& progress) { promise.set_value(progress); });
  const auto seen = promise.get_future().get();
  ASSERT_FALSE(seen);
  EXPECT_EQ(seen.error().code, "kv_integrity_off");
}

TEST_F(IntegrityTest, AFullQuarantineIsTold) {
  std::promise<void> full;
  EngineOptions options{.prefill_chunk = 8};
  options.integrity.level = IntegrityLevel::kFull;
  options.integrity.faults = {.kind = KvFault::kFlipBit};
  options.integrity.on_full = [&] { full.set_value(); };
  start(12, options);
  EXPECT_EQ(run(request(prompt_of(1))).get().text, answer_of(1));
  EXPECT_EQ(full.get_future().wait_for(std::chrono::seconds(5)), std::future_status::ready)
      << "an eighth of 12 pages is one";
}

TEST_F(IntegrityTest, TheCacheCanBeListedAndDropped) {
  start_with(IntegrityLevel::kTags);
  auto asked = request(prompt_of(1));
  asked.context.salt = "tenant";
  EXPECT_EQ(run(asked).get().text, answer_of(1));
  EXPECT_EQ(run(request(prompt_of(2))).get().text, answer_of(2));
  wait_for_used(0);
  const auto list = [&](KvListQuery query) {
    std::promise<KvListing> promise;
    engine_->list_cache(std::move(query),
                        [&](KvListing listing) { promise.set_value(std::move(listing)); });
    return promise.get_future().get();
  };
  const KvListing all = list({.limit = 1000});
  EXPECT_FALSE(all.more);
  ASSERT_GE(all.blocks.size(), 10U);
  const KvListing some = list({.limit = 3});
  ASSERT_EQ(some.blocks.size(), 3U);
  EXPECT_TRUE(some.more);
  EXPECT_EQ(some.blocks[2].id, all.blocks[2].id);
  const KvListing next = list({.after = some.blocks[2].id, .limit = 3});
  EXPECT_EQ(next.blocks[0].id, all.blocks[3].id);
  EXPECT_EQ(list({.prefix = all.blocks[4].id.substr(0, 12), .limit = 9}).blocks.size(), 1U);
  for (const auto& block : all.blocks) {
    EXPECT_EQ(block.tokens, 8);
    ASSERT_EQ(block.pages.size(), 1U);
    EXPECT_EQ(block.pages[0].state, kv::PageState::kPublished);
    EXPECT_EQ(block.pages[0].owners, 1U);
  }
  const auto drop = [&](KvDropQuery query) {
    std::promise<size_t> promise;
    engine_->drop_cache(std::move(query), [&](size_t blocks) { promise.set_value(blocks); });
    return promise.get_future().get();
  };
  const size_t salted = drop({.salt = "tenant"});
  EXPECT_GT(salted, 4U);
  EXPECT_EQ(drop({.salt = "tenant"}), 0U);
  EXPECT_EQ(drop({}), all.blocks.size() - salted);
  std::promise<KvStat> promise;
  engine_->cache_stat([&](const KvStat& stat) { promise.set_value(stat); });
  const KvStat stat = promise.get_future().get();
  EXPECT_EQ(stat.pages_total, 80);
  EXPECT_EQ(stat.pages_free, 80);
  EXPECT_EQ(stat.index_blocks, 0U);
  EXPECT_EQ(stat.level, IntegrityLevel::kTags);
}

}  // namespace
}  // namespace tandem::engine
