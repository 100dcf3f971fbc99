#include "engine/engine.h"

#include <condition_variable>

#include <gtest/gtest.h>

#include "engine/engine_fixture.h"

namespace tandem::engine {
namespace {

TEST_F(EngineTest, StreamsTheReplyAndReturnsItsPages) {
  start(32);
  const Collected got = run(request("hello>")).get();
  EXPECT_EQ(got.text, "default reply");
  ASSERT_TRUE(got.finish);
  EXPECT_EQ(got.finish->reason, protocol::FinishReason::kStop);
  EXPECT_EQ(got.finish->usage.prompt_tokens, 6);
  EXPECT_EQ(got.finish->usage.completion_tokens, 14)
      << "the token that ends the turn was generated too";
  wait_for_used(0);
}

TEST_F(EngineTest, ReusesWhatItGenerated) {
  start(32);
  (void)run(request("hello there, my friend>")).get();
  const std::string second = "hello there, my friend>default reply and more>";
  const Collected got = run(request(second)).get();
  EXPECT_EQ(got.finish->usage.cached_tokens, 32)
      << "36 tokens were computed: four whole blocks of eight";
}

TEST_F(EngineTest, StopsAtAStringAcrossTokens) {
  start(32);
  auto asked = request("fox>");
  asked.sampling.stop = {"own fox"};
  const Collected got = run(asked).get();
  EXPECT_EQ(got.text, "the brown ");
  EXPECT_EQ(got.finish->stop_string, "own fox");
  wait_for_used(0);
}

TEST_F(EngineTest, CountsLengthAndKeepsHeldText) {
  start(32);
  auto asked = request("fox>");
  asked.sampling.max_tokens = 12;
  asked.sampling.stop = {"own fox"};
  const Collected got = run(asked).get();
  EXPECT_EQ(got.text, "the brown ow");
  EXPECT_EQ(got.finish->reason, protocol::FinishReason::kLength);
  EXPECT_EQ(got.finish->usage.completion_tokens, 12);
}

TEST_F(EngineTest, ManySequencesInLittleMemoryAllFinishRight) {
  for (const int in_flight : {1, 2}) {
    start(14, EngineOptions{.prefill_chunk = 7, .max_sequences = 6, .max_in_flight = in_flight});
    std::vector<std::future<Collected>> futures;
    futures.reserve(30);
    for (int i = 0; i < 30; ++i)
      futures.push_back(run(request("remember fact-" + std::to_string(i * 37) + " ok>")));
    for (int i = 0; i < 30; ++i) {
      const Collected got = futures[static_cast<size_t>(i)].get();
      EXPECT_EQ(got.text, "it is fact-" + std::to_string(i * 37) + "!");
    }
    wait_for_used(0);
  }
}

// What a layer with a window no longer sees takes no memory: the prompt alone has 26 blocks in each
// of two groups, and all pages together are 34.
TEST_F(EngineTest, AWindowHoldsOnlyWhatIsLive) {
  windows_ = {16};
  start(34, EngineOptions{.prefill_chunk = 8});
  EXPECT_EQ(engine_->context_length(), 28 * 8) << "six pages for 16 + 16 + 8 tokens in the second";
  const std::string prompt = "remember fact-77 and " + std::string(180, 'x') + " now>";
  const Collected got = run(request(prompt)).get();
  EXPECT_EQ(got.text, "it is fact-77!");
  wait_for_used(0);
  EXPECT_NE(metrics_.render().find("tandem_kv_window_pages_passed_total 23"), std::string::npos)
      << metrics_.render();
}

TEST_F(EngineTest, ATooLongPassIsCutToTheWindow) {
  windows_ = {16};
  start(200, EngineOptions{.prefill_chunk = 100000});
  EXPECT_EQ(engine_->context_length(), 512);
  const Collected got = run(request("remember fact-5 and " + std::string(460, 'x') + ">")).get();
  EXPECT_EQ(got.text, "it is fact-5!");
}

TEST_F(EngineTest, WithWindowsCachedEqualsCold) {
  for (const int in_flight : {1, 2}) {
    for (const int chunk : {1, 7, 16, 64}) {
      windows_ = {24, 9};
      start(200, EngineOptions{.prefill_chunk = chunk, .max_in_flight = in_flight});
      std::string history;
      for (int turn = 0; turn < 4; ++turn) {
        const std::string fact = "fact-" + std::to_string(turn);
        history += (turn == 0 ? fact : " say more") + " please " + std::string(30, 'x') + ">";
        const Collected got = run(request(history)).get();
        EXPECT_EQ(got.text, "it is fact-0!");
        const auto cached = static_cast<size_t>(got.finish->usage.cached_tokens);
        if (turn > 0) {
          EXPECT_GE(cached, history.size() - 65) << "all of the turn before but its last block";
        }
        history += got.text;
      }
      wait_for_used(0);
    }
  }
}

TEST_F(EngineTest, WithWindowsManySequencesInLittleMemoryAllFinishRight) {
  for (const int in_flight : {1, 2}) {
    windows_ = {16, 16, 5};
    start(44, EngineOptions{.prefill_chunk = 7, .max_sequences = 6, .max_in_flight = in_flight});
    std::vector<std::future<Collected>> futures;
    for (int i = 0; i < 40; ++i) {
      // Long and short ones, some with a common beginning.
      const std::string middle(static_cast<size_t>(i * 31 % 70), 'y');
      futures.push_back(
          run(request("remember fact-" + std::to_string(i % 5 * 37) + " " + middle + " ok>")));
    }
    for (int i = 0; i < 40; ++i) {
      const Collected got = futures[static_cast<size_t>(i)].get();
      EXPECT_EQ(got.text, "it is fact-" + std::to_string(i % 5 * 37) + "!");
    }
    wait_for_used(0);
  }
}

TEST_F(EngineTest, RefusesWhatCannotFit) {
  start(4);
  const Collected got = run(request(std::string(40, 'x'))).get();
  ASSERT_TRUE(got.error);
  EXPECT_EQ(got.error->code, "context_length_exceeded");
  EXPECT_NE(got.error->message.find("maximum context length is 32 tokens"), std::string::npos);
  auto bad = request("x");
  bad.prompt = {1, 99999};
  EXPECT_EQ(run(bad).get().error->status, 400);
  bad.prompt = {};
  EXPECT_EQ(run(bad).get().error->status, 400);
}

TEST_F(EngineTest, AbortFreesPagesWithinAStep) {
  start(64, {}, 20);
  auto id = engine_->generate(request("fox>"), [](const protocol::TokenEvent&) {});
  ASSERT_TRUE(id);
  for (int i = 0; i < 200 && engine_->stats().pages_used == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_GT(engine_->stats().pages_used, 0);
  engine_->abort(*id);
  wait_for_used(0);
}

TEST_F(EngineTest, APrefillLegHoldsItsPagesUntilReleased) {
  start(32, EngineOptions{.prefill_chunk = 8});
  std::mutex mutex;
  std::condition_variable wake;
  std::vector<PageTag> pages;
  std::vector<int32_t> first;
  std::map<int32_t, int32_t> progress;
  auto id = engine_->prefill(request("remember fact-1 please>"), [&](PrefillEvent event) {
    const std::lock_guard lock(mutex);
    if (auto* more = std::get_if<PrefillPages>(&event))
      pages.insert(pages.end(), more->pages.begin(), more->pages.end());
    if (auto* layer = std::get_if<LayerProgress>(&event)) progress[layer->layer] = layer->end_token;
    if (auto* done = std::get_if<PrefillDone>(&event)) first = {done->first_tokens.front().token};
    wake.notify_all();
  });
  ASSERT_TRUE(id);
  std::unique_lock lock(mutex);
  ASSERT_TRUE(wake.wait_for(lock, std::chrono::seconds(5), [&] { return !first.empty(); }));
  EXPECT_EQ(pages.size(), 3U) << "one for each block";
  EXPECT_EQ(progress, (std::map<int32_t, int32_t>{{0, 23}, {1, 23}}));
  EXPECT_EQ(tokenizer_->decode(first), "i");
  lock.unlock();
  wait_for_used(3);
  engine_->release_held(*id);
  wait_for_used(0);
}

TEST_F(EngineTest, AReceivedSequenceGoesOnWhereTheOtherWorkerStopped) {
  start(32);
  const auto asked = request("remember fact-7 please>");
  // What a prefill worker would send: the pages' bytes after its passes.
  (void)run(asked).get();
  std::promise<Received> reserved;
  engine_->reserve(asked.prompt, {.salt = "other"}, Duration::zero(),
                   [&](std::optional<Received> got) { reserved.set_value(*got); });
  const Received received = reserved.get_future().get();
  EXPECT_EQ(received.first_missing, std::vector<uint32_t>{0}) << "another salt shares nothing";
  for (size_t i = 0; i < asked.prompt.size(); ++i) {
    for (int layer = 0; layer < 2; ++layer) {
      auto* slot = reinterpret_cast<float*>(view_.page(received.pages[i / 8].page) +
                                            view_.layout.k_offset(layer, 0)) +
                   i % 8;
      *slot = static_cast<float>(asked.prompt[i] + layer);
    }
  }
  auto promise = std::make_shared<std::promise<Collected>>();
  auto collected = std::make_shared<Collected>();
  auto future = promise->get_future();
  auto continued = asked;
  continued.context.salt = "other";
  std::atomic<bool> started = false;
  engine_->start_received(received.id, continued, {{.token = tokenizer_->encode("i").front()}}, 5,
                          {}, collect_into(collected, promise), [&] { started = true; });
  const Collected got = future.get();
  EXPECT_TRUE(started);
  EXPECT_EQ(got.text, "it is fact-7!");
  EXPECT_EQ(got.finish->usage.cached_tokens, 5);
  wait_for_used(0);
}

// Such a token would fail a pass, and everybody in it.
TEST_F(EngineTest, AReceivedFirstTokenOutsideTheVocabularyIsRefused) {
  start(32);
  for (const int32_t token : {-1, 257, INT32_MAX}) {
    const auto asked = request("remember fact-7 please>");
    std::promise<Received> reserved;
    engine_->reserve(asked.prompt, {}, Duration::zero(),
                     [&](std::optional<Received> got) { reserved.set_value(*got); });
    const Received received = reserved.get_future().get();
    auto promise = std::make_shared<std::promise<Collected>>();
    auto future = promise->get_future();
    engine_->start_received(received.id, asked, {{.token = token}}, 0, {},
                            collect_into(std::make_shared<Collected>(), promise), [] {});
    const Collected got = future.get();
    ASSERT_TRUE(got.error);
    EXPECT_EQ(got.error->status, 502);
    wait_for_used(0);
  }
}

// A stream of handoffs must not starve a sequence that waits for memory here (a preempted one,
// say).
TEST_F(EngineTest, AHandoffDoesNotTakeThePagesAWaitingSequenceNeeds) {
  start(8, {}, 20);
  auto running = request("fox fox fox fox fox fox fox fox>");  // four pages and more
  auto first = run(running);
  for (int i = 0; i < 200 && engine_->stats().running == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  auto second = run(request(std::string(38, 'y') + ">"));  // five pages: it waits
  for (int i = 0; i < 200 && engine_->stats().waiting == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_EQ(engine_->stats().waiting, 1);
  std::promise<std::optional<Received>> reserved;
  engine_->reserve(std::vector<int32_t>(8, 65), {}, Duration::zero(),
                   [&](std::optional<Received> got) { reserved.set_value(std::move(got)); });
  EXPECT_FALSE(reserved.get_future().get());
  EXPECT_EQ(first.get().text, "the brown own fox jumps");
  EXPECT_EQ(second.get().text, "default reply");
}

TEST_F(EngineTest, AnAbandonedReservationReturnsItsPages) {
  start(8);
  std::promise<std::optional<Received>> reserved;
  engine_->reserve(std::vector<int32_t>(20, 65), {}, Duration::zero(),
                   [&](std::optional<Received> got) { reserved.set_value(std::move(got)); });
  const auto received = reserved.get_future().get();
  ASSERT_TRUE(received);
  wait_for_used(3);
  std::promise<bool> second;
  engine_->reserve(std::vector<int32_t>(48, 66), {}, Duration::zero(),
                   [&](const std::optional<Received>& got) { second.set_value(got.has_value()); });
  EXPECT_FALSE(second.get_future().get()) << "busy";
  engine_->abandon_received(received->id);
  wait_for_used(0);
}

TEST_F(EngineTest, AReservationThatIsAbandonedLeavesTheQueueAtOnce) {
  start(8);
  std::promise<Received> first;
  engine_->reserve(std::vector<int32_t>(48, 65), {}, Duration::zero(),
                   [&](std::optional<Received> got) { first.set_value(*got); });
  const Received held = first.get_future().get();
  std::promise<bool> cancelled;
  std::promise<bool> behind;
  const auto waits = engine_->reserve(
      std::vector<int32_t>(56, 66), {}, std::chrono::hours(1),
      [&](const std::optional<Received>& got) { cancelled.set_value(got.has_value()); });
  engine_->reserve(std::vector<int32_t>(8, 67), {}, std::chrono::hours(1),
                   [&](const std::optional<Received>& got) { behind.set_value(got.has_value()); });
  engine_->abandon_received(waits);
  EXPECT_FALSE(cancelled.get_future().get());
  EXPECT_TRUE(behind.get_future().get()) << "what waited behind it has room";
  engine_->abandon_received(held.id);
}

TEST_F(EngineTest, AHandoffWaitsForMemoryInItsTurn) {
  start(8);
  std::promise<Received> first;
  engine_->reserve(std::vector<int32_t>(48, 65), {}, Duration::zero(),
                   [&](std::optional<Received> got) { first.set_value(*got); });
  const Received held = first.get_future().get();
  std::promise<bool> large;
  std::promise<bool> small;
  std::promise<bool> late;
  std::mutex mutex;
  std::vector<std::string> order;
  const auto note = [&](const std::string& name, std::promise<bool>& promise) {
    return [&, name](const std::optional<Received>& got) {
      const std::lock_guard lock(mutex);
      order.push_back(name);
      promise.set_value(got.has_value());
    };
  };
  engine_->reserve(std::vector<int32_t>(40, 66), {}, std::chrono::seconds(20),
                   note("large", large));
  engine_->reserve(std::vector<int32_t>(8, 67), {}, std::chrono::seconds(20), note("small", small));
  engine_->reserve(std::vector<int32_t>(40, 68), {}, std::chrono::milliseconds(100),
                   note("late", late));
  EXPECT_FALSE(late.get_future().get()) << "its time passed";
  engine_->abandon_received(held.id);
  EXPECT_TRUE(large.get_future().get());
  EXPECT_TRUE(small.get_future().get());
  EXPECT_EQ(order, (std::vector<std::string>{"late", "large", "small"}));
}

}  // namespace
}  // namespace tandem::engine
