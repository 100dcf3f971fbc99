// A worker without HTTP, for tests of handoffs.
#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "engine/engine_test_support.h"
#include "engine/scripted_model.h"
#include "numerics/hmac.h"
#include "worker/handoff_service.h"

namespace tandem::worker {

using engine::collect_into;
using engine::Collected;

// One worker without HTTP: an engine over a shared arena, and its handoff service.
struct Node {
  Node(const std::string& name, int32_t pages, int step_ms, HandoffServiceOptions options = {},
       std::vector<int32_t> windows = {},
       engine::Script script = {.replies = {{"fact", "it is {echo:0}!"}, {"", "default reply"}}},
       engine::GuardOptions integrity = {}) {
    script.marker = ">";
    script.windows = std::move(windows);
    script.step_ms = step_ms;
    script.context_length = 512;
    tokenizer = engine::byte_tokenizer();
    auto model = engine::make_scripted_model(script, tokenizer, 64);
    const ops::PageLayout layout = model->page_layout(8);
    arena = std::move(*device::SharedArena::create(layout.page_bytes(), pages));
    engine = std::make_unique<engine::Engine>(
        std::move(model), tokenizer,
        ops::PageArenaView{arena->pages(), arena->shape().page_stride, pages, layout},
        [raw = arena.get()](int32_t page, uint64_t generation) {
          raw->set_generation(page, generation);
        },
        engine::EngineOptions{
            .prefill_chunk = 8, .lineage = "test", .integrity = std::move(integrity)},
        metrics);
    options.peer.hello.lineage = "test";
    options.peer.hello.block_tokens = 8;
    describe_groups(engine->page_groups(), options.peer.hello);
    if (options.listen.empty()) {
      options.listen = "unix:" + ::testing::TempDir() + "handoff-" + name + "-" +
                       std::to_string(getpid()) + ".sock";
    }
    if (options.transports.choice == "auto") options.transports.choice = "shm";
    service = std::move(*HandoffService::create(*engine, *arena, std::move(options), metrics));
  }
  ~Node() {
    service->stop();
    engine.reset();
  }

  protocol::GenerateRequest request(const std::string& prompt, const std::string& id) const {
    protocol::GenerateRequest out;
    out.prompt = tokenizer->encode(prompt);
    out.sampling.temperature = 0;
    out.handoff.handoff_id = id;
    return out;
  }

  std::future<Result<PrefillReport>> prefill(const std::string& prompt, const std::string& id) {
    return prefill(request(prompt, id));
  }
  std::future<Result<PrefillReport>> prefill(protocol::GenerateRequest asked) {
    auto promise = std::make_shared<std::promise<Result<PrefillReport>>>();
    service->start_prefill(std::move(asked), [promise](Result<PrefillReport> report) {
      promise->set_value(std::move(report));
    });
    return promise->get_future();
  }

  std::future<Collected> decode(const std::string& prompt, const std::string& id, const Node& from,
                                uint32_t attempt = 1,
                                std::shared_ptr<HandoffService::DecodeLeg>* leg = nullptr) {
    return decode(request(prompt, id), from, attempt, leg);
  }
  std::future<Collected> decode(protocol::GenerateRequest asked, const Node& from,
                                uint32_t attempt = 1,
                                std::shared_ptr<HandoffService::DecodeLeg>* leg = nullptr) {
    auto promise = std::make_shared<std::promise<Collected>>();
    auto future = promise->get_future();
    const auto choices = static_cast<size_t>(asked.sampling.n);
    asked.handoff.attempt = attempt;
    asked.handoff.prefill_address = from.service->address();
    auto started = service->start_decode(
        std::move(asked), collect_into(std::make_shared<Collected>(), promise, choices));
    if (leg != nullptr) *leg = started;
    return future;
  }

  void expect_empty() const {
    for (int i = 0; i < 500 && engine->stats().pages_used != 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(engine->stats().pages_used, 0);
    EXPECT_EQ(engine->stats().held, 0);
  }

  observe::Metrics metrics;
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::unique_ptr<device::SharedArena> arena;
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<HandoffService> service;
};

}  // namespace tandem::worker
