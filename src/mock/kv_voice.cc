#include "mock/kv_voice.h"

#include <chrono>
#include <cstdlib>
#include <utility>

namespace tandem::mock {

namespace {

constexpr size_t kMostQueued = size_t{1} << 18;
constexpr size_t kMostPerMessage = 128;
constexpr int32_t kBlockTokens = 16;

}  // namespace

std::string offset_port(const std::string& endpoint, int32_t by) {
  const size_t colon = endpoint.rfind(':');
  if (!endpoint.starts_with("tcp://") || colon < 6) return endpoint;
  const int port = std::atoi(endpoint.c_str() + colon + 1);
  return endpoint.substr(0, colon + 1) + std::to_string(port == 0 ? 0 : port + by);
}

KvVoice::KvVoice(const MockOptions& options, int32_t rank) {
  form_.dialect = options.dialect == Dialect::kSglang ? protocol::EventDialect::kSglang
                                                      : protocol::EventDialect::kVllm;
  form_.maps = !options.kv_event_arrays;
  if (options.dp_size > 1) rank_ = rank;
  queue_.emplace_back(protocol::AllBlocksCleared{});
}

Result<std::unique_ptr<KvVoice>> KvVoice::create(const MockOptions& options, int32_t rank) {
  std::unique_ptr<KvVoice> made(new KvVoice(options, rank));
  events::PublisherOptions publish;
  publish.endpoint = offset_port(options.kv_events, rank);
  publish.replay_endpoint =
      offset_port(options.kv_events_replay.empty() ? offset_port(options.kv_events, options.dp_size)
                                                   : options.kv_events_replay,
                  rank);
  publish.topic = options.dialect == Dialect::kSglang ? "kv-events" : "kv@mock@" + options.model;
  TANDEM_TRY(publisher,
             events::Publisher::create(std::move(publish),
                                       {[it = made.get()] { return it->next(); }, nullptr}));
  made->publisher_ = std::move(publisher);
  made->publisher_->wake();
  return made;
}

void KvVoice::say(protocol::KvEvent event) {
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() >= kMostQueued) {
      queue_.clear();
      queue_.emplace_back(protocol::AllBlocksCleared{});
    }
    queue_.push_back(std::move(event));
  }
  publisher_->wake();
}

void KvVoice::stored(uint64_t hash, std::optional<uint64_t> parent,
                     std::span<const uint32_t> tokens) {
  protocol::BlockStored event;
  event.hashes.push_back({.number = hash});
  if (parent) event.parent = protocol::EventHash{.number = *parent};
  event.tokens.assign(tokens.begin(), tokens.end());
  event.block_tokens = kBlockTokens;
  say(std::move(event));
}

void KvVoice::removed(uint64_t hash) {
  protocol::BlockRemoved event;
  event.hashes.push_back({.number = hash});
  say(std::move(event));
}

void KvVoice::cleared() { say(protocol::AllBlocksCleared{}); }

std::string KvVoice::next() {
  protocol::KvEventBatch batch;
  {
    const std::lock_guard lock(mutex_);
    while (!queue_.empty() && batch.events.size() < kMostPerMessage) {
      batch.events.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
  }
  if (batch.events.empty()) return "";
  batch.timestamp =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  batch.rank = rank_;
  return protocol::encode_kv_events(batch, form_);
}

}  // namespace tandem::mock
