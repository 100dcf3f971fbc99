#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include <malloc.h>

#include "cli/commands.h"
#include "cli/common.h"
#include "cli/router_flags.h"
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
  options.choice(policy, "policy", router::policy_names(),
                 "how workers are chosen: auto by the cost in seconds of what is cached, queued and "
                 "held; the others for comparison");
  options.value(
      local_prefill_tokens, "local-prefill-tokens", "N",
      "an uncached tail up to this is computed by the decode worker that holds the prefix", 0,
      1 << 20);
  options.flag(quiet, "no-access-log", "no log line for each request");
}

router::RouterOptions RouterFlags::router_options() const {
  router::RouterOptions options;
  options.api_keys = api_keys;
  options.request_timeout = request_timeout;
  options.policy.kind = router::parse_policy(policy).value_or(router::PolicyKind::kAuto);
  options.policy.local_prefill_tokens = local_prefill_tokens;
  options.access_log = !quiet;
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
  return options;
}

Result<std::unique_ptr<RouterProcess>> RouterProcess::create(
    const RouterFlags& flags, std::vector<router::WorkerAddress> workers, std::string secret,
    Duration drain) {
  // Large bodies go back to the system when they are done: glibc would raise the limit at the first
  // one and keep the next ones in its heaps.
  ::mallopt(M_MMAP_THRESHOLD, 256 << 10);
  std::unique_ptr<RouterProcess> process(new RouterProcess);
  process->drain_ = drain;
  router::RouterOptions options = flags.router_options();
  options.workers = std::move(workers);
  options.secret = std::move(secret);
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
  std::vector<std::string> prefill;
  std::vector<std::string> decode;
  std::vector<std::string> unified;
  Duration drain = std::chrono::seconds(30);
  std::string log_level = "info";
  options.list(prefill, "prefill", "URL", "prefill workers");
  options.list(decode, "decode", "URL", "decode workers");
  options.list(unified, "unified", "URL", "unified workers");
  flags.declare(options);
  options.value(drain, "drain-timeout", "TIME",
                "how long running requests may go on after SIGTERM");
  options.choice(log_level, "log-level", {"debug", "info", "warning", "error", "off"},
                 "what the log says on stderr");
  options.example(
      "tandem router --prefill http://127.0.0.1:8101 --decode http://127.0.0.1:8102 "
      "http://127.0.0.1:8103");
  auto parsed = options.parse(arguments);
  if (!parsed) return report(parsed.error());
  if (parsed->help) {
    std::fputs(parsed->help->c_str(), stdout);
    return 0;
  }
  observe::set_log_level(log_level);
  observe::set_log_name("router");
  if (unified.empty() && (prefill.empty() || decode.empty())) {
    return report(Error{400, "invalid_option",
                        "Name at least one --prefill and one --decode worker, or --unified workers "
                        "(see tandem router --help)."});
  }
  if (auto secret = check_pair_secret(!prefill.empty() || !decode.empty()); !secret)
    return report(secret.error());
  std::vector<router::WorkerAddress> workers;
  workers.reserve(prefill.size() + decode.size() + unified.size());
  for (const auto& url : prefill) workers.push_back({url, router::WorkerRole::kPrefill});
  for (const auto& url : decode) workers.push_back({url, router::WorkerRole::kDecode});
  for (const auto& url : unified) workers.push_back({url, router::WorkerRole::kUnified});
  Signals signals;
  auto process = RouterProcess::create(flags, std::move(workers), shared_secret(), drain);
  if (!process) return report(process.error());
  signals.on_signal([&] { (*process)->shut_down(); });
  std::printf("listening on http://%s:%u\n", flags.host.c_str(), (*process)->port());
  std::fflush(stdout);
  (*process)->run();
  return 0;
}

}  // namespace tandem::cli
