// MockServer: one modelled engine behind HTTP, in the dialect and role of its options.
//
// Besides the dialect's own routes: GET /mock/state (counts; all of "running", "rooms.open" and
// "rooms.waiting" are zero when nothing was leaked), POST /mock/faults {"faults": ["stall*0.1"]},
// POST /mock/restart. A request with the header x-mock-fault: FAULT gets that one. A prefill server
// has a second port, its side channel, where decode servers of any process come for KV.
//
// Everything on the reactor's thread. Made by std::make_shared.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mock/dialects.h"
#include "mock/engine_model.h"
#include "mock/faults.h"
#include "mock/reply.h"
#include "mock/rooms.h"
#include "net/http_client.h"
#include "net/http_server.h"

namespace tandem::mock {

class MockServer : public std::enable_shared_from_this<MockServer> {
 public:
  MockServer(net::Reactor& reactor, net::HttpClient& client, MockOptions options);
  ~MockServer();

  Status start();
  uint16_t port() const { return port_; }
  uint16_t bootstrap_port() const { return me_.bootstrap_port; }
  bool has_bootstrap() const { return bootstrap_ != nullptr; }
  std::string url() const;
  void set_faults(std::vector<Fault> faults) { faults_.set(std::move(faults)); }
  // The process died and came back: another engine id; cache, rooms and requests are lost.
  void restart();
  JsonValue state() const;

 private:
  struct Route;
  struct Running;
  friend struct Running;
  static std::span<const Route> routes();

  net::asio::awaitable<void> handle(net::HttpRequest& request, net::HttpResponder& responder);
  net::asio::awaitable<void> handle_bootstrap(net::HttpRequest& request,
                                              net::HttpResponder& responder);
  net::asio::awaitable<void> generate(Api api, net::HttpRequest& request,
                                      net::HttpResponder& responder);
  // True: the request is over.
  net::asio::awaitable<bool> fail_early(const Fault& fault, net::HttpResponder& responder);
  net::asio::awaitable<void> run_prefill(Running& run, net::HttpResponder& responder);
  net::asio::awaitable<void> run_answer(Running& run, net::HttpResponder& responder);
  net::asio::awaitable<bool> compute(Running& run);
  net::asio::awaitable<Status> take(Running& run);
  net::asio::awaitable<void> answer(Running& run, ReplyPlan plan, net::HttpResponder& responder);
  net::asio::awaitable<void> stream(Running& run, const Reply& reply,
                                    net::HttpResponder& responder);
  net::asio::awaitable<bool> write(net::HttpResponder& responder, std::string bytes);
  net::asio::awaitable<void> until_gone(Running* run, net::HttpResponder& responder);
  net::asio::awaitable<void> expiry_loop(std::weak_ptr<MockServer> weak);

  net::asio::awaitable<void> simple_route(const std::string& what, net::HttpRequest& request,
                                          net::HttpResponder& responder);
  void abort_requests(const JsonValue& wish);
  static void cancel_run(Running& run);
  std::string metrics_text() const;
  JsonValue server_info() const;
  JsonValue tandem_info() const;
  std::string mint_id();

  net::Reactor& reactor_;
  net::HttpClient& client_;
  MockOptions options_;
  Faults faults_;
  Identity me_;
  std::shared_ptr<EngineModel> engine_;
  std::shared_ptr<Rooms> rooms_;
  std::unique_ptr<net::HttpServer> server_;
  std::unique_ptr<net::HttpServer> bootstrap_;
  uint16_t port_ = 0;
  std::multimap<std::string, Running*> running_;  // by request id
  int64_t requests_ = 0;
  int64_t refused_ = 0;
  int64_t completed_ = 0;
  int64_t disconnects_ = 0;
  int64_t aborts_ = 0;
};

}  // namespace tandem::mock
