// EngineModel: the time and the prefix cache of a modelled device. Prompts are computed one after
// another at a fixed rate; sequences decode in steps that all running ones share.
//
// Everything on the reactor's thread. Made by std::make_shared: its loops keep it alive.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "mock/kv_voice.h"
#include "mock/options.h"
#include "net/event.h"

namespace tandem::mock {

// Which blocks of tokens were computed, least recently used first out. A block is named by a chain
// hash, so that it stands for everything before it too.
class BlockCache {
 public:
  static constexpr size_t kBlockTokens = 16;
  explicit BlockCache(size_t max_tokens) : max_blocks_(max_tokens / kBlockTokens) {}
  // Hears of every change; null: nobody. Outlives the cache or is taken back.
  void set_voice(KvVoice* voice) { voice_ = voice; }

  // Tokens of the leading whole blocks that are here; a prompt's last token is never a hit.
  int64_t match(std::span<const uint32_t> tokens);
  void insert(std::span<const uint32_t> tokens);
  void clear();
  size_t blocks() const { return blocks_.size(); }

 private:
  void touch(std::span<const uint64_t> chain);
  size_t max_blocks_;
  KvVoice* voice_ = nullptr;
  std::list<uint64_t> order_;  // oldest first
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> blocks_;
};

uint64_t chain_hash(uint64_t parent, std::span<const uint32_t> tokens);

class EngineModel : public std::enable_shared_from_this<EngineModel> {
 public:
  // One request's part in it.
  struct Job {
    explicit Job(net::Reactor& reactor) : changed(reactor) {}
    net::Event changed;
    bool cancelled = false;
    bool computed = false;
    std::span<const uint32_t> tokens;  // of the prompt; valid until it is computed or cancelled
    int64_t cached = 0;
    uint64_t steps = 0;
  };

  EngineModel(net::Reactor& reactor, const Speed& speed, size_t cache_tokens);

  std::shared_ptr<Job> job() { return std::make_shared<Job>(reactor_); }
  static void cancel(Job& job);

  // Computes a prompt; the tokens that were cached, or nothing when the job was cancelled.
  net::asio::awaitable<std::optional<int64_t>> prefill(std::shared_ptr<Job> job,
                                                       std::span<const uint32_t> tokens);
  // A place in the batch until leave(). False: cancelled meanwhile.
  net::asio::awaitable<bool> join(std::shared_ptr<Job> job);
  void leave();
  net::asio::awaitable<bool> step(std::shared_ptr<Job> job);  // one token; false: cancelled

  BlockCache& cache() { return cache_; }
  int32_t running() const { return running_; }
  size_t waiting() const { return prompts_.size(); }

 private:
  net::asio::awaitable<void> prefill_loop(std::shared_ptr<EngineModel> self);
  net::asio::awaitable<void> step_loop(std::shared_ptr<EngineModel> self);

  net::Reactor& reactor_;
  Speed speed_;
  BlockCache cache_;
  std::deque<std::shared_ptr<Job>> prompts_;
  std::vector<std::shared_ptr<Job>> stepping_;
  bool computing_ = false;
  bool ticking_ = false;
  int32_t running_ = 0;
  net::Event room_;
};

}  // namespace tandem::mock
