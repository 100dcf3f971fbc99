// MockServer: one modelled engine behind HTTP, in the dialect and role of its options.
//
// Besides the dialect's own routes: GET /mock/state (counts; all of "running", "rooms.open" and
// "rooms.waiting" are zero when nothing was leaked), GET /mock/requests (the last ones as they
// came, with MockOptions::record), POST /mock/faults {"faults": ["stall*0.1"]}, POST /mock/restart.
// A request with the header x-mock-fault: [ROLE:]FAULT gets that one. A prefill server has a second
// port, its side channel, where decode servers of any process come for KV.
//
// Everything on the reactor's thread. Made by std::make_shared.
#pragma once

#include <array>
#include <deque>
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
  // Where rank 0 publishes KV events: "ENDPOINT,REPLAY_ENDPOINT", or empty.
  std::string kv_events() const;
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
  struct StaticReply;
  static std::span<const Route> routes();

  net::asio::awaitable<void> handle(net::HttpRequest& request, net::HttpResponder& responder);
  net::asio::awaitable<void> handle_bootstrap(net::HttpRequest& request,
                                              net::HttpResponder& responder);
  net::asio::awaitable<void> generate(Api api, net::HttpRequest& request,
                                      net::HttpResponder& responder);
  void begin_life();
  Status open_voices();
  Status try_voices();
  Identity identity(int32_t rank) const;
  std::optional<Fault> wished_fault(const net::HttpRequest& request) const;
  Duration read_pause(const net::HttpRequest& request);
  void record(const net::HttpRequest& request);
  std::shared_ptr<const StaticReply> static_reply(Api api);
  net::asio::awaitable<void> answer_static(Api api, net::HttpRequest& request,
                                           net::HttpResponder& responder);
  net::asio::awaitable<void> tick_loop(std::shared_ptr<MockServer> self);
  // True: the request is over.
  net::asio::awaitable<bool> fail_early(const Fault& fault, net::HttpResponder& responder);
  net::asio::awaitable<void> run_prefill(Running& run, net::HttpResponder& responder);
  net::asio::awaitable<void> run_answer(Running& run, net::HttpResponder& responder);
  net::asio::awaitable<bool> compute(Running& run);
  net::asio::awaitable<Status> take(Running& run);
  net::asio::awaitable<void> answer(Running& run, ReplyPlan plan, net::HttpResponder& responder);
  net::asio::awaitable<void> stream(Running& run, const Reply& reply,
                                    net::HttpResponder& responder);
  // One decode step, as slow as its fault wants; false: cancelled.
  static net::asio::awaitable<bool> step(Running& run);
  net::asio::awaitable<bool> write(net::HttpResponder& responder, std::string bytes);
  net::asio::awaitable<void> until_gone(Running* run, net::HttpResponder& responder);
  net::asio::awaitable<void> expiry_loop(std::weak_ptr<MockServer> weak);

  net::asio::awaitable<void> simple_route(const std::string& what, net::HttpRequest& request,
                                          net::HttpResponder& responder);
  void abort_requests(const JsonValue& wish);
  static void cancel_run(Running& run);
  std::string metrics_text() const;
  JsonValue server_info() const;
  JsonValue loads() const;
  static size_t rank_of(const Running& run);
  JsonValue tandem_info() const;
  std::string mint_id();

  net::Reactor& reactor_;
  net::HttpClient& client_;
  MockOptions options_;
  Faults faults_;
  Identity me_;
  std::vector<std::shared_ptr<EngineModel>> engines_;  // one for each data-parallel rank
  std::vector<std::unique_ptr<KvVoice>> voices_;       // by rank; empty: events go nowhere
  std::vector<int64_t> rank_requests_;
  int32_t next_rank_ = 0;
  std::shared_ptr<Rooms> rooms_;
  std::unique_ptr<net::HttpServer> server_;
  std::unique_ptr<net::HttpServer> bootstrap_;
  uint16_t port_ = 0;
  std::multimap<std::string, Running*> running_;  // by request id
  std::deque<JsonValue> recorded_;
  std::array<std::shared_ptr<const StaticReply>, kApis> static_replies_;
  std::vector<std::unique_ptr<net::Event>> ticks_;
  bool ticking_ = false;
  int64_t static_running_ = 0;
  // Moments of the steady clock in nanoseconds, for tests of how fast a router cuts the other leg.
  int64_t last_fault_ = 0;
  int64_t last_disconnect_ = 0;
  int64_t requests_ = 0;
  int64_t refused_ = 0;
  int64_t completed_ = 0;
  int64_t disconnects_ = 0;
  int64_t aborts_ = 0;
};

}  // namespace tandem::mock
