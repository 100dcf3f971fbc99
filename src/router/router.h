// Router: an HTTP handler that spreads requests over prefill, decode and unified workers and owns
// both legs of each. The workers say what they serve: those with the same served name are one
// model's, and a request goes to the workers of the model, or of the adapter, that it names.
//
//   Router router(reactor, options);              // options name the workers
//   TANDEM_CHECK(router.start());
//   HttpServer server(reactor, server_options, router.handler(), router.gate());
//
// Its routes are Router::routes(). With API keys set, all need one except those marked open:
// GET / (agents warm their connection up with it), /live (the process answers), /health (some
// worker can take requests; 503 otherwise) and /ready (the same, and 503 while draining).
//
// Thread-safety: one reactor's thread, or before it runs.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "net/http_server.h"
#include "net/reactor.h"
#include "net/route_table.h"
#include "observe/metrics.h"
#include "router/admission_gate.h"
#include "router/legs/legs.h"
#include "router/policy/policy.h"
#include "router/prefix/prefix_holders.h"
#include "router/worker_registry.h"
#include "text/tokenizer_spec.h"

namespace tandem::router {

struct RouterOptions {
  std::vector<WorkerAddress> workers;
  std::vector<std::string> api_keys;  // empty: no key is asked for
  std::string secret;                 // x-tandem-auth, shared with Tandem's workers (TANDEM_SECRET)
  Duration request_timeout = std::chrono::minutes(30);
  Duration preparation_timeout = std::chrono::seconds(30);  // reading and tokenizing one request
  Duration usage_wait =
      std::chrono::seconds(2);            // for prefill's usage, held back: the last frame only
  size_t max_answer_bytes = 64ULL << 20;  // of an answer that is not streamed
  HolderOptions holders;
  // Of other engines' models: prompts are looked up by their tokens. Nothing: only ids and bytes
  // are.
  std::optional<text::TokenizerSpec> tokenizer;
  // Of Tandem's own workers, at hand already: one that says that this is its text is not asked.
  std::vector<ServedText> texts;
  size_t response_store_bytes = 64ULL << 20;                // responses that others may go on from
  Duration poll_interval = std::chrono::milliseconds(500);  // of Tandem's own workers
  Duration poll_timeout = std::chrono::seconds(1);
  Duration health_interval = std::chrono::seconds(1);  // of other engines
  Duration health_timeout = std::chrono::seconds(5);
  Duration silence_limit = std::chrono::minutes(5);  // zero: none
  int health_failures = 3;
  int health_successes = 2;
  size_t warm_connections = 4;  // opened ahead to each worker that comes up
  PolicyOptions policy;
  AdmissionOptions admission;
  AdmissionLimits admission_limits;  // zero: everything is let in
  LegsOptions legs;
  RetryBudgetOptions retries;
  std::string fleet_file;  // more workers, followed while it changes (fleet_file.h); empty: none
  WorkerAddress listed_worker = {};  // connector and model of those that do not say
  Duration fleet_interval = std::chrono::seconds(1);
  std::vector<std::string> admin_keys;  // of the routes that change workers; empty: api_keys
  std::string worker_api_key;           // what the router itself shows to other engines
  bool forward_authorization = true;    // the client's own key goes to the workers
  bool release_kv = true;               // KV that nobody fetched is freed at once (LegsOptions)
  Duration attach_time = std::chrono::seconds(30);  // a leg that was let go is closed then
  Duration heartbeat = Duration::zero();            // comments in silent streams; zero: none
  bool tell_workers = true;                         // x-tandem-worker and its like
  bool access_log = true;                           // one line a request; never content
};

struct RouterCore;

class Router {
 public:
  Router(net::Reactor& reactor, RouterOptions options);
  ~Router();  // stops polling; requests in flight end on the reactor
  Router(const Router&) = delete;
  Router& operator=(const Router&) = delete;

  // Begins to poll the workers. Errors: 400 "no_workers" and those of WorkerRegistry::add.
  Status start();
  // Both may outlive the Router (they then answer 503). The gate does what needs no body: keys,
  // unknown paths and methods. The handler asks it too, so a server without it is as safe.
  net::HttpHandler handler();
  net::HttpGate gate();
  static std::vector<net::RouteHead> routes();

  // `tandem up` started worker number `index` (in the order of options.workers) again at another
  // URL.
  Status move_worker(size_t index, const std::string& url);
  // /ready and new generation requests get 503 from now on. Running ones go on for `limit`; what
  // still runs then ends with an error answer or an error frame. Zero: no limit.
  void begin_drain(Duration limit = Duration::zero());
  bool ready() const;     // some model can be served
  bool complete() const;  // every worker is up
  // Exactly zero legs and tokens in flight on every worker.
  bool idle() const;
  observe::Metrics& metrics();

 private:
  std::shared_ptr<RouterCore> core_;
};

}  // namespace tandem::router
