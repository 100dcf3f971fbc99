// The router's metrics. Handles are made once; gauges of workers are set when /metrics is asked.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "observe/metrics.h"
#include "router/kv_feeds.h"
#include "router/legs/legs.h"
#include "router/legs/load.h"
#include "router/prefix/prefix_holders.h"
#include "router/worker_registry.h"
#include "text/tokenizer.h"

namespace tandem::router {

class RouterMetrics {
 public:
  explicit RouterMetrics(observe::Metrics& metrics);

  // `route` is a row of the route table, never a client's text.
  void count_request(const std::string& route, int status);
  // `engines_tokenizer`: null where there is none.
  void sample(const WorkerRegistry& registry, const LoadLedger& ledger,
              const PrefixHolders& holders, const KvFeeds& feeds,
              const text::Tokenizer* engines_tokenizer);

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
  // A counter of what is counted elsewhere.
  struct Total {
    observe::Counter counter;
    uint64_t told = 0;
    void set(uint64_t now) {
      if (now <= told) return;
      counter.add(static_cast<double>(now - told));
      told = now;
    }
  };
  void sample_prefixes(const PrefixHolders& holders, const KvFeeds& feeds);
  void sample_tokenizers(const WorkerRegistry& registry, const text::Tokenizer* engines_tokenizer);
  void count_leg(const WorkerRegistry& registry, WorkerId worker, Leg leg, const char* outcome);

  observe::Metrics& metrics_;
  std::map<std::pair<std::string, int>, observe::Counter> requests_;
  std::map<std::string, OfModel> models_;
  std::map<const Connector*, OfConnector> connectors_;
  std::map<std::tuple<WorkerId, Leg, const char*>, observe::Counter> legs_;
  observe::Counter aborts_, failed_aborts_;
  observe::Gauge prefix_blocks_, prefix_entries_, prefix_bytes_, prefix_expected_, buffered_;
  observe::Gauge kv_feeds_, kv_held_bytes_, tokens_bytes_;
  Total prefix_evictions_, kv_stored_, kv_removed_, kv_orphans_, kv_ignored_, kv_bad_;
  Total kv_gaps_, kv_replayed_, kv_resets_, tokens_hits_, tokens_misses_;
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
