// HandoffService: drives the two pure sides of handoffs (kv/handoff) with real peers, pages and
// time.
//
// Runs on a reactor of its own: frames and deadlines. Page bytes move on the transports' threads
// and are checked and converted on a pool's. Public functions may be called from any thread. `done`
// and `on_error` callbacks run on that reactor, event sinks on the engine's thread.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/result.h"
#include "device/shared_arena.h"
#include "engine/engine.h"
#include "kv/handoff/peer_registry.h"
#include "kv/handoff/receive_handoff.h"
#include "kv/handoff/send_handoff.h"
#include "kv/transfer/page_fetcher.h"
#include "kv/transfer/peer_connection.h"
#include "kv/transfer/registry.h"
#include "net/reactor.h"
#include "net/work_pool.h"
#include "observe/metrics.h"
#include "protocol/request.h"
#include "worker/ended_handoffs.h"
#include "worker/handoff_digests.h"
#include "worker/page_importer.h"

namespace tandem::worker {

struct HandoffServiceOptions {
  kv::PeerOptions peer;  // its transports are made here
  kv::HandoffTimeouts timeouts;
  std::string listen;           // address of the prefill side; port 0: the system picks
  std::string advertised_host;  // that peers dial in place of `listen`'s; empty: the same
  kv::TransportOptions transports;
  kv::TlsFiles tls;
  kv::FetchLimits fetch;
  // Pages lost to transfers that cannot be stopped; beyond, the worker must restart.
  size_t max_unfenced_pages = 64;
  std::function<void()> on_must_restart;  // once, on the reactor
  kv::KvFaults faults = {};               // for tests
};

struct PrefillReport {
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;
  uint64_t kv_bytes = 0;
  uint32_t blocks_sent = 0;
  Duration after_prefill{};  // from the prefill's end to the decode worker's acknowledgement
};

// Fills in layers, windows and layer_places.
void describe_groups(const std::vector<model::PageGroup>& groups, protocol::HelloFrame& hello);

class HandoffService {
 public:
  static Result<std::unique_ptr<HandoffService>> create(engine::Engine& engine,
                                                        const device::SharedArena& arena,
                                                        HandoffServiceOptions options,
                                                        observe::Metrics& metrics);
  ~HandoffService();
  // Ends the reactor's thread: nothing of this service runs afterwards, and posts to it are
  // dropped. Call before the engine is destroyed; the service itself outlives the engine, whose
  // callbacks name it.
  void stop();

  // Prefill leg: computes the prompt and hands its KV to whoever dials with the handoff's id.
  void start_prefill(protocol::GenerateRequest request,
                     std::function<void(Result<PrefillReport>)> done);
  void cancel_prefill(const std::string& handoff_id, const Error& error);

  // Decode leg: dials the prefill worker, takes the KV over, then events flow to `sink` as from
  // Engine::generate. Cancelling works at any time, also after the sequence started.
  class DecodeLeg;
  std::shared_ptr<DecodeLeg> start_decode(protocol::GenerateRequest request,
                                          engine::EventSink sink);
  void cancel_decode(const std::shared_ptr<DecodeLeg>& leg);

  struct Totals {
    double sent = 0, sent_bytes = 0, received = 0, received_bytes = 0, failed = 0, open = 0;
  };
  Totals totals() const {
    return {sent_.value(),           sent_bytes_.value(), received_.value(),
            received_bytes_.value(), failed_.value(),     open_.value()};
  }

  const std::string& address() const { return address_; }  // that decode workers dial
  // Transfers that cannot be stopped hold too many pages: exit is the fence.
  bool must_restart() const { return must_restart_; }

 private:
  struct Peer {
    std::shared_ptr<kv::PeerConnection> connection;
    std::string address;                           // of a peer that this side dialed
    std::shared_ptr<const PageImporter> importer;  // of that peer's pages
    std::shared_ptr<const kv::DigestShape> shape;  // of its pages
  };
  struct Sending {
    kv::SendHandoff handoff;
    engine::SequenceId sequence = 0;
    std::function<void(Result<PrefillReport>)> done;
    PrefillReport report;
    TimePoint prefilled;                              // when the prompt's last token was computed
    std::vector<std::vector<uint64_t>> digests = {};  // [block][group]; see PrefillPages
  };
  struct Receiving {
    kv::ReceiveHandoff handoff;
    protocol::GenerateRequest request;
    std::shared_ptr<DecodeLeg> leg;
    std::string address;
    kv::PeerId peer = 0;  // 0: still dialing
    engine::Received pages;
    bool reserved = false;
    std::vector<int32_t> tokens;
    uint64_t bytes = 0;
    std::vector<uint64_t> digests = {};  // [layer][block] of what came; empty: none are kept
  };
  struct EarlyOpen {  // decode dialed before the prefill leg's request arrived
    kv::PeerId peer;
    uint32_t attempt;
    TimePoint until;
  };

  HandoffService(engine::Engine& engine, const device::SharedArena& arena,
                 HandoffServiceOptions options, observe::Metrics& metrics);
  // Errors, and the connection is closed: a newer start of that worker is connected already, or its
  // pages cannot be taken over.
  Status adopt(kv::PeerId id, const std::shared_ptr<kv::PeerConnection>& connection,
               std::string address);
  void on_frame(kv::PeerId peer, protocol::HandoffFrame frame);
  void on_peer_closed(kv::PeerId peer);
  void on_prefill_event(const std::string& id, engine::PrefillEvent event);
  void on_open(kv::PeerId peer, const protocol::OpenFrame& frame);
  bool on_sender_frame(kv::PeerId peer, const protocol::HandoffFrame& frame);
  void on_receiver_frame(kv::PeerId peer, const protocol::HandoffFrame& frame);
  void run_send(const std::string& id, kv::SendActions actions);
  void run_receive(uint64_t key, kv::ReceiveActions actions);
  void finish_send(const std::string& id, Sending& sending, const kv::SendFinished& finished);
  // The leg has ended, or could not begin: whoever dials for it, or waits already, hears why.
  void remember_end(const std::string& id, const Error& error);
  void reserve(uint64_t key, const kv::ReservePages& action);
  Status open();
  void copy(uint64_t key, const kv::CopyPages& action);
  // `own` gets the digests of what came, by page of the request; see HandoffDigests.
  kv::PageStep step(const Peer& peer, const Receiving& receiving, const kv::CopyPages& action,
                    const std::vector<std::byte*>& target,
                    const std::shared_ptr<std::vector<uint64_t>>& own);
  void keep_digests(uint64_t key, uint32_t layer, uint32_t first_block,
                    std::span<const uint64_t> own, size_t first, size_t count);
  void on_copied(uint64_t key, uint32_t layer, uint32_t first_block, uint32_t count,
                 kv::CopyResult result);
  void count_unfenced(size_t pages);
  void describe(const std::string& id, protocol::PushFrame& frame) const;
  std::span<std::byte> part_of(const kv::PageTag& tag, uint32_t layer) const;
  // Of the whole blocks that came, for this worker's own cache.
  std::vector<engine::IntegrityReport::Fresh> received_pages(const Receiving& receiving) const;
  void start_sequence(uint64_t key, const kv::StartSequence& action);
  void begin_receive(uint64_t key);
  boost::asio::awaitable<void> dial(uint64_t key, std::string address);
  boost::asio::awaitable<void> tick_loop();
  void send_to(kv::PeerId peer, const protocol::HandoffFrame& frame);
  kv::OfferEstimate estimate() const;
  uint64_t travelling_page_bytes(kv::PeerId peer) const;  // of pages on their way to it
  kv::HandoffTimeouts timeouts_for(int32_t prompt_tokens) const;
  static TimePoint now() { return std::chrono::steady_clock::now(); }

  engine::Engine& engine_;
  const device::SharedArena& arena_;
  HandoffServiceOptions options_;
  const ops::cpu::Kernels& kernels_;     // for conversions, whose bits are the same with all
  std::vector<ops::LayerPlace> places_;  // by layer of the model
  kv::HandoffShape shape_;
  HandoffDigests digests_;
  observe::Counter sent_bytes_, received_bytes_, sent_, received_, failed_, fenced_;
  observe::Gauge open_;
  observe::Histogram commit_delay_;
  double link_rate_ = 0;  // bytes per second, as decode workers have measured it
  std::string address_;
  std::unique_ptr<kv::TlsContext> tls_;
  kv::TransportSet transports_;
  size_t unfenced_pages_ = 0;
  std::atomic<bool> must_restart_ = false;
  net::Reactor reactor_;
  net::WorkPool pool_{1, 1024};  // checks and converts what arrived
  std::unique_ptr<kv::PageFetcher> fetcher_;
  std::unique_ptr<kv::PeerListener> listener_;
  std::map<kv::PeerId, Peer> peers_;
  kv::PeerRegistry registry_;
  std::unordered_map<std::string, Sending> sending_;
  std::map<uint64_t, Receiving> receiving_;
  std::unordered_map<std::string, EarlyOpen> early_;
  EndedHandoffs ended_;  // prefill legs
  std::map<std::string, std::vector<uint64_t>>
      dialing_;  // address -> receives that wait for the connection
  kv::PeerId next_peer_ = 1;
  uint64_t next_key_ = 1;
  std::thread thread_;
};

// The decode leg of one request, for cancelling it whatever it is doing.
class HandoffService::DecodeLeg {
 private:
  friend class HandoffService;
  std::atomic<bool> cancelled_ = false;
  std::atomic<engine::SequenceId> sequence_ = 0;
  std::atomic<uint64_t> key_ = 0;
  engine::EventSink sink_;
};

}  // namespace tandem::worker
