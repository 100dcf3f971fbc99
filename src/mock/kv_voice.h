// KvVoice: publishes what a mock engine's prefix cache holds, as the engine that it plays would: in
// vLLM's or SGLang's form, as maps or as the older arrays. Tandem's mocks speak vLLM's, as Tandem
// does.
//
// The cache's side runs on the reactor's thread; the publisher has one of its own.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "events/publisher.h"
#include "mock/options.h"
#include "protocol/kv_events.h"

namespace tandem::mock {

class KvVoice {
 public:
  // Of one data-parallel rank: its ports are those of the options plus the rank, unless the system
  // picks.
  static Result<std::unique_ptr<KvVoice>> create(const MockOptions& options, int32_t rank);

  void stored(uint64_t hash, std::optional<uint64_t> parent, std::span<const uint32_t> tokens);
  void removed(uint64_t hash);
  void cleared();

  const std::string& endpoint() const { return publisher_->endpoint(); }
  const std::string& replay_endpoint() const { return publisher_->replay_endpoint(); }

 private:
  KvVoice(const MockOptions& options, int32_t rank);
  void say(protocol::KvEvent event);
  std::string next();

  protocol::EventForm form_;
  std::optional<int32_t> rank_;
  std::mutex mutex_;
  std::deque<protocol::KvEvent> queue_;
  std::unique_ptr<events::Publisher> publisher_;  // its thread ends first
};

// "tcp://host:5557" and 2: "tcp://host:5559". Port 0 stays.
std::string offset_port(const std::string& endpoint, int32_t by);

}  // namespace tandem::mock
