// Worker: one engine behind HTTP, in the role of prefill, decode or both. The role only decides
// what the router sends here; every worker can do everything.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "base/result.h"
#include "device/shared_arena.h"
#include "engine/engine.h"
#include "model/memory_budget.h"
#include "net/http_server.h"
#include "net/reactor.h"
#include "net/work_pool.h"
#include "observe/metrics.h"
#include "protocol/token_event.h"
#include "worker/event_channel.h"
#include "worker/handoff_service.h"
#include "worker/kv_publisher.h"
#include "worker/served_model.h"

namespace tandem::worker {

enum class Role : uint8_t { kPrefill, kDecode, kUnified };
std::string_view role_name(Role role);
Result<Role> parse_role(std::string_view name);

struct WorkerOptions {
  ServedModelOptions model;
  Role role = Role::kUnified;
  std::string host = "127.0.0.1";
  uint16_t port = 0;
  size_t kv_bytes = size_t{512} << 20;
  uint32_t kv_accepts = 0;  // protocol::KvAccept, as a receiver
  int32_t block_tokens = 16;
  int32_t prefill_chunk = 256;
  int32_t prompt_patience = 8;  // engine::SchedulerOptions::patience
  int32_t max_sequences = 64;
  int32_t steps_in_flight = 1;
  std::string secret;  // shared with the router and the other workers; empty: requests need none
  // Where decode workers dial: "unix:/path", "tcp:host:port" or "tls:host:port"; empty: a fresh
  // Unix socket under the system's temporary folder.
  std::string handoff_listen;
  std::string handoff_host;  // what they dial in place of that address's host; empty: the same
  kv::TransportOptions transports;
  kv::TlsFiles handoff_tls;
  size_t max_body_bytes = size_t{64} << 20;
  Duration request_timeout = std::chrono::minutes(30);
  Duration drain = std::chrono::seconds(30);
  protocol::Pooling pooling = protocol::Pooling::kMean;  // of embeddings that do not ask
  engine::GuardOptions integrity = {};
  std::string kv_events = {};         // where KV events are published ("tcp://..."); empty: nowhere
  std::string kv_events_replay = {};  // where past ones are asked for
};

class Worker {
 public:
  // Loads the model and opens the sockets; serves once run() is called.
  static Result<std::unique_ptr<Worker>> create(WorkerOptions options);
  ~Worker();

  uint16_t port() const { return port_; }
  const model::MemoryBudget& memory() const { return memory_; }
  const std::string& model_name() const { return served_.name; }
  int32_t context_length() const { return engine_->context_length(); }

  void run();  // until shut_down() has drained
  // After run(): it ended by itself, and a new process should take over.
  bool must_restart() const { return distrusted_ || handoffs_->must_restart(); }
  void shut_down();  // any thread: unready at once, running requests end (at the drain limit with
                     // an error), then run() returns

 private:
  struct Routes;
  // What one of a request's prompts gave. An embedding comes with a finish.
  struct RequestEvent {
    size_t prompt = 0;
    protocol::TokenEvent event;
    std::vector<float> embedding = {};
  };
  using Events = EventChannel<RequestEvent>;
  explicit Worker(WorkerOptions options);
  Status start();
  net::asio::awaitable<void> drain_and_stop();

  WorkerOptions options_;
  observe::Metrics metrics_;
  ServedModel served_;
  model::MemoryBudget memory_;
  std::string epoch_;
  std::string fingerprint_;  // system_fingerprint of answers
  std::unique_ptr<device::SharedArena> arena_;
  std::unique_ptr<KvPublisher> kv_events_;    // outlives the engine; null: nothing is published
  std::unique_ptr<HandoffService> handoffs_;  // outlives the engine (see HandoffService::stop)
  std::unique_ptr<engine::Engine> engine_;
  net::Reactor reactor_;
  std::unique_ptr<Routes> routes_;
  std::unique_ptr<net::HttpServer> server_;
  net::WorkPool pool_{2};  // reads and tokenizes what is long
  uint16_t port_ = 0;
  bool draining_ = false;
  std::atomic<bool> distrusted_ = false;    // the KV quarantine is full
  bool cutting_ = false;                    // the drain limit passed
  std::set<std::shared_ptr<Events>> open_;  // of the requests that generate
};

}  // namespace tandem::worker
