#include "worker/handoff_service.h"

#include <random>

#include "worker/handoff_node.h"

namespace tandem::worker {
namespace {

TEST(HandoffService, ADecodeWorkerGoesOnWhereThePrefillWorkerStopped) {
  Node prefill("p", 64, 0);
  Node decode("d", 64, 0);
  const std::string prompt = "please remember fact-123 for me>";
  auto report = prefill.prefill(prompt, "h1");
  const Collected got = decode.decode(prompt, "h1", prefill).get();
  EXPECT_EQ(got.text, "it is fact-123!");
  EXPECT_EQ(got.finish->usage.prompt_tokens, 32);
  const auto sent = report.get();
  ASSERT_TRUE(sent) << sent.error().message;
  EXPECT_EQ(sent->blocks_sent, 4U);
  EXPECT_EQ(sent->kv_bytes, 4 * decode.engine->layout().page_bytes());
  prefill.expect_empty();
  decode.expect_empty();
  // The same prefix again: only what decode lacks is sent, and prefill reuses its own.
  const std::string longer = prompt + "it is fact-123! and then?>";
  report = prefill.prefill(longer, "h2");
  EXPECT_EQ(decode.decode(longer, "h2", prefill).get().text, "it is fact-123!");
  const auto second = report.get();
  ASSERT_TRUE(second);
  EXPECT_EQ(second->cached_tokens, 32);
  EXPECT_EQ(second->blocks_sent, 3U)
      << "decode holds 32 tokens of prompt and 14 of its own answer: five blocks of eight";
}

// Of a layer with a window only what is live at the prompt's end is sent, and the answer is the
// same as in one worker.
TEST(HandoffService, AWindowSendsOnlyWhatIsLive) {
  Node prefill("p", 80, 0, {}, {16});
  Node decode("d", 80, 0, {}, {16});
  std::string prompt = "please remember fact-123 and " + std::string(102, 'x') + ">";
  ASSERT_EQ(prompt.size(), 132U);
  auto report = prefill.prefill(prompt, "h1");
  EXPECT_EQ(decode.decode(prompt, "h1", prefill).get().text, "it is fact-123!");
  auto sent = report.get();
  ASSERT_TRUE(sent) << sent.error().message;
  const uint64_t page = decode.engine->layout().page_bytes();
  EXPECT_EQ(sent->kv_bytes, (17 + 3) * page)
      << "all 17 blocks of the first layer; the row at 132 sees 117 to 132, from block 14 on";
  prefill.expect_empty();
  decode.expect_empty();
  // The next turn: decode has 146 tokens, 18 blocks; the new prompt has 158, 20 blocks.
  prompt += "it is fact-123! and more?>";
  report = prefill.prefill(prompt, "h2");
  EXPECT_EQ(decode.decode(prompt, "h2", prefill).get().text, "it is fact-123!");
  sent = report.get();
  ASSERT_TRUE(sent) << sent.error().message;
  EXPECT_EQ(sent->cached_tokens, 128);
  EXPECT_EQ(sent->kv_bytes, (2 + 2) * page);
  prefill.expect_empty();
  decode.expect_empty();
}

TEST(HandoffService, WithWindowsAPairEqualsOneWorker) {
  Node prefill("p", 120, 0, {}, {24, 7});
  Node decode("d", 60, 0, {}, {24, 7});
  std::mt19937 random(7);
  for (int round = 0; round < 8; ++round) {
    std::vector<std::future<Result<PrefillReport>>> reports;
    std::vector<std::future<Collected>> answers;
    for (int i = 0; i < 6; ++i) {
      const std::string id = "h" + std::to_string(round) + "-" + std::to_string(i);
      const std::string prompt = "remember fact-" + std::to_string(i) + " " +
                                 std::string(random() % 90, static_cast<char>('a' + i)) + ">";
      reports.push_back(prefill.prefill(prompt, id));
      answers.push_back(decode.decode(prompt, id, prefill));
    }
    for (int i = 0; i < 6; ++i) {
      const Collected got = answers[static_cast<size_t>(i)].get();
      ASSERT_FALSE(got.error) << got.error->message;
      EXPECT_EQ(got.text, "it is fact-" + std::to_string(i) + "!");
      (void)reports[static_cast<size_t>(i)].get();
    }
  }
  prefill.expect_empty();
  decode.expect_empty();
}

TEST(HandoffService, EitherLegMayComeFirst) {
  Node prefill("p", 64, 2);
  Node decode("d", 64, 0);
  auto early = decode.decode("fact-1 early>", "h1", prefill);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  auto report = prefill.prefill("fact-1 early>", "h1");
  EXPECT_EQ(early.get().text, "it is fact-1!");
  EXPECT_TRUE(report.get());
  report = prefill.prefill("fact-2 late>", "h2");
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(decode.decode("fact-2 late>", "h2", prefill).get().text, "it is fact-2!");
  EXPECT_TRUE(report.get());
}

// A replacement has dialed; the farewell of the one it replaces comes late, and so may its dial.
TEST(HandoffService, AnOlderAttemptDoesNotDisplaceTheOneThatWaits) {
  Node prefill("p", 64, 0);
  Node first("f", 64, 0);
  Node second("s", 64, 0);
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); };
  std::shared_ptr<HandoffService::DecodeLeg> leg;
  auto replaced = first.decode("fact-3 x>", "h1", prefill, 1, &leg);
  pause();
  auto answer = second.decode("fact-3 x>", "h1", prefill, 2);
  pause();
  first.service->cancel_decode(leg);
  pause();
  auto report = prefill.prefill("fact-3 x>", "h1");
  ASSERT_EQ(answer.wait_for(std::chrono::seconds(5)), std::future_status::ready);
  EXPECT_EQ(answer.get().text, "it is fact-3!");
  EXPECT_TRUE(report.get());
  answer = second.decode("fact-4 x>", "h2", prefill, 2);
  pause();
  replaced = first.decode("fact-4 x>", "h2", prefill, 1);
  EXPECT_EQ(replaced.wait_for(std::chrono::seconds(2)), std::future_status::ready)
      << "it is told at once";
  report = prefill.prefill("fact-4 x>", "h2");
  ASSERT_EQ(answer.wait_for(std::chrono::seconds(5)), std::future_status::ready);
  EXPECT_EQ(answer.get().text, "it is fact-4!");
  EXPECT_TRUE(report.get());
}

TEST(HandoffService, AnotherAttemptTakesTheBlocksOver) {
  Node prefill("p", 64, 0);
  Node full("f", 4, 0);
  Node decode("d", 64, 0);
  const std::string prompt = "a prompt with fact-9 that needs more than four pages of memory>";
  auto report = prefill.prefill(prompt, "h1");
  const Collected busy = full.decode(prompt, "h1", prefill).get();
  ASSERT_TRUE(busy.error);
  EXPECT_EQ(busy.error->status, 503);
  EXPECT_EQ(decode.decode(prompt, "h1", prefill, 2).get().text, "it is fact-9!");
  EXPECT_TRUE(report.get());
  prefill.expect_empty();
  full.expect_empty();
}

TEST(HandoffService, CancellingEitherSideLeavesNoPage) {
  Node prefill("p", 128, 5);
  Node decode("d", 128, 1);
  std::mt19937 random(1);
  for (int i = 0; i < 30; ++i) {
    const std::string id = "h" + std::to_string(i);
    const std::string prompt =
        "number fact-" + std::to_string(i) + " " + std::string(random() % 60, 'x') + ">";
    auto report = prefill.prefill(prompt, id);
    std::shared_ptr<HandoffService::DecodeLeg> leg;
    const auto answer = decode.decode(prompt, id, prefill, 1, &leg);
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 60));
    if (random() % 2 != 0) {
      decode.service->cancel_decode(leg);
      prefill.service->cancel_prefill(id, Error{499, "client_closed_request", "gone"});
    } else {
      prefill.service->cancel_prefill(id, Error{499, "client_closed_request", "gone"});
      EXPECT_EQ(answer.wait_for(std::chrono::seconds(1)), std::future_status::ready)
          << "decode is told, and at once";
    }
    (void)report.get();
  }
  prefill.expect_empty();
  decode.expect_empty();
}

// As on two hosts: frames and pages over TCP, nothing shared.
TEST(HandoffService, OverTcpAPairEqualsOneWorker) {
  HandoffServiceOptions options;
  options.listen = "tcp:127.0.0.1:0";
  options.transports.choice = "tcp";
  options.peer.secret = "secret";
  Node prefill("p", 120, 0, options, {24, 7});
  Node decode("d", 60, 0, options, {24, 7});
  EXPECT_TRUE(prefill.service->address().starts_with("tcp:127.0.0.1:"));
  for (int round = 0; round < 4; ++round) {
    std::vector<std::future<Result<PrefillReport>>> reports;
    std::vector<std::future<Collected>> answers;
    for (int i = 0; i < 6; ++i) {
      const std::string id = "h" + std::to_string(round) + "-" + std::to_string(i);
      const std::string prompt = "remember fact-" + std::to_string(i) + " " +
                                 std::string(static_cast<size_t>(17 * i), 'x') + ">";
      reports.push_back(prefill.prefill(prompt, id));
      answers.push_back(decode.decode(prompt, id, prefill));
    }
    for (int i = 0; i < 6; ++i) {
      const Collected got = answers[static_cast<size_t>(i)].get();
      ASSERT_FALSE(got.error) << got.error->message;
      EXPECT_EQ(got.text, "it is fact-" + std::to_string(i) + "!");
      EXPECT_TRUE(reports[static_cast<size_t>(i)].get());
    }
  }
  prefill.expect_empty();
  decode.expect_empty();
}

TEST(HandoffService, AnAdvertisedHostIsWhatDecodeDials) {
  HandoffServiceOptions options;
  options.listen = "tcp:0.0.0.0:0";
  options.advertised_host = "localhost";
  options.transports.choice = "tcp";
  Node prefill("p", 64, 0, options);
  Node decode("d", 64, 0, options);
  EXPECT_TRUE(prefill.service->address().starts_with("tcp:localhost:"));
  auto report = prefill.prefill("fact-1 x>", "h1");
  EXPECT_EQ(decode.decode("fact-1 x>", "h1", prefill).get().text, "it is fact-1!");
  EXPECT_TRUE(report.get());
}

TEST(HandoffService, WorkersWithoutACommonTransportRefuse) {
  HandoffServiceOptions options;
  options.transports.choice = "tcp";
  Node prefill("p", 64, 0, options);
  options.transports.choice = "shm";
  Node decode("d", 64, 0, options);
  auto report = prefill.prefill("fact-1 x>", "h1");
  const Collected got = decode.decode("fact-1 x>", "h1", prefill).get();
  ASSERT_TRUE(got.error);
  EXPECT_EQ(got.error->code, "handoff_refused");
  EXPECT_NE(got.error->message.find("(tcp against shm)"), std::string::npos) << got.error->message;
  prefill.service->cancel_prefill("h1", Error{499, "client_closed_request", "gone"});
  (void)report.get();
  prefill.expect_empty();
}

TEST(HandoffService, APrefillThatNobodyTakesEndsWithItsLease) {
  HandoffServiceOptions options;
  options.timeouts.lease = std::chrono::milliseconds(200);
  Node prefill("p", 64, 0, options);
  const auto report = prefill.prefill("nobody comes>", "h1").get();
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, "handoff_timeout");
  prefill.expect_empty();
}

// Neither the one that dialed before nor those that dial afterwards wait for what will not come.
TEST(HandoffService, WhyAPrefillEndedIsToldAtOnceToWhoeverDials) {
  Node prefill("p", 64, 5);
  Node decode("d", 64, 0);
  const auto start = std::chrono::steady_clock::now();
  auto report = prefill.prefill("a prompt with fact-1 for nobody>", "h1");
  prefill.service->cancel_prefill("h1", Error{499, "client_closed_request", "gone"});
  EXPECT_FALSE(report.get());
  for (const uint32_t attempt : {1U, 2U}) {
    const Collected got =
        decode.decode("a prompt with fact-1 for nobody>", "h1", prefill, attempt).get();
    ASSERT_TRUE(got.error);
    EXPECT_EQ(got.error->code, "client_closed_request");
  }
  auto early = decode.decode("fact-2>", "h2", prefill);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  auto refused = prefill.request("fact-2>", "h2");
  refused.sampling.prompt_logprobs = 1;
  EXPECT_FALSE(prefill.prefill(refused).get());
  const Collected told = early.get();
  ASSERT_TRUE(told.error);
  EXPECT_EQ(told.error->status, 502) << "what prefill says is not the client's fault";
  EXPECT_NE(told.error->code, "handoff_timeout");
  // The same id may begin anew.
  for (int round = 0; round < 2; ++round) {
    report = prefill.prefill("fact-3 x>", "h2");
    EXPECT_EQ(decode.decode("fact-3 x>", "h2", prefill).get().text, "it is fact-3!");
    EXPECT_TRUE(report.get());
    EXPECT_EQ(decode.decode("fact-3 x>", "h2", prefill, 2).get().error->code, "handoff_closed");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  prefill.expect_empty();
  decode.expect_empty();
}

TEST(HandoffService, ADeadPrefillWorkerIsAnErrorAtOnce) {
  auto prefill = std::make_unique<Node>("p", 64, 100);
  Node decode("d", 64, 0);
  const auto report =
      prefill->prefill("a long prompt with fact-4 that takes a while to compute>", "h1");
  auto answer =
      decode.decode("a long prompt with fact-4 that takes a while to compute>", "h1", *prefill);
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  const auto before = std::chrono::steady_clock::now();
  prefill.reset();
  EXPECT_EQ(report.wait_for(std::chrono::seconds(1)), std::future_status::ready);
  const Collected got = answer.get();
  ASSERT_TRUE(got.error);
  EXPECT_EQ(got.error->status, 502);
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(1));
  decode.expect_empty();
  // And one that is not there at all.
  Node other("o", 64, 0);
  const std::string address = other.service->address();
  auto asked = decode.request("x>", "h2");
  asked.handoff.prefill_address = address + ".absent";
  auto promise = std::make_shared<std::promise<Collected>>();
  auto future = promise->get_future();
  (void)decode.service->start_decode(asked, collect_into(std::make_shared<Collected>(), promise));
  EXPECT_EQ(future.get().error->status, 502);
}

TEST(HandoffService, ManyAtOnceKeepTheirFactsApart) {
  Node prefill("p", 40, 0);
  Node decode("d", 12, 0);  // room for two or three at a time
  std::vector<std::future<Result<PrefillReport>>> reports;
  std::vector<std::future<Collected>> answers;
  for (int i = 0; i < 12; ++i) {
    const std::string id = "h" + std::to_string(i);
    const std::string prompt = "remember fact-" + std::to_string(1000 + i * 7) + " now>";
    reports.push_back(prefill.prefill(prompt, id));
    answers.push_back(decode.decode(prompt, id, prefill));
  }
  for (int i = 0; i < 12; ++i) {
    const Collected got = answers[static_cast<size_t>(i)].get();
    ASSERT_FALSE(got.error) << got.error->message << " (one that finds no memory waits for it)";
    EXPECT_EQ(got.text, "it is fact-" + std::to_string(1000 + i * 7) + "!");
    (void)reports[static_cast<size_t>(i)].get();
  }
  prefill.expect_empty();
  decode.expect_empty();
}

}  // namespace
}  // namespace tandem::worker
