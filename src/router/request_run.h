// RequestRun: one generation request in the router. It does what Legs decides: sends legs, cancels
// them, relays the answer. Lives in its handler's coroutine; its legs' coroutines share it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/openai.h"
#include "net/event.h"
#include "net/http_client.h"
#include "net/http_server.h"
#include "net/sse.h"
#include "protocol/content_id.h"
#include "router/legs/legs.h"
#include "router/router_core.h"
#include "router/terminal.h"

namespace tandem::router {

// A request that was read and found good.
struct CheckedRequest {
  std::shared_ptr<const ServedModel> model;
  std::string adapter;                      // empty: the model itself
  std::string salt;                         // of the prompts' cached KV
  std::vector<int32_t> prompt;              // the first
  int64_t prompt_tokens = 0;                // of all prompts
  bool one_worker = false;                  // whatever the pools: prompt logprobs, embeddings, ...
  std::string ids_json;                     // the prompts' ids, shared by every leg's body
  std::vector<protocol::ContentId> blocks;  // of the first prompt
  int32_t max_tokens = 0;
  bool stream = false;
  bool include_usage = false;
  bool report = false;       // x-tandem-report
  std::string affinity_key;  // empty: by the first blocks
  std::string request_id;
  std::string traceparent;
};

// Reads, checks, renders and tokenizes a body (the fields from headers are the caller's). Pure; any
// thread.
Result<CheckedRequest> check_request(api::Endpoint endpoint, const std::string& body,
                                     const ModelList& models);

// The root of a request's blocks in the router's own map of prefixes.
protocol::ContentId prefix_root(const ServedModel& model, const CheckedRequest& checked);

class RequestRun : public std::enable_shared_from_this<RequestRun> {
 public:
  RequestRun(std::shared_ptr<RouterCore> core, net::HttpRequest& request,
             net::HttpResponder& responder, CheckedRequest checked);
  ~RequestRun();

  net::asio::awaitable<void> serve();
  void worker_down(WorkerId worker);
  void stop();  // the router ends: an error answer or an error frame

  // For the access log, after serve().
  struct Summary {
    int status = 0;
    int64_t prompt_tokens = 0;
    int64_t cached_tokens = 0;
    int64_t completion_tokens = 0;
    WorkerId prefill = kNoWorker;
    WorkerId answer = kNoWorker;
    double first_byte_seconds = 0;
  };
  const Summary& summary() const { return summary_; }
  const std::string& model() const { return checked_.model->id; }

 private:
  // One dispatch of one leg: what apply() must be able to cancel while its coroutine waits.
  struct LegRun {
    Decision dispatch;
    std::unique_ptr<net::ClientCall> call;
    LoadShare load;
    TimePoint sent;
    int64_t queued_before = 0;
    bool cancelled = false;
    std::string held;  // frames without content that wait for the first with
    bool frames_seen = false;
    bool done_seen = false;
    bool error_seen = false;  // the worker ended its stream with an error frame
  };
  struct ErrorReply {
    uint32_t serial = 0;
    int status = 502;
    net::Headers headers;
    std::string body;
  };

  void apply(Decisions decisions);
  void act(Decision& decision);
  void place_all();
  void place_answer();
  PlacementRequest placement_request() const;
  void dispatch(const Decision& decision);
  void cancel(uint32_t serial);
  Load load_of(const Decision& decision) const;
  net::ClientRequest leg_request(const Decision& decision) const;
  std::string leg_body(const Decision& decision) const;

  static net::asio::awaitable<void> run_leg(std::shared_ptr<RequestRun> self,
                                            std::shared_ptr<LegRun> leg);
  net::asio::awaitable<void> run_prefill(LegRun& leg);
  net::asio::awaitable<void> run_answer(LegRun& leg);
  net::asio::awaitable<void> take_refusal(LegRun& leg, net::ClientHead head);
  net::asio::awaitable<void> relay_whole(LegRun& leg, net::ClientHead head);
  net::asio::awaitable<void> relay_stream(LegRun& leg, net::ClientHead head);
  // Appends what the client gets for `frame`. False: the leg has failed.
  net::asio::awaitable<bool> relay_frame(LegRun& leg, net::SseFrame& frame, std::string& out);
  // Sends `out` (with the head before it, the first time). False: stop.
  net::asio::awaitable<bool> send_bytes(LegRun& leg, const net::ClientHead& head, std::string& out);
  net::asio::awaitable<Result<Terminal>> make_terminal(LegRun& leg, std::string json);
  net::asio::awaitable<void> answer_at_last();

  void leg_failed(LegRun& leg, LegFailure failure, const Error& error);
  void leg_died(LegRun& leg, const Error& error);
  void learn(const LegRun& leg, const Terminal& terminal);
  bool first_frame_is_empty(const net::SseFrame& frame) const;
  net::Headers reply_headers(const net::Headers& from) const;
  JsonValue report() const;
  Duration time_left() const;

  std::shared_ptr<RouterCore> core_;
  net::HttpRequest& request_;
  net::HttpResponder& responder_;
  CheckedRequest checked_;
  uint64_t affinity_ = 0;
  TimePoint started_;
  Legs legs_;
  std::vector<Decision> queue_;
  bool applying_ = false;
  std::optional<Decision> last_;
  std::vector<std::shared_ptr<LegRun>> running_;
  net::Event wake_;
  net::Event prefill_settled_;
  net::Deadline tick_;
  net::Deadline deadline_;
  Placement placement_;
  std::string handoff_id_;
  bool prefill_pending_ = false;
  std::optional<PrefillReport> prefill_report_;
  std::optional<ErrorReply> error_reply_;
  TimePoint first_byte_;
  bool stream_finished_ = false;
  Summary summary_;
};

}  // namespace tandem::router
