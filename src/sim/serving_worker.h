// ServingWorker: the time and the KV memory of one simulated engine. Prompts are computed one after
// another, longest waiting first, when their memory is there; sequences decode in steps that all
// running ones share, each further one lengthening the step. On a shared device a chunk of a prompt
// and a step take turns, as in an engine with chunked prefill; else both go on beside each other,
// as in `tandem mock`. Steps are a fluid: a sequence's progress is the integral of steps per
// second.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <vector>

#include "sim/block_cache.h"
#include "sim/event_loop.h"

namespace tandem::sim {

struct EngineSpec {
  double prefill_rate = 8000;  // tokens per second
  double step_seconds = 0.01;
  double crowding = 0.02;
  int32_t max_running = 256;
  int64_t kv_tokens = int64_t{1} << 20;
  bool shared_device = true;
  int32_t chunk_tokens = 2048;
};

// Lengths of decode steps, weighted by the tokens that they gave.
class StepLengths {
 public:
  void add(double seconds, double tokens);
  void add(const StepLengths& other);
  double quantile(double share) const;
  double mean() const { return tokens_ > 0 ? seconds_ / tokens_ : 0; }

 private:
  static constexpr double kUnit = 2e-4;
  std::map<int32_t, double> buckets_;
  double tokens_ = 0;
  double seconds_ = 0;
};

class ServingWorker {
 public:
  // One request's part here.
  struct Job {
    std::vector<uint64_t> chain;        // whole blocks of the prompt
    std::vector<uint64_t> chain_after;  // with the answer's
    int32_t input = 0;
    int32_t output = 1;
    // Called once each, in this order; what does not happen here is empty.
    std::function<void(int32_t cached)> computed;
    std::function<void()> first_token;
    std::function<void()> finished;

    size_t pinned = 0;
    size_t reserved = 0;
    int32_t cached = 0;
    double first_step = 0;
  };
  using JobPointer = std::shared_ptr<Job>;

  ServingWorker(EventLoop& loop, const EngineSpec& spec, int32_t block_tokens);

  void prefill(const JobPointer& job);  // its KV stays until decode() has ended or release()
  void decode(const JobPointer& job);   // after prefill() here
  // A prompt whose KV comes from elsewhere: joins when the memory is there.
  void receive(const JobPointer& job);
  void release(const JobPointer& job);  // after prefill() here, when its KV was sent

  BlockCache& cache() { return cache_; }
  const StepLengths& steps() const { return steps_; }
  double busy_seconds() const { return busy_; }  // computing prompts
  int64_t computed_tokens() const { return computed_tokens_; }
  std::function<void()> cache_changed;

 private:
  struct Running {
    double until;
    uint64_t order;
    JobPointer job;
    bool operator<(const Running& other) const {
      return until != other.until ? until > other.until : order > other.order;
    }
  };

  void advance();
  void schedule();
  void wake();
  void start_prefill();
  void finish_prefill();
  void join_waiting();
  bool take_memory(Job& job, bool all_computed);
  void store_prompt(Job& job);
  void free_memory(Job& job);
  double step_length() const;
  double prefill_speed() const;
  double steps_per_second() const;
  void tell_cache_changed();

  EventLoop& loop_;
  EngineSpec spec_;
  int32_t block_tokens_;
  BlockCache cache_;
  std::deque<JobPointer> prompts_;
  JobPointer computing_;
  double remaining_ = 0;             // tokens of it
  std::deque<JobPointer> arriving_;  // receive(), waiting for memory
  std::deque<JobPointer> joining_;   // waiting for a place in the batch
  std::priority_queue<Running> first_;
  std::priority_queue<Running> last_;
  int32_t running_ = 0;
  double step_ = 0;  // steps so far
  TimePoint at_{};
  uint64_t generation_ = 0;
  uint64_t order_ = 0;
  StepLengths steps_;
  double busy_ = 0;
  int64_t computed_tokens_ = 0;
};

}  // namespace tandem::sim
