// Planted faults on the way from prefill to decode: what each level of --kv-integrity notices.
#include "observe/log.h"
#include "worker/handoff_node.h"
#include "worker/handoff_service.h"

namespace tandem::worker {
namespace {

using kv::IntegrityLevel;
using kv::KvFault;

const engine::Script kScript{.replies = {{"fact", "it is {echo:0}!"}, {"", "default reply"}}};

engine::GuardOptions guard(IntegrityLevel level, KvFault fault = KvFault::kNone, int32_t sample = 1,
                           uint32_t after = 0) {
  return {.level = level, .sample = sample, .faults = {.kind = fault, .after = after}};
}

HandoffServiceOptions in_copy(KvFault fault, uint32_t after = 0) {
  HandoffServiceOptions options;
  options.faults = {.kind = fault, .after = after};
  return options;
}

double incidents(Node& node, const std::string& kind) {
  return node.metrics
      .counter("tandem_kv_integrity_incidents_total",
               "Pages that were not what their reader expected.", {{"kind", kind}})
      .value();
}

void wait_for_incident(Node& node) {
  for (int i = 0; i < 500 && incidents(node, "digest") == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(incidents(node, "digest"), 1);
}

class HandoffIntegrity : public ::testing::Test {
 protected:
  void SetUp() override { observe::set_log_level(observe::LogLevel::kOff); }
  void TearDown() override { observe::set_log_level(observe::LogLevel::kInfo); }
  const std::string prompt_ = "please remember fact-123 for me, will you>";
};

class CopyFault : public HandoffIntegrity, public ::testing::WithParamInterface<KvFault> {};
INSTANTIATE_TEST_SUITE_P(Faults, CopyFault,
                         ::testing::Values(KvFault::kFlipBitInCopy, KvFault::kLostLayerInCopy));

TEST_P(CopyFault, WithoutDigestsDecodeAnswersWrongly) {
  for (const auto level : {IntegrityLevel::kOff, IntegrityLevel::kTags}) {
    Node prefill("ip", 64, 0, {}, {}, kScript, guard(level));
    Node decode("id", 64, 0, in_copy(GetParam()), {}, kScript, guard(level));
    auto report = prefill.prefill(prompt_, "h1");
    const Collected got = decode.decode(prompt_, "h1", prefill).get();
    EXPECT_FALSE(got.error);
    EXPECT_NE(got.text, "it is fact-123!");
    EXPECT_TRUE(report.get());
  }
}

TEST_P(CopyFault, DigestsEndTheHandoffBeforeItCommits) {
  for (const uint32_t after : {0U, 5U, 11U}) {  // 6 blocks in 2 layers
    Node prefill("ip", 64, 0, {}, {}, kScript, guard(IntegrityLevel::kFull));
    Node decode("id", 64, 0, in_copy(GetParam(), after), {}, kScript, guard(IntegrityLevel::kFull));
    auto report = prefill.prefill(prompt_, "h1");
    const Collected got = decode.decode(prompt_, "h1", prefill).get();
    ASSERT_TRUE(got.error) << after << " " << got.text;
    EXPECT_EQ(got.error->code, "kv_integrity");
    EXPECT_TRUE(got.choices.empty()) << "no token left";
    wait_for_incident(decode);
    EXPECT_EQ(incidents(prefill, "digest"), 0) << "its pages are good";
    // The blocks wait at prefill for another attempt.
    EXPECT_EQ(decode.decode(prompt_, "h1", prefill, 2).get().text, "it is fact-123!");
    EXPECT_TRUE(report.get());
    prefill.expect_empty();
    decode.expect_empty();
  }
}

TEST_F(HandoffIntegrity, WhatCameCanBeVerifiedHere) {
  for (const std::vector<int32_t>& windows : {std::vector<int32_t>{}, std::vector<int32_t>{16}}) {
    Node prefill("ip", 64, 0, {}, windows, kScript, guard(IntegrityLevel::kFull));
    Node decode("id", 64, 0, {}, windows, kScript, guard(IntegrityLevel::kFull));
    std::string prompt = prompt_;
    for (int turn = 0; turn < 3; ++turn) {
      const std::string id = "h" + std::to_string(turn);
      auto report = prefill.prefill(prompt, id);
      EXPECT_EQ(decode.decode(prompt, id, prefill).get().text, "it is fact-123!");
      EXPECT_TRUE(report.get());
      prompt += "it is fact-123! and?>";
    }
    for (Node* node : {&prefill, &decode}) {
      node->expect_empty();
      std::promise<engine::VerifyProgress> promise;
      node->engine->verify_cache([&](const Result<engine::VerifyProgress>& progress) {
        if (progress->done) promise.set_value(*progress);
      });
      const auto seen = promise.get_future().get();
      EXPECT_GE(seen.checked, 5);
      EXPECT_EQ(seen.checked, seen.total) << "every cached page has its digests";
      EXPECT_EQ(seen.bad, 0);
      EXPECT_EQ(incidents(*node, "digest"), 0);
    }
  }
}

// The hit is not among those that are sampled, but the page is described as it was computed.
TEST_F(HandoffIntegrity, ABlockThatWentBadInPrefillsCacheDoesNotTravel) {
  Node prefill("ip", 64, 0, {}, {}, kScript,
               guard(IntegrityLevel::kFull, KvFault::kFlipBit, 1000, 1));
  Node decode("id", 64, 0, {}, {}, kScript, guard(IntegrityLevel::kFull));
  Node other("io", 64, 0, {}, {}, kScript, guard(IntegrityLevel::kFull));
  for (const char* id : {"h0", "h1"}) {  // the first takes the sample; planted after the second
    auto report = prefill.prefill(prompt_, id);
    EXPECT_EQ(decode.decode(prompt_, id, prefill).get().text, "it is fact-123!");
    EXPECT_TRUE(report.get());
  }
  const std::string longer = prompt_ + " and more>";
  auto report = prefill.prefill(longer, "h2");
  const Collected got = other.decode(longer, "h2", prefill).get();
  if (got.error) {
    EXPECT_EQ(got.error->code, "kv_integrity");
    EXPECT_TRUE(got.choices.empty());
  } else {
    EXPECT_EQ(got.text, "it is fact-123!") << "the scrubber came first";
  }
  prefill.service->cancel_prefill("h2", {499, "client_closed_request", ""});
  (void)report.get();
  wait_for_incident(prefill);  // the sender looked at its own pages
  for (int i = 0; i < 500 && prefill.engine->stats().pages_quarantined == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(prefill.engine->stats().pages_quarantined, 1);
  report = prefill.prefill(longer, "h3");
  EXPECT_EQ(other.decode(longer, "h3", prefill).get().text, "it is fact-123!");
  EXPECT_TRUE(report.get());
}

// Eight pairs of legs at once; a table is mixed up in one of the two workers.
TEST_F(HandoffIntegrity, TagsEndTheGuiltyLegOnlyOnEitherSide) {
  struct Case {
    KvFault prefill, decode;
    uint32_t after;
  };
  for (const Case& at :
       {Case{KvFault::kSwapPages, KvFault::kNone, 2}, Case{KvFault::kFreeEarly, KvFault::kNone, 2},
        Case{KvFault::kNone, KvFault::kSwapPages, 5},
        Case{KvFault::kNone, KvFault::kFreeEarly, 5}}) {
    for (const auto level : {IntegrityLevel::kTags, IntegrityLevel::kFull}) {
      Node prefill("ip", 96, 1, {}, {}, kScript, guard(level, at.prefill, 1, at.after));
      Node decode("id", 96, 1, {}, {}, kScript, guard(level, at.decode, 1, at.after));
      std::vector<std::future<Result<PrefillReport>>> reports;
      std::vector<std::future<Collected>> answers;
      for (int i = 0; i < 8; ++i) {
        const std::string prompt =
            "fact-" + std::to_string(50 + i) + " is to be remembered by " + std::to_string(i) + ">";
        reports.push_back(prefill.prefill(prompt, "h" + std::to_string(i)));
        answers.push_back(decode.decode(prompt, "h" + std::to_string(i), prefill));
      }
      int refused = 0;
      for (int i = 0; i < 8; ++i) {
        const Collected got = answers[static_cast<size_t>(i)].get();
        const std::string right = "it is fact-" + std::to_string(50 + i) + "!";
        if (got.error) {
          ++refused;
          // Also when decode dials after the guilty prefill leg's end, as on a slow machine.
          EXPECT_EQ(got.error->code, "kv_integrity") << got.error->message;
          const std::string text = got.choices.contains(0) ? got.choices.at(0).text : "";
          EXPECT_TRUE(right.starts_with(text)) << text;
        } else {
          EXPECT_EQ(got.text, right);
        }
        (void)reports[static_cast<size_t>(i)].get();
      }
      EXPECT_GE(refused, 1);
      EXPECT_LE(refused, 2);
      prefill.expect_empty();
      decode.expect_empty();
    }
  }
}

}  // namespace
}  // namespace tandem::worker
