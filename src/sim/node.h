// Node: one worker, made of the production state machines: Scheduler and KvManager on its engine
// thread, SendHandoff, ReceiveHandoff and PeerRegistry on its reactor, and a device that computes
// words. What is not pure in production (Engine, HandoffService, PageReader) is mirrored here in
// the few lines that tie the machines together. The threads are queues: what one posts to another
// arrives in order, a little later.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/scheduler/scheduler.h"
#include "kv/handoff/peer_registry.h"
#include "kv/handoff/receive_handoff.h"
#include "kv/manager/kv_manager.h"
#include "kv/manager/reserve_queue.h"
#include "sim/memory.h"
#include "sim/network.h"

namespace tandem::sim {

class World;
using protocol::SequenceId;

// A leg of a request, as the router numbers them.
struct LegName {
  int request = 0;
  uint32_t serial = 0;
  auto operator<=>(const LegName&) const = default;
};

// Bytes under way from one node's pages to another's.
struct Copy {
  kv::PeerId peer = 0;
  uint64_t key = 0;  // of the receiver's handoff
  int from_node = 0;
  uint64_t from_start = 0;
  std::shared_ptr<Arena> from;
  std::shared_ptr<Arena> into;
  uint32_t layer = 0;
  uint32_t first_block = 0;
  std::vector<kv::PageTag> source;
  std::vector<kv::PageTag> target;
  size_t next = 0;
  bool half = false;
  bool stopped = false;
  TimePoint deadline;
};

class Node {
 public:
  Node(World& world, int id);

  // --- the process
  uint64_t start() const { return up_ ? start_ : 0; }
  bool frozen() const { return frozen_; }
  bool answers(TimePoint now) const;  // as the router's health checks see it
  void tell(uint64_t start, EventLoop::Action action);
  void crash(bool silent, Duration down);
  void freeze(Duration time);

  // --- HTTP, from the router
  void start_prefill(LegName leg, std::string handoff);
  void start_decode(LegName leg, std::string handoff, uint32_t attempt, int prefill_node);
  void start_whole(LegName leg);
  void cancel(LegName leg, const Error& error);

  // --- the network
  bool on_hello(kv::PeerId peer, int from, uint64_t start);
  bool on_dialed(kv::PeerId peer, int to, uint64_t start);
  void on_frame(kv::PeerId peer, protocol::HandoffFrame frame);
  void on_closed(kv::PeerId peer);

  // --- checks
  const std::shared_ptr<Arena>& arena() const { return arena_; }
  void check_counts() const;
  // Why it is not at rest; empty when it is.
  std::string unrest() const;
  void fail_next_copy() { ++copies_to_fail_; }

 private:
  enum Thread : uint8_t { kEngine, kReactor, kThreads };

  struct Running {  // a sequence, as its device sees it
    explicit Running(const PlannedRequest& request) : content(request.adapter, request.salt) {
      for (const int32_t token : request.prompt) content.push(token);
    }
    Content content;
  };
  struct Generation {
    std::shared_ptr<Running> running;
    std::string handoff;  // of a prefill leg
    LegName leg;
    size_t told = 0;   // pages
    size_t given = 0;  // tokens
  };
  struct Pass {
    protocol::StepPlan plan;
    std::vector<std::shared_ptr<Running>> running;
    std::vector<std::string> handoffs;
  };
  struct Sending {
    kv::SendHandoff handoff;
    SequenceId sequence = 0;
    LegName leg;
  };
  struct Receiving {
    kv::ReceiveHandoff handoff;
    LegName leg;
    int prefill_node = 0;
    kv::PeerId peer = 0;
    SequenceId sequence = 0;
    std::vector<kv::PageTag> pages;
    std::vector<int32_t> tokens;
  };
  struct EarlyOpen {
    kv::PeerId peer = 0;
    uint32_t attempt = 0;
    TimePoint until;
  };
  struct Peer {
    int node = 0;
    uint64_t start = 0;
    bool dialed = false;  // by this side
    std::shared_ptr<Arena> memory;
  };
  struct DecodeLeg {
    bool cancelled = false;
    SequenceId sequence = 0;
    uint64_t key = 0;
  };

  void boot();
  void catch_up();
  void post(Thread thread, EventLoop::Action action);
  Duration draw(Duration least, Duration most);
  void keep_ticking();
  void tick();

  // engine thread (node_engine.cc)
  void pump();
  void tell_pages(Generation& generation, const protocol::StepSequence& planned);
  void deliver_updates();
  void deliver(const engine::SequenceUpdate& update);
  void run_device();
  void run_layer(const std::shared_ptr<Pass>& pass, uint32_t layer);
  void compute(const protocol::StepSequence& planned, Running& running, uint32_t layer);
  void check_context(const protocol::StepSequence& planned, const Running& running, uint32_t layer);
  void finish_pass(const std::shared_ptr<Pass>& pass);
  void add_sequence(SequenceId id, LegName leg, const std::string& handoff);
  engine::SequenceSpec spec_of(SequenceId id, const PlannedRequest& request) const;
  void abort_sequence(SequenceId id);
  void serve_reserves();
  void abandon_received(SequenceId id, bool may_be_written);
  void start_received(SequenceId id, LegName leg, int32_t first_token, uint64_t key);
  bool uses(const protocol::StepSequence& planned, int32_t page) const;
  void on_allocate(int32_t page, uint64_t generation);

  // reactor (node_handoff.cc)
  void run_send(const std::string& id, const kv::SendActions& actions);
  void release_readers(const std::vector<kv::PageTag>& pages);
  void run_receive(uint64_t key, const kv::ReceiveActions& actions);
  void on_open(kv::PeerId peer, const protocol::OpenFrame& frame);
  bool on_sender_frame(kv::PeerId peer, const protocol::HandoffFrame& frame);
  void on_receiver_frame(kv::PeerId peer, const protocol::HandoffFrame& frame);
  void begin_receive(uint64_t key);
  void reserve(uint64_t key, const kv::ReservePages& action);
  void on_reserved(uint64_t key, const kv::ReserveQueue::Served& served);
  bool adopt(kv::PeerId peer, int node, uint64_t start, bool dialed);
  void finish_receive(Receiving& receiving, const std::optional<Error>& error);
  void tick_handoffs(TimePoint now);

  // copies (node_copy.cc)
  void begin_copy(uint64_t key, const kv::CopyPages& action);
  void copy_at_once(const std::shared_ptr<Copy>& copy);
  bool fails_now();
  bool is_stale(const Copy& copy) const;
  void step_copy(const std::shared_ptr<Copy>& copy);
  bool reaches(const Copy& copy) const;
  void copy_words(Copy& copy, bool second_half) const;
  void end_copy(const std::shared_ptr<Copy>& copy, kv::CopyResult result);
  void answer_copy(const std::shared_ptr<Copy>& copy, uint32_t block, uint32_t count,
                   kv::CopyResult result);

  World& world_;
  const int id_;
  uint64_t start_ = 0;
  bool up_ = false;
  bool frozen_ = false;
  bool catching_up_ = false;
  TimePoint frozen_since_{};
  TimePoint frozen_until_{};
  std::deque<EventLoop::Action> deferred_;
  std::array<TimePoint, kThreads> posted_{};
  bool ticking_ = false;
  int copies_to_fail_ = 0;

  std::shared_ptr<Arena> arena_;
  std::unique_ptr<kv::KvManager> kv_;
  std::unique_ptr<engine::Scheduler> scheduler_;
  std::unique_ptr<kv::ReserveQueue> reserves_;
  std::unordered_map<SequenceId, uint64_t> reserve_keys_;  // whose receive waits
  std::map<SequenceId, Generation> generations_;
  std::deque<std::shared_ptr<Pass>> passes_;
  bool device_busy_ = false;
  SequenceId next_sequence_ = 1;

  std::map<std::string, Sending> sending_;
  std::map<uint64_t, Receiving> receiving_;
  std::map<kv::PeerId, Peer> peers_;
  kv::PeerRegistry registry_;
  std::map<std::string, EarlyOpen> early_;
  std::map<int, kv::PeerId> dialing_;  // by node
  std::map<LegName, std::shared_ptr<DecodeLeg>> decode_legs_;
  std::map<LegName, std::string> prefill_legs_;
  std::map<LegName, SequenceId> whole_legs_;
  std::unordered_map<uint64_t, int> readers_;  // by generation, as the reactor has ordered them
  uint64_t next_key_ = 1;
};

}  // namespace tandem::sim
