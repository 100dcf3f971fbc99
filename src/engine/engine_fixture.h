// An engine over the scripted model, one byte a token, for tests.
#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine_test_support.h"
#include "engine/scripted_model.h"
#include "ops/page_layout.h"

namespace tandem::engine {

class EngineTest : public ::testing::Test {
 protected:
  void start(int32_t pages, EngineOptions options = {}, int step_ms = 0) {
    script_.marker = ">";
    script_.step_ms = step_ms;
    script_.windows = windows_;
    script_.context_length = 512;
    tokenizer_ = byte_tokenizer(merges_);
    auto model = wrap(make_scripted_model(script_, tokenizer_, 64));
    engine_.reset();
    view_.layout = model->page_layout(8);
    view_.stride = view_.layout.page_bytes();
    view_.page_count = pages;
    memory_.assign(view_.stride * static_cast<size_t>(pages), std::byte{0x7F});
    view_.base = memory_.data();
    options.lineage = "test";
    engine_ =
        std::make_unique<Engine>(std::move(model), tokenizer_, view_, nullptr, options, metrics_);
  }

  protocol::GenerateRequest request(const std::string& prompt) const {
    protocol::GenerateRequest out;
    out.prompt = tokenizer_->encode(prompt);
    out.sampling.temperature = 0;
    return out;
  }

  std::future<Collected> run(protocol::GenerateRequest request) {
    const auto choices = static_cast<size_t>(request.sampling.n);
    auto promise = std::make_shared<std::promise<Collected>>();
    auto collected = std::make_shared<Collected>();
    auto future = promise->get_future();
    auto id = engine_->generate(std::move(request), collect_into(collected, promise, choices));
    if (!id) {
      collected->error = id.error();
      promise->set_value(*collected);
    }
    return future;
  }

  void wait_for_used(int32_t pages) {
    for (int i = 0; i < 500 && engine_->stats().pages_used != pages; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(engine_->stats().pages_used, pages);
  }

  // For tests that watch the model.
  virtual std::unique_ptr<model::Model> wrap(std::unique_ptr<model::Model> model) { return model; }

  Script script_{.replies = {{"fox", "the brown own fox jumps"},
                             {"fact", "it is {echo:0}!"},
                             {"", "default reply"}}};
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::vector<std::string> merges_;  // of the tokenizer
  std::vector<int32_t> windows_;     // of the model's layers after the first
  std::vector<std::byte> memory_;
  ops::PageArenaView view_;
  observe::Metrics metrics_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace tandem::engine
