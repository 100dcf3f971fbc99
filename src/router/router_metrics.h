// The router's metrics. Handles are made once; gauges of workers are set when /metrics is asked.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "observe/metrics.h"
#include "router/legs/legs.h"
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
  struct OfConnector {
    observe::Histogram first_byte, prefill_seconds;
  };
  OfConnector& of_connector(const Connector& connector);

  // How a leg ended; nothing: well.
  void leg_ended(const WorkerRegistry& registry, WorkerId worker, Leg leg,
                 std::optional<LegFailure> failure);
  void leg_cancelled(const WorkerRegistry& registry, WorkerId worker, Leg leg);
  void count_abort(bool taken) { (taken ? aborts_ : failed_aborts_).add(); }

  observe::Counter prefix_queries, prefix_hits, kv_bytes;
  observe::Counter local_prefills, prefill_retries, answer_retries, disconnects, broken_streams;
  observe::Counter releases, large_frames;
  observe::Histogram time_to_first_token, request_latency;
  observe::Gauge running;

 private:
  friend class Buffered;
  void count_leg(const WorkerRegistry& registry, WorkerId worker, Leg leg, const char* outcome);

  observe::Metrics& metrics_;
  std::map<std::pair<std::string, int>, observe::Counter> requests_;
  std::map<std::string, OfModel> models_;
  std::map<const Connector*, OfConnector> connectors_;
  std::map<std::tuple<WorkerId, Leg, const char*>, observe::Counter> legs_;
  observe::Counter aborts_, failed_aborts_;
  observe::Gauge prefix_blocks_, prefix_bytes_, buffered_;
};

// Bytes of an unfinished frame, while this lives.
class Buffered {
 public:
  Buffered(RouterMetrics& metrics, size_t bytes) : metrics_(metrics), bytes_(bytes) {
    if (bytes_ > 0) metrics_.buffered_.add(static_cast<double>(bytes_));
  }
  ~Buffered() {
    if (bytes_ > 0) metrics_.buffered_.add(-static_cast<double>(bytes_));
  }
  Buffered(const Buffered&) = delete;
  Buffered& operator=(const Buffered&) = delete;

 private:
  RouterMetrics& metrics_;
  size_t bytes_;
};

}  // namespace tandem::router
