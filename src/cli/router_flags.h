// Options of the router that `tandem router` and `tandem up` share.
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
  int32_t local_prefill_tokens = 256;
  bool quiet = false;

  void declare(config::Options& options);
  router::RouterOptions router_options() const;
  Result<net::ServerOptions> server_options() const;
};

// A router with its HTTP server on one reactor. run() returns after shut_down() has drained.
class RouterProcess {
 public:
  static Result<std::unique_ptr<RouterProcess>> create(const RouterFlags& flags,
                                                       std::vector<router::WorkerAddress> workers,
                                                       std::string secret, Duration drain);
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
