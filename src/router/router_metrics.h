// The router's metrics. Handles are made once; gauges of workers are set when /metrics is asked.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "observe/metrics.h"
#include "router/legs/load.h"
#include "router/policy/prefix_map.h"
#include "router/worker_registry.h"

namespace tandem::router {

class RouterMetrics {
 public:
  explicit RouterMetrics(observe::Metrics& metrics);

  // `route` is a row of the route table, never a client's text.
  void count_request(const std::string& route, int status);
  void sample(const WorkerRegistry& registry, const LoadLedger& ledger, const PrefixMap& prefixes);

  // Labelled with the model's served name: one that workers gave, never a client's text.
  struct OfModel {
    observe::Counter requests, prompt_tokens, generation_tokens;
  };
  OfModel& of_model(const std::string& id);

  observe::Counter prefix_queries, prefix_hits, kv_bytes;
  observe::Counter local_prefills, prefill_retries, answer_retries, disconnects, broken_streams;
  observe::Histogram time_to_first_token, request_latency;
  observe::Gauge running;

 private:
  observe::Metrics& metrics_;
  std::map<std::pair<std::string, int>, observe::Counter> requests_;
  std::map<std::string, OfModel> models_;
  observe::Gauge prefix_blocks_, prefix_bytes_;
};

}  // namespace tandem::router
