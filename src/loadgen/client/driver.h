// Driver: sends a dataset's requests to an OpenAI-compatible server, in a closed loop (so many
// clients, each asks again when it was answered) or an open one (arrivals at their own times), and
// hands every request's measurements on.
//
// Everything on the reactor's thread. Open requests, and so memory, are bounded by `concurrency`
// or `most_open`.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "loadgen/arrivals.h"
#include "loadgen/client/conversation.h"
#include "loadgen/dataset.h"
#include "loadgen/record.h"
#include "net/event.h"
#include "net/http_client.h"

namespace tandem::loadgen {

struct Target {
  net::Url url;
  std::string path = "/v1/chat/completions";  // behind the URL's base
  net::Headers headers;
  net::ClientTimeouts timeouts;
  BodyOptions body;
};

struct Schedule {
  int32_t concurrency = 1;                 // clients of the closed loop
  std::optional<ArrivalOptions> arrivals;  // open loop
  bool trace_times = false;                // open loop, at the dataset's times
  double speed = 1;                        // of those times
  int32_t most_open = 4096;  // an open loop sends later instead of having more; the lag tells
  int64_t requests = 0;      // so many in all; 0: no limit
  double seconds = 0;        // no request is sent later; 0: no limit
  double grace = 60;         // for the answers that are open then
  double think_scale = 1;
  std::string session_prefix =
      "bench-";  // of the keys of sessions that have one (x-session-affinity)
};

class Driver {
 public:
  struct Listener {  // each may be empty
    std::function<void(double)> sent;
    std::function<void(double)> piece;
    std::function<void(const RequestRecord&, const std::vector<double>& gaps)> ended;
    std::function<void(ErrorKind, std::string_view)> explain;
  };

  // The arguments outlive the driver.
  Driver(net::Reactor& reactor, net::HttpClient& client, const Target& target,
         const Schedule& schedule, Dataset& dataset, Listener listener);
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // Until everything that was sent has ended. Once.
  net::asio::awaitable<void> run();
  // Now: what is open becomes "unfinished".
  void stop();
  bool stopping() const { return stopping_; }
  double now() const;  // seconds since run() began

 private:
  class Timer;
  bool may_send() const;
  bool take_place();  // counts one request of the limit
  net::asio::awaitable<void> closed_client();
  net::asio::awaitable<void> arrivals();
  net::asio::awaitable<void> arrive(Session session, double planned);
  net::asio::awaitable<void> run_session(const Session& session, double planned);
  net::asio::awaitable<RequestRecord> ask(RequestRecord record, const Session& session,
                                          std::string body, std::string& answer);
  net::asio::awaitable<void> sleep_until(double seconds);
  net::asio::awaitable<void> watch_end();
  void left();

  net::Reactor& reactor_;
  net::HttpClient& client_;
  const Target& target_;
  const Schedule& schedule_;
  Dataset& dataset_;
  Listener listener_;
  TimePoint begin_{};
  bool stopping_ = false;
  int64_t issued_ = 0;
  int32_t open_sessions_ = 0;
  int32_t live_ = 0;  // coroutines of ours
  net::Event changed_;
  std::set<net::ClientCall*> calls_;
  std::set<Timer*> timers_;
};

// What a server is like, found with two short requests and, where no model was named, its list of
// models.
struct Probe {
  std::string model;
  WordRate words;
  bool counts_tokens = false;  // usage came
};
net::asio::awaitable<Result<Probe>> probe(net::HttpClient& client, Target target);

}  // namespace tandem::loadgen
