#include "router/router_core.h"

#include <algorithm>
#include <span>
#include <thread>
#include <utility>

#include "numerics/digest.h"
#include "router/request_run.h"

namespace tandem::router {

RouterCore::RouterCore(net::Reactor& reactor_in, RouterOptions options_in)
    : reactor(reactor_in),
      options(std::move(options_in)),
      metrics(metrics_store),
      client(reactor),
      // Two routers of one fleet name blocks alike.
      holders(options.holders, numerics::xxh3(std::as_bytes(std::span(options.secret)))),
      feeds(holders),
      retry_budget(options.retries),
      gate(reactor, options.admission, options.admission_limits, metrics_store),
      random(std::random_device{}()),
      global_ids(std::random_device{}()),
      drain_limit(reactor,
                  [this] {
                    gate.close();
                    const std::set<RequestRun*> now = runs;
                    for (RequestRun* const run : now) run->stop();
                  }),
      registry(reactor, client, ledger,
               {.secret = options.secret,
                .worker_api_key = options.worker_api_key,
                .poll_interval = options.poll_interval,
                .poll_timeout = options.poll_timeout,
                .health_interval = options.health_interval,
                .health_timeout = options.health_timeout,
                .health_failures = options.health_failures,
                .silence_limit = options.silence_limit,
                .health_successes = options.health_successes,
                .warm_connections = options.warm_connections,
                .texts = options.texts},
               {.down =
                    [this](WorkerId worker) {
                      const std::set<RequestRun*> now = runs;
                      for (RequestRun* const run : now) run->worker_down(worker);
                    },
                .new_epoch =
                    [this](WorkerId worker) {
                      if (registry.state(worker) == WorkerRegistry::State::kRemoved)
                        return feeds.forget(worker);
                      feeds.restarted(worker);
                    },
                .learned = [this](WorkerId worker) { listen(worker); }}),
      pool(std::clamp(std::thread::hardware_concurrency() / 4, 2U, 8U)),
      responses(options.response_store_bytes) {}

// To what the worker publishes, if it does.
void RouterCore::listen(WorkerId worker) {
  const EngineInfo& engine = registry.engine(worker);
  KvSource source = parse_kv_source(engine.kv_events, registry.url(worker).host);
  source.ranks = std::max(engine.dp_size, 1);
  feeds.listen(worker, registry.info(worker).model_id, source);
}

PrefixRule RouterCore::prefix_rule(const ServedModel& model) const {
  PrefixRule rule{.hasher = holders.hasher(),
                  .model = model.parent.empty() ? model.id : model.parent,
                  .adapter = model.parent.empty() ? std::string() : model.id,
                  .tokenizer = tokenizer,
                  .chat_template = chat_template};
  rule.block_tokens = holders.block_sizes(rule.model);
  return rule;
}

}  // namespace tandem::router
