// The Mooncake transport module: reads through the C functions of a user's Transfer Engine.
//
// Its submit may block (it may connect in there), and a transfer cannot be cancelled. So each peer
// has a thread that submits, a batch whose deadline passes completes without its transfers having
// ended (the fence is none: the caller quarantines its pages), and what was submitted is watched
// until it ends, even after the peer was disconnected. Reads are cut into requests of at most
// kRequestBytes, of which a bounded number is under way per peer.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "module_support.h"
#include "mooncake_functions.h"

namespace tandem::modules {

inline constexpr uint64_t kRequestBytes = uint64_t{1} << 20;
inline constexpr size_t kRequestsPerSubmit = 64;
inline constexpr size_t kRequestsUnderWay = 256;
inline constexpr size_t kLandings = 256;  // tokens that are being read

struct MooncakeBatch {
  uint64_t id = 0;
  std::vector<MooncakeRequest> requests;
  size_t next = 0;  // to be submitted
  uint64_t bytes = 0;
  size_t under_way = 0;  // submits that have not ended
  bool completed = false;
  int32_t landing = -1;  // of a token's read; no completion is reported
  int32_t status = TANDEM_TRANSPORT_OK;
  Clock::time_point deadline;
};

struct MooncakeSubmit {
  std::shared_ptr<MooncakeBatch> batch;
  uint64_t handle = kNoBatch;
  size_t requests = 0;
  size_t ended = 0;
  bool failed = false;
};

// What a peer's thread and the engine share; guarded by the engine's lock. Outlives the peer until
// everything that was submitted has ended.
struct MooncakePeerState {
  int32_t segment = -1;
  std::deque<std::shared_ptr<MooncakeBatch>> queue;
  std::vector<std::shared_ptr<MooncakeBatch>> open;  // not completed
  std::list<MooncakeSubmit> submits;
  size_t requests_under_way = 0;
  bool submitting = false;
  bool stopping = false;
  std::condition_variable changed;
};

// A thread that may block in Mooncake.
struct MooncakeThread {
  std::thread thread;
  std::shared_ptr<std::atomic<bool>> ended;
};

}  // namespace tandem::modules

struct tandem_transport_peer {
  tandem_transport_engine* engine = nullptr;
  tandem::modules::ExposedMemory memory;
  std::shared_ptr<tandem::modules::MooncakePeerState> state;
  tandem::modules::MooncakeThread thread;
};

struct tandem_transport_engine {
  ~tandem_transport_engine();
  std::string start(const char* settings);
  int32_t expose(const void* memory, uint64_t bytes, void* descriptor, uint64_t* descriptor_bytes,
                 tandem_transport_error* error);
  int32_t register_local(void* memory, uint64_t bytes, tandem_transport_error* error);
  int32_t connect(const void* descriptor, uint64_t descriptor_bytes, uint32_t timeout_ms,
                  tandem_transport_peer** peer, tandem_transport_error* error);
  void disconnect(tandem_transport_peer* peer);
  int32_t post(tandem_transport_peer* peer, const tandem_transport_read* reads, uint32_t count,
               uint64_t batch, uint32_t timeout_ms, tandem_transport_error* error);
  uint32_t poll(tandem_transport_completion* out, uint32_t capacity);
  void wait(uint32_t timeout_ms);
  void wake();

 private:
  using Batch = std::shared_ptr<tandem::modules::MooncakeBatch>;
  using State = tandem::modules::MooncakePeerState;

  void submit_loop(State& state);
  void submit_next(State& state, std::unique_lock<std::mutex>& guard);
  void enqueue(State& state, Batch batch);
  void watch(State& state);
  bool has_ended(tandem::modules::MooncakeSubmit& submit);
  void expire(State& state, tandem::modules::Clock::time_point now);
  void complete(State& state, const Batch& batch, int32_t status);
  void advance();
  bool is_busy() const;
  int32_t open_segment(const std::string& name, tandem::modules::Clock::time_point until);
  int32_t check_token(tandem_transport_peer& peer, tandem::modules::Clock::time_point until,
                      tandem_transport_error* error);
  template <typename Work>
  tandem::modules::MooncakeThread run(Work work);
  void sweep_threads();

  // Set by start and expose, before there are threads.
  tandem::modules::MooncakeFunctions mooncake_;
  void* engine_ = nullptr;
  std::string location_;
  tandem::modules::Token token_;
  uint64_t max_bytes_in_flight_ = uint64_t{256} << 20;
  std::vector<std::array<uint8_t, tandem::modules::Token::kSize>> landings_;
  struct Region {
    void* memory;
    uint64_t bytes;
    bool exposed;
  };
  std::vector<Region> regions_;
  bool exposed_ = false;
  tandem::modules::LocalMemory<bool> local_;
  // The caller's thread's.
  std::vector<tandem::modules::MooncakeThread> parting_;  // of peers that are gone

  mutable std::mutex lock_;  // of what follows, and of the peers' states
  std::condition_variable changed_;
  bool woken_ = false;
  std::vector<std::shared_ptr<State>> states_;
  std::deque<tandem_transport_completion> completions_;
  std::vector<int32_t> free_landings_;
  uint64_t bytes_in_flight_ = 0;
};
