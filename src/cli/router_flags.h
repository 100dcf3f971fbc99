// Options of the router that `tandem router` and `tandem up` share, and those of a fleet that is
// given by hand.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "config/options.h"
#include "net/http_server.h"
#include "net/reactor.h"
#include "router/router.h"

namespace tandem::cli {

struct RouterFlags {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;
  std::vector<std::string> api_keys;
  Duration request_timeout = std::chrono::minutes(30);
  Duration keep_alive = std::chrono::seconds(120);
  config::Bytes max_body{size_t{64} << 20};
  config::Bytes max_bodies{size_t{1} << 30};
  int32_t max_connections = 4096;
  std::vector<std::string> cors_origins = {"local"};
  std::string policy = "auto";
  int32_t max_inflight = 0;
  int32_t max_inflight_tokens = 0;
  int32_t max_queued = 1024;
  config::Bytes kv_index{size_t{256} << 20};
  config::Bytes response_store{size_t{64} << 20};
  Duration max_queue_wait = std::chrono::seconds(60);
  int32_t local_prefill_tokens = 256;
  std::vector<std::string> admin_keys;
  Duration heartbeat{};
  int32_t retry_percent = 20;
  bool keep_authorization = false;
  bool hide_workers = false;
  std::string tls_certificate;
  std::string tls_key;
  bool quiet = false;

  void declare(config::Options& options);
  router::RouterOptions router_options() const;
  Result<net::ServerOptions> server_options() const;
};

// The workers of `tandem router`: Tandem's own or other engines'.
struct FleetFlags {
  std::string connector = "tandem";
  std::vector<std::string> prefill;
  std::vector<std::string> decode;
  std::vector<std::string> unified;
  std::vector<std::string> bootstrap_ports;
  std::string model;
  std::string worker_api_key;
  std::string worker_ca;
  Duration health_interval = std::chrono::seconds(1);
  Duration health_timeout = std::chrono::seconds(5);
  Duration silence_limit = std::chrono::minutes(5);
  int32_t warm_connections = 4;
  std::vector<std::string> kv_events;
  std::string tokenizer;
  bool lease_only = false;
  std::string workers_file;
  std::vector<router::WorkerAddress> tables;  // [[workers]]

  void declare(config::Options& options);
  // Errors: 400 with what is missing.
  Result<std::vector<router::WorkerAddress>> workers() const;
  // Errors: 400 for a tokenizer that cannot be read.
  Status apply(router::RouterOptions& options) const;
};

// A router with its HTTP server on one reactor. run() returns after shut_down() has drained.
class RouterProcess {
 public:
  static Result<std::unique_ptr<RouterProcess>> create(const RouterFlags& flags,
                                                       router::RouterOptions options,
                                                       Duration drain);
  uint16_t port() const { return port_; }
  void run() { reactor_.run(); }
  // Runs `action` on the reactor once the workers are ready to answer. Before run().
  void when_ready(std::function<void()> action);
  void shut_down();                                 // any thread
  void move_worker(size_t index, std::string url);  // any thread

 private:
  RouterProcess() = default;
  net::asio::awaitable<void> drain_and_stop();
  net::asio::awaitable<void> wait_ready(std::function<void()> action);
  net::Reactor reactor_;
  std::unique_ptr<router::Router> router_;
  std::unique_ptr<net::HttpServer> server_;
  Duration drain_{};
  uint16_t port_ = 0;
  bool draining_ = false;
};

}  // namespace tandem::cli
