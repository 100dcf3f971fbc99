#include "router/router_metrics.h"

namespace tandem::router {

RouterMetrics::RouterMetrics(observe::Metrics& metrics) : metrics_(metrics) {
  const auto counter = [&](const char* name, const char* help) {
    return metrics.counter(name, help);
  };
  prefix_queries =
      counter("tandem_prefix_cache_queries_total", "Prompt tokens that could have been cached.");
  prefix_hits = counter("tandem_prefix_cache_hits_total", "Prompt tokens whose KV was reused.");
  kv_bytes =
      counter("tandem_kv_transfer_bytes_total", "KV bytes moved from prefill to decode workers.");
  local_prefills = counter("tandem_router_local_prefills_total",
                           "Requests that skipped prefill: decode held the prefix.");
  const char* const retries = "tandem_router_retries_total";
  const char* const help = "Legs sent again before the first byte.";
  prefill_retries = metrics.counter(retries, help, {{"what", "request"}});
  answer_retries = metrics.counter(retries, help, {{"what", "decode"}});
  disconnects = counter("tandem_router_client_disconnects_total", "Requests whose client left.");
  broken_streams =
      counter("tandem_router_broken_streams_total", "Streams that ended with an error frame.");
  time_to_first_token =
      metrics.histogram("tandem_time_to_first_token_seconds",
                        "Request to first byte of the answer.", observe::latency_buckets());
  request_latency = metrics.histogram("tandem_e2e_request_latency_seconds",
                                      "Request to end of the answer.", observe::latency_buckets());
  releases = counter("tandem_router_kv_releases_total",
                     "Decode legs of one token that only freed prefill's KV.");
  large_frames = counter("tandem_router_large_frames_total",
                         "Events over 64 KiB that were held whole to be rewritten.");
  const char* const aborts = "tandem_router_engine_aborts_total";
  const char* const abort_help = "Abort calls to engines, besides closing their connections.";
  aborts_ = metrics.counter(aborts, abort_help, {{"outcome", "taken"}});
  failed_aborts_ = metrics.counter(aborts, abort_help, {{"outcome", "failed"}});
  buffered_ = metrics.gauge("tandem_router_buffered_bytes",
                            "Bytes of unfinished events in the streams that are relayed.");
  running = metrics.gauge("tandem_num_requests_running", "Requests in flight in the router.");
  prefix_blocks_ =
      metrics.gauge("tandem_router_prefix_blocks", "Blocks in the router's prefix map.");
  prefix_bytes_ = metrics.gauge("tandem_router_prefix_bytes", "Memory of the router's prefix map.");
  const auto gauge = [&](const char* name, const char* help) { return metrics.gauge(name, help); };
  prefix_entries_ = gauge("tandem_router_prefix_entries", "Blocks in it, by worker and tier.");
  prefix_expected_ = gauge("tandem_router_prefix_expected",
                           "Blocks in it that were sent somewhere and are not confirmed yet.");
  kv_feeds_ = gauge("tandem_router_kv_feeds", "Publishers of KV events that are listened to.");
  kv_held_bytes_ = gauge("tandem_router_kv_held_bytes",
                         "KV events that wait until a gap before them is filled.");
  tokens_bytes_ = gauge("tandem_router_tokenizer_cache_bytes",
                        "Memory for pieces of prompts and their token ids.");
  const auto total = [&](const char* name, const char* help) {
    return Total{metrics.counter(name, help)};
  };
  prefix_evictions_ = total("tandem_router_prefix_evictions_total",
                            "Entries that the router's prefix map gave up for want of room.");
  kv_stored_ = total("tandem_router_kv_stored_total", "Blocks that events told as stored.");
  kv_removed_ = total("tandem_router_kv_removed_total", "Blocks that events told as removed.");
  kv_orphans_ = total("tandem_router_kv_unknown_parents_total",
                      "Blocks left out because what they follow is not known.");
  kv_ignored_ = total("tandem_router_kv_ignored_total",
                      "Blocks and events left out: other layers, media or kinds.");
  kv_bad_ = total("tandem_router_kv_bad_messages_total", "Messages of publishers that are none.");
  kv_gaps_ = total("tandem_router_kv_gaps_total", "Gaps in the numbers of KV events.");
  kv_replayed_ =
      total("tandem_router_kv_replayed_total", "Messages that publishers sent again on request.");
  kv_resets_ = total("tandem_router_kv_resets_total",
                     "Times that what a publisher told was void: gaps that stayed, restarts.");
  tokens_hits_ = total("tandem_router_tokenizer_cache_hit_bytes_total",
                       "Prompt text whose token ids were known from before.");
  tokens_misses_ = total("tandem_router_tokenizer_cache_miss_bytes_total",
                         "Prompt text that was tokenized anew, beyond short pieces.");
}

void RouterMetrics::count_request(const std::string& route, int status) {
  const auto key = std::make_pair(route, status);
  auto found = requests_.find(key);
  if (found == requests_.end()) {
    const observe::Labels labels{{"route", route}, {"code", std::to_string(status)}};
    found = requests_
                .emplace(key, metrics_.counter("tandem_router_requests_total", "Answered requests.",
                                               labels))
                .first;
  }
  found->second.add();
}

RouterMetrics::OfModel& RouterMetrics::of_model(const std::string& id) {
  const auto found = models_.find(id);
  if (found != models_.end()) return found->second;
  const observe::Labels labels{{"model_name", id}};
  return models_
      .emplace(id, OfModel{metrics_.counter("tandem_router_model_requests_total",
                                            "Generation requests placed, by model.", labels),
                           metrics_.counter(
                               "tandem_prompt_tokens_total",
                               "Prompt tokens of finished requests, as told to clients.", labels),
                           metrics_.counter("tandem_generation_tokens_total",
                                            "Generated tokens of finished requests.", labels)})
      .first->second;
}

RouterMetrics::OfConnector& RouterMetrics::of_connector(const Connector& connector) {
  const auto found = connectors_.find(&connector);
  if (found != connectors_.end()) return found->second;
  const observe::Labels labels{{"connector", std::string(connector.name)}};
  return connectors_
      .emplace(&connector,
               OfConnector{metrics_.histogram("tandem_router_first_byte_seconds",
                                              "Request to first byte of the answer, by connector.",
                                              observe::latency_buckets(), labels),
                           metrics_.histogram("tandem_router_prefill_seconds",
                                              "Prefill legs, sent to answered.",
                                              observe::latency_buckets(), labels)})
      .first->second;
}

namespace {

const char* outcome_name(LegFailure failure) {
  switch (failure) {
    case LegFailure::kRefused:
      return "refused";
    case LegFailure::kBusy:
      return "busy";
    case LegFailure::kFailed:
      return "failed";
    case LegFailure::kLostPeer:
      return "lost_peer";
    case LegFailure::kDied:
      return "died";
    case LegFailure::kUnreached:
      return "unreached";
  }
  return "failed";
}

}  // namespace

void RouterMetrics::count_leg(const WorkerRegistry& registry, WorkerId worker, Leg leg,
                              const char* outcome) {
  const auto key = std::make_tuple(worker, leg, outcome);
  auto found = legs_.find(key);
  if (found == legs_.end()) {
    const observe::Labels labels{{"worker", registry.url_text(worker)},
                                 {"connector", std::string(registry.connector(worker).name)},
                                 {"leg", leg == Leg::kPrefill ? "prefill" : "answer"},
                                 {"outcome", outcome}};
    found = legs_
                .emplace(key, metrics_.counter("tandem_router_legs_total",
                                               "Legs by how they ended.", labels))
                .first;
  }
  found->second.add();
}

void RouterMetrics::leg_ended(const WorkerRegistry& registry, WorkerId worker, Leg leg,
                              std::optional<LegFailure> failure) {
  count_leg(registry, worker, leg, failure ? outcome_name(*failure) : "ok");
}

void RouterMetrics::leg_cancelled(const WorkerRegistry& registry, WorkerId worker, Leg leg) {
  count_leg(registry, worker, leg, "cancelled");
}

void RouterMetrics::sample(const WorkerRegistry& registry, const LoadLedger& ledger,
                           const PrefixHolders& holders, const KvFeeds& feeds,
                           const text::Tokenizer* engines_tokenizer) {
  for (WorkerId id = 0; id < registry.size(); ++id) {
    const observe::Labels labels{{"worker", registry.url_text(id)},
                                 {"role", role_name(registry.role(id))},
                                 {"model_name", registry.info(id).model_id}};
    const Load& load = ledger.of(id);
    metrics_.gauge("tandem_router_worker_up", "1 when the worker answers its polls.", labels)
        .set(registry.up(id) ? 1 : 0);
    metrics_
        .gauge("tandem_router_worker_silent",
               "1 when it has requests and does not answer its health route.", labels)
        .set(registry.silent(id) ? 1 : 0);
    metrics_
        .gauge("tandem_router_worker_breaker_open", "1 when failures keep requests away.", labels)
        .set(registry.breaker_open(id) ? 1 : 0);
    metrics_.gauge("tandem_router_worker_draining", "1 when it takes no new requests.", labels)
        .set(registry.draining(id) ? 1 : 0);
    metrics_
        .gauge("tandem_router_worker_foreign_requests",
               "Requests there that others gave it, by its last report.", labels)
        .set(static_cast<double>(registry.others_requests(id)));
    metrics_.gauge("tandem_router_inflight_legs", "Legs in flight.", labels).set(load.running);
    metrics_
        .gauge("tandem_router_queued_prompt_tokens", "Prompt tokens given and not yet computed.",
               labels)
        .set(static_cast<double>(load.queued_tokens));
    metrics_.gauge("tandem_router_held_tokens", "Context of the legs in flight.", labels)
        .set(static_cast<double>(load.held_tokens));
  }
  sample_prefixes(holders, feeds);
  sample_tokenizers(registry, engines_tokenizer);
}

void RouterMetrics::sample_prefixes(const PrefixHolders& holders, const KvFeeds& feeds) {
  const PrefixHolders::Counts known = holders.counts();
  const KvFeeds::Counts heard = feeds.counts();
  const auto set = [](observe::Gauge& gauge, auto value) { gauge.set(static_cast<double>(value)); };
  set(prefix_blocks_, known.blocks);
  set(prefix_entries_, known.entries);
  set(prefix_bytes_, known.bytes);
  set(prefix_expected_, known.expected);
  set(kv_feeds_, heard.feeds.feeds);
  set(kv_held_bytes_, heard.feeds.held_bytes);
  prefix_evictions_.set(known.evictions);
  kv_stored_.set(known.stored);
  kv_removed_.set(known.removed);
  kv_orphans_.set(known.unknown_parents);
  kv_ignored_.set(known.ignored);
  kv_bad_.set(heard.bad_batches + heard.feeds.errors);
  kv_gaps_.set(heard.feeds.gaps);
  kv_replayed_.set(heard.feeds.replayed);
  kv_resets_.set(heard.feeds.resets);
}

// A model that is not served any more takes its counts with it: what is told never falls.
void RouterMetrics::sample_tokenizers(const WorkerRegistry& registry,
                                      const text::Tokenizer* engines_tokenizer) {
  text::SegmentCache::Counts sum;
  const auto add = [&](const text::Tokenizer* tokenizer) {
    if (tokenizer == nullptr || tokenizer->segment_cache() == nullptr) return;
    const text::SegmentCache::Counts one = tokenizer->segment_cache()->counts();
    sum.bytes += one.bytes;
    sum.hit_bytes += one.hit_bytes;
    sum.miss_bytes += one.miss_bytes;
  };
  add(engines_tokenizer);
  for (const ModelList::Pointer& model : registry.models()->all()) add(model->tokenizer.get());
  tokens_bytes_.set(static_cast<double>(sum.bytes));
  tokens_hits_.set(sum.hit_bytes);
  tokens_misses_.set(sum.miss_bytes);
}

}  // namespace tandem::router
