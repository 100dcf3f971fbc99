#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "cli/commands.h"
#include "cli/common.h"
#include "cli/router_flags.h"
#include "cli/tokenizer_file.h"
#include "net/heap.h"
#include "net/stream.h"
#include "observe/log.h"
#include "router/request_id.h"

namespace tandem::cli {

void RouterFlags::declare(config::Options& options) {
  options.value(host, "host", "ADDRESS", "address to listen on");
  options.value(port, "port", "PORT", "port to listen on; 0: the system picks");
  options.list(api_keys, "api-key", "KEY",
               "keys that clients must send (Authorization: Bearer KEY); none: everyone is served");
  options.value(request_timeout, "request-timeout", "TIME", "longest time for one request");
  options.list(
      cors_origins, "cors-origin", "ORIGIN",
      "web pages that may call: https://HOST, *, local (this machine's; the default), none");
  options.value(keep_alive, "keep-alive", "TIME", "idle connections are kept so long");
  options.value(max_body, "max-body", "SIZE", "largest request body");
  options.value(max_bodies, "max-bodies", "SIZE",
                "memory of all request bodies together; more are answered 503");
  options.value(max_connections, "max-connections", "N",
                "open client connections; more are answered 503", 1, 1 << 20);
  options.choice(
      policy, "policy", router::policy_names(),
      "how workers are chosen: auto by the cost in seconds of what is cached, queued and "
      "held; the others for comparison");
  options.value(
      local_prefill_tokens, "local-prefill-tokens", "N",
      "an uncached tail up to this is computed by the decode worker that holds the prefix", 0,
      1 << 20);
  options.value(max_inflight, "max-inflight", "N",
                "requests in flight for each worker that answers; more wait their turn, fairly "
                "between API keys (x-request-priority: urgent, normal, batch); 0: no limit",
                0, 1 << 20);
  options.value(max_inflight_tokens, "max-inflight-tokens", "N",
                "the same in tokens, prompts and expected answers; 0: no limit", 0, 1 << 30);
  options.value(max_queued, "max-queued", "N", "requests that wait, more are answered 429", 1,
                1 << 20);
  options.value(max_queue_wait, "max-queue-wait", "TIME",
                "what would wait longer is answered 429 with Retry-After");
  options.list(admin_keys, "admin-key", "KEY",
               "keys of the routes that change the fleet (/router/workers); none: the API keys");
  options.value(kv_index, "kv-index", "SIZE", "memory for what is known of the workers' caches");
  options.value(response_store, "response-store", "SIZE",
                "memory for responses of /v1/responses that others may go on from");
  options.value(heartbeat, "heartbeat", "TIME",
                "a comment in streams that were silent so long, for proxies that give up; 0: none");
  options.value(retry_percent, "retry-budget", "PERCENT",
                "requests that may be repeated, of all (and ten a second besides)", 0, 1000);
  options.flag(keep_authorization, "keep-authorization",
               "the client's API key is not passed on to the workers");
  options.flag(hide_workers, "no-worker-headers",
               "answers do not name the workers (x-tandem-worker and its like)");
  options.value(tls_certificate, "tls-cert", "FILE", "serve https: certificate chain, PEM");
  options.value(tls_key, "tls-key", "FILE", "the certificate's key, PEM");
  options.flag(quiet, "no-access-log", "no log line for each request");
}

router::RouterOptions RouterFlags::router_options() const {
  router::RouterOptions options;
  options.api_keys = api_keys;
  options.request_timeout = request_timeout;
  options.policy.kind = router::parse_policy(policy).value_or(router::PolicyKind::kAuto);
  options.policy.local_prefill_tokens = local_prefill_tokens;
  options.admission_limits = {max_inflight, max_inflight_tokens};
  options.admission.max_queued = static_cast<size_t>(max_queued);
  options.admission.max_wait = max_queue_wait;
  options.access_log = !quiet;
  options.holders.max_bytes = kv_index.value;
  options.response_store_bytes = response_store.value;
  options.admin_keys = admin_keys;
  options.heartbeat = heartbeat;
  options.retries.share = retry_percent / 100.0;
  options.forward_authorization = !keep_authorization;
  options.tell_workers = !hide_workers;
  return options;
}

Result<net::ServerOptions> RouterFlags::server_options() const {
  net::ServerOptions options;
  TANDEM_TRY(cors, net::CorsPolicy::parse(cors_origins));
  options.cors = std::move(cors);
  options.max_connections = static_cast<size_t>(max_connections);
  options.host = host;
  options.port = port;
  options.keep_alive = keep_alive;
  options.max_body_bytes = max_body.value;
  options.max_buffered_bytes = max_bodies.value;
  options.tls_certificate = tls_certificate;
  options.tls_key = tls_key;
  return options;
}

void FleetFlags::declare(config::Options& options) {
  std::vector<std::string> names;
  for (const router::Connector& row : router::connectors()) names.emplace_back(row.name);
  options.choice(connector, "connector", std::move(names),
                 "what the workers are and how their pairs meet");
  options.list(prefill, "prefill", "URL", "prefill workers");
  options.list(decode, "decode", "URL", "decode workers");
  options.list(unified, "worker", "URL", "workers that do everything themselves");
  options.value(
      workers_file, "workers-file", "FILE",
      "a JSON list of workers that is followed while it changes: {\"workers\": [{\"url\": ..., "
      "\"role\": ..., \"ready\": ...}]}");
  options.list(bootstrap_ports, "bootstrap-port", "PORT",
               "side channels of the prefill workers, in their order; else as they say, or the "
               "engine's usual port");
  options.value(model, "model", "NAME", "the engines' model; else as their /v1/models say");
  options.value(worker_api_key, "worker-api-key", "KEY",
                "the engines' own API key: for the router's questions, and for requests that come "
                "without one");
  options.value(worker_ca, "worker-ca", "FILE",
                "authorities of https workers besides the system's, PEM");
  options.value(health_interval, "health-interval", "TIME", "between two looks at an engine");
  options.value(health_timeout, "health-timeout", "TIME",
                "an engine that does not answer for so long, three times in a row, is down, unless "
                "it works on requests");
  options.value(silence_limit, "silence-limit", "TIME",
                "an engine with requests that says nothing at all for so long is down; 0: never");
  options.value(warm_connections, "warm-connections", "N",
                "connections opened ahead to each worker", 0, 256);
  options.list(kv_events, "kv-events", "URL=ENDPOINT",
               "where the worker at URL publishes which blocks it holds (ZeroMQ), and after a "
               "comma, if anywhere, where past events are asked for; else as it says");
  options.value(tokenizer, "tokenizer", "PATH",
                "of the engines' model (a GGUF, a model's folder, tokenizer.json, or what Tandem's "
                "/tandem/v1/tokenizer gives): text is looked up by its tokens");
  options.flag(lease_only, "no-kv-release",
               "KV that a prefill engine holds for nobody is left to its lease");
  options.tables("workers", [this](const config::Options::Table& table) -> Status {
    router::WorkerAddress address;
    address.connector.clear();
    for (const auto& [key, value] : table)
      TANDEM_CHECK(router::set_worker_field(address, key, value));
    if (address.url.empty()) return make_error(400, "bad_worker", "a worker has no url");
    tables.push_back(std::move(address));
    return {};
  });
}

Result<std::vector<router::WorkerAddress>> FleetFlags::workers() const {
  std::vector<router::WorkerAddress> all;
  const auto add = [&](const std::vector<std::string>& urls, router::WorkerRole role) {
    for (const std::string& url : urls)
      all.push_back({.url = url, .role = role, .connector = connector, .model = model});
  };
  add(prefill, router::WorkerRole::kPrefill);
  for (size_t i = 0; i < bootstrap_ports.size(); ++i) {
    if (i >= all.size())
      return make_error(400, "invalid_option", "There are more --bootstrap-port than --prefill.");
    TANDEM_CHECK(router::set_worker_field(all[i], "bootstrap_port", bootstrap_ports[i]));
  }
  add(decode, router::WorkerRole::kDecode);
  add(unified, router::WorkerRole::kUnified);
  for (router::WorkerAddress address : tables) {
    if (address.connector.empty()) address.connector = connector;
    if (address.model.empty()) address.model = model;
    all.push_back(std::move(address));
  }
  for (const std::string& given : kv_events) {
    const size_t equals = given.find('=');
    const auto found = std::ranges::find(all, given.substr(0, equals), &router::WorkerAddress::url);
    if (equals == std::string::npos || found == all.end())
      return make_error(400, "invalid_option",
                        "--kv-events '" + given + "' is not WORKER_URL=tcp://HOST:PORT.");
    TANDEM_CHECK(router::set_worker_field(*found, "kv_events", given.substr(equals + 1)));
  }
  const auto has = [&](router::WorkerRole role) {
    return std::ranges::find(all, role, &router::WorkerAddress::role) != all.end();
  };
  if (workers_file.empty() && !has(router::WorkerRole::kUnified) &&
      !(has(router::WorkerRole::kPrefill) && has(router::WorkerRole::kDecode))) {
    return make_error(400, "invalid_option",
                      "Name at least one --prefill and one --decode worker, or --worker, or a "
                      "--workers-file (see tandem router --help).");
  }
  return all;
}

Status FleetFlags::apply(router::RouterOptions& options) const {
  options.fleet_file = workers_file;
  options.listed_worker.connector = connector;
  options.listed_worker.model = model;
  if (!tokenizer.empty()) {
    TANDEM_TRY(spec, load_tokenizer_spec(tokenizer));
    options.tokenizer = std::move(spec);
  }
  options.worker_api_key = worker_api_key;
  options.health_interval = health_interval;
  options.health_timeout = health_timeout;
  options.silence_limit = silence_limit;
  options.warm_connections = static_cast<size_t>(warm_connections);
  options.release_kv = !lease_only;
  return {};
}

Result<std::unique_ptr<RouterProcess>> RouterProcess::create(const RouterFlags& flags,
                                                             router::RouterOptions options,
                                                             Duration drain) {
  net::keep_freed_memory();
  std::unique_ptr<RouterProcess> process(new RouterProcess);
  process->drain_ = drain;
  process->router_ = std::make_unique<router::Router>(process->reactor_, std::move(options));
  TANDEM_CHECK(process->router_->start());
  TANDEM_TRY(server_options, flags.server_options());
  server_options.metrics = &process->router_->metrics();
  server_options.identify = router::request_id_of;
  process->server_ =
      std::make_unique<net::HttpServer>(process->reactor_, std::move(server_options),
                                        process->router_->handler(), process->router_->gate());
  TANDEM_TRY(port, process->server_->listen());
  process->port_ = port;
  return process;
}

void RouterProcess::shut_down() {
  reactor_.post([this] {
    if (std::exchange(draining_, true)) return;
    router_->begin_drain(drain_);
    server_->announce_close();
    reactor_.spawn(drain_and_stop());
  });
}

net::asio::awaitable<void> RouterProcess::drain_and_stop() {
  // The port stays open while requests run: a load balancer that probes /ready must see its 503,
  // and a client that still comes a 503 with Retry-After, not a refused connection.
  const TimePoint until = std::chrono::steady_clock::now() + drain_;
  while (server_->running_requests() > 0 && std::chrono::steady_clock::now() < until) {
    co_await reactor_.sleep(std::chrono::milliseconds(20));
  }
  // The router ends what is left at the limit, with an error each; give those answers time to
  // leave.
  if (!co_await server_->drain(
          std::max<Duration>(until - std::chrono::steady_clock::now(), Duration::zero()) +
          std::chrono::seconds(2)))
    observe::log_warning("the drain limit passed: the remaining requests were cut");
  reactor_.stop();
}

void RouterProcess::when_ready(std::function<void()> action) {
  reactor_.spawn(wait_ready(std::move(action)));
}

net::asio::awaitable<void> RouterProcess::wait_ready(std::function<void()> action) {
  while (!router_->complete() && !draining_) co_await reactor_.sleep(std::chrono::milliseconds(5));
  if (!draining_) action();
}

void RouterProcess::move_worker(size_t index, std::string url) {
  reactor_.post([this, index, url = std::move(url)] {
    if (auto moved = router_->move_worker(index, url); !moved)
      observe::log_error("{}", moved.error().message);
  });
}

int run_router(const Arguments& arguments) {
  config::Options options(
      "router", "Runs the router in front of prefill and decode workers, or of unified ones.");
  RouterFlags flags;
  FleetFlags fleet;
  Duration drain = std::chrono::seconds(30);
  std::string log_level = "info";
  fleet.declare(options);
  flags.declare(options);
  options.value(drain, "drain-timeout", "TIME",
                "how long running requests may go on after SIGTERM");
  options.choice(log_level, "log-level", {"debug", "info", "warning", "error", "off"},
                 "what the log says on stderr");
  options.example(
      "tandem router --prefill http://127.0.0.1:8101 --decode http://127.0.0.1:8102 "
      "http://127.0.0.1:8103");
  options.example(
      "tandem router --connector sglang --prefill http://10.0.0.1:30000 --decode "
      "http://10.0.0.2:30000");
  options.example("tandem router --connector plain --worker https://a.example https://b.example");
  auto parsed = options.parse(arguments);
  if (!parsed) return report(parsed.error());
  if (parsed->help) {
    std::fputs(parsed->help->c_str(), stdout);
    return 0;
  }
  observe::set_log_level(log_level);
  observe::set_log_name("router");
  auto workers = fleet.workers();
  if (!workers) return report(workers.error());
  const bool own_pair = std::ranges::any_of(*workers, [](const router::WorkerAddress& worker) {
    return worker.connector == "tandem" && worker.role != router::WorkerRole::kUnified;
  });
  if (auto secret = check_pair_secret(own_pair); !secret) return report(secret.error());
  if (!fleet.worker_ca.empty()) {
    if (auto trusted = net::trust_also(fleet.worker_ca); !trusted) return report(trusted.error());
  }
  router::RouterOptions router_options = flags.router_options();
  if (auto applied = fleet.apply(router_options); !applied) return report(applied.error());
  router_options.workers = std::move(*workers);
  router_options.secret = shared_secret();
  raise_descriptor_limit();
  Signals signals;
  auto process = RouterProcess::create(flags, std::move(router_options), drain);
  if (!process) return report(process.error());
  signals.on_signal([&] { (*process)->shut_down(); });
  std::printf("listening on %s://%s:%u\n", flags.tls_certificate.empty() ? "http" : "https",
              flags.host.c_str(), (*process)->port());
  std::fflush(stdout);
  (*process)->run();
  return 0;
}

}  // namespace tandem::cli
