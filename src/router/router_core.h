// What the parts of the router share. Kept alive by whatever runs: the router, its pollers, its
// requests.
#pragma once

#include <ctime>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "api/response_store.h"
#include "net/http_client.h"
#include "net/work_pool.h"
#include "router/admission_gate.h"
#include "router/connectors/leg_body.h"
#include "router/kv_feeds.h"
#include "router/legs/retry_budget.h"
#include "router/policy/expected_output.h"
#include "router/prompt_prefix.h"
#include "router/router.h"
#include "router/router_metrics.h"

namespace tandem::router {

class RequestRun;

struct RouterCore {
  RouterCore(net::Reactor& reactor_in, RouterOptions options_in);

  // Of another engine's model.
  PrefixRule prefix_rule(const ServedModel& model) const;
  void listen(WorkerId worker);

  net::Reactor& reactor;
  RouterOptions options;
  observe::Metrics metrics_store;
  RouterMetrics metrics;
  net::HttpClient client;
  LoadLedger ledger;
  PrefixHolders holders;
  KvFeeds feeds;
  // Given for other engines' models.
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::shared_ptr<const text::ChatTemplate> chat_template;
  RetryBudget retry_budget;
  AdmissionGate gate;
  ExpectedOutput outputs;
  std::mt19937_64 random;  // ids that legs meet on; not for secrets
  GlobalIds global_ids;
  uint64_t next_turn = 0;                 // counts placements
  std::vector<WorkerSnapshot> snapshots;  // of the placement that is being made
  net::Deadline drain_limit;
  WorkerRegistry registry;
  net::WorkPool pool;            // reads and tokenizes what is long
  std::set<RequestRun*> runs;    // requests with legs, told when a worker goes down
  api::ResponseStore responses;  // of Tandem's own models
  bool draining = false;
  bool closed = false;
  std::time_t created = std::time(nullptr);
};

}  // namespace tandem::router
