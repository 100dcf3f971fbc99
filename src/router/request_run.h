// RequestRun: one generation request in the router. It does what Legs decides: sends legs, cancels
// them, relays the answer. What differs between engines is the model's Connector row; there is one
// path for all. Lives in its handler's coroutine; its legs' coroutines share it, and a leg that was
// let go may outlive the handler: it touches neither request nor responder any more.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "net/event.h"
#include "net/http_client.h"
#include "net/http_server.h"
#include "net/sse.h"
#include "router/checked_request.h"
#include "router/connectors/leg_body.h"
#include "router/legs/legs.h"
#include "router/reply_stream.h"
#include "router/router_core.h"
#include "router/usage/reply_rewriter.h"

namespace tandem::router {

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
    int64_t expected_cached = 0;
    WorkerId prefill = kNoWorker;
    WorkerId answer = kNoWorker;
    int prefill_status = 0;  // what the legs answered; 0: nothing
    int answer_status = 0;
    int retries = 0;
    double first_byte_seconds = 0;
    double prefill_seconds = 0;
    std::string error;  // the code of our own error
  };
  const Summary& summary() const { return summary_; }
  const ServedModel& model() const { return *model_; }

 private:
  // One dispatch of one leg: what apply() must be able to cancel while its coroutine waits.
  struct LegRun {
    Decision dispatch;
    std::unique_ptr<net::ClientCall> call;
    LoadShare load;
    TimePoint sent;
    std::string rid;  // what the engine's abort call names
    bool cancelled = false;
    bool detached = false;                 // its answer goes nowhere
    std::unique_ptr<net::Deadline> limit;  // of a detached leg
    std::string held;                      // frames without content that wait for the first with
    bool frames_seen = false;
    bool done_seen = false;
    bool end_seen = false;    // the last event of APIs without [DONE]
    bool error_seen = false;  // the worker ended its stream with an error frame
    std::unique_ptr<ReplyRewriter> rewriter;
    bool over() const { return cancelled || detached; }
  };
  // An answer that is not relayed as it comes: a refusal, or prefill's when it is the whole answer.
  struct ReadyReply {
    uint32_t serial = 0;
    int status = 502;
    net::Headers headers;
    std::string body;
  };

  void apply(Decisions decisions);
  void act(Decision& decision);
  // Placement.
  void place_all();
  void place_now();
  void place_answer();
  static net::asio::awaitable<void> place_after_relearning(std::shared_ptr<RequestRun> self,
                                                           WorkerId prefill);
  const std::vector<WorkerSnapshot>& candidates();
  struct Holder {
    WorkerId worker;
    int32_t rank;
  };
  std::vector<Holder> who_will_hold() const;
  void expect_blocks();
  void touch_blocks();
  size_t held_blocks(Holder holder, const PromptKeys& kind) const;
  // The data-parallel rank that was chosen for the leg.
  int32_t rank_of(Leg leg) const {
    return leg == Leg::kPrefill ? placement_.prefill_rank : placement_.answer_rank;
  }
  PlacementRequest placement_request() const;
  PolicyOptions policy_options() const;
  void mint_values();
  SideAddress side_of(WorkerId worker, int32_t rank) const;
  Load load_of(const Decision& decision) const;

  // Legs going out (leg_dispatch.cc).
  void dispatch(const Decision& decision);
  void cancel(uint32_t serial);
  void detach(uint32_t serial);
  void release();
  Result<net::ClientRequest> leg_request(LegPart part, WorkerId worker, uint32_t attempt) const;
  std::optional<LegValues> own_values(LegPart part, WorkerId worker, uint32_t attempt) const;
  std::string tandem_envelope(LegPart part, uint32_t attempt) const;
  void abort_engine(const LegRun& leg) const;
  static net::asio::awaitable<void> run_leg(std::shared_ptr<RequestRun> self,
                                            std::shared_ptr<LegRun> leg);
  static net::asio::awaitable<void> run_release(std::shared_ptr<RequestRun> self,
                                                std::shared_ptr<LegRun> leg);
  Duration time_left() const;
  LegPart part_of(const Decision& decision) const;
  bool pair() const { return placement_.prefill != kNoWorker; }

  // Answers coming in (request_relay.cc, stream_relay.cc).
  net::asio::awaitable<void> run_prefill(LegRun& leg);
  Status take_prefill_reply(LegRun& leg, const net::ClientHead& head, std::string body);
  net::asio::awaitable<void> run_answer(LegRun& leg);
  net::asio::awaitable<void> take_refusal(LegRun& leg, net::ClientHead head);
  net::asio::awaitable<void> relay_whole(LegRun& leg, net::ClientHead head);
  net::asio::awaitable<void> relay_stream(LegRun& leg, net::ClientHead head);
  net::asio::awaitable<void> let_attach(LegRun& leg, bool stream);
  // What the client gets of one frame: nothing (false: the leg has failed), the frame as it is, or
  // other bytes in `changed`.
  enum class FrameFate : uint8_t { kRelay, kChanged, kNothing, kFailed };
  net::asio::awaitable<FrameFate> judge_frame(LegRun& leg, const net::SseView& frame,
                                              ReplyRewriter::Need need, std::string& changed);
  struct Outgoing;
  net::asio::awaitable<bool> relay_frames(LegRun& leg, const net::ClientHead& head,
                                          net::SseFramer& framer, Outgoing& out);
  void note_frame(LegRun& leg, const net::SseView& frame) const;
  FrameFate judge_opening(LegRun& leg, const net::SseView& frame);
  net::asio::awaitable<void> await_prefill(LegRun& leg);
  net::asio::awaitable<bool> take_turn(LegRun& leg, const net::ClientHead& head);
  net::asio::awaitable<bool> send_bytes(LegRun& leg, const net::ClientHead& head,
                                        std::string_view out);
  net::asio::awaitable<void> finish_stream(LegRun& leg, const net::ClientHead& head,
                                           std::string_view last);
  void first_byte(LegRun& leg, int status);
  ReplyRules reply_rules() const;
  const PromptTruth* truth() const { return prompt_truth_ ? &*prompt_truth_ : nullptr; }
  net::asio::awaitable<void> answer_at_last();
  net::asio::awaitable<void> answer_ready(ReadyReply reply);
  net::asio::awaitable<void> answer_error(const Error& error);

  // Comments for idle proxies (stream_relay.cc).
  void beat_later();
  static net::asio::awaitable<void> beat(std::shared_ptr<RequestRun> self);
  net::asio::awaitable<void> writer_free();

  void leg_failed(LegRun& leg, LegFailure failure, const Error& error);
  void leg_died(LegRun& leg, const Error& error);
  void learn_from_request();
  void learn_from_answer(LegRun& leg);
  void release_request();
  net::Headers reply_headers(const net::Headers& from) const;
  std::string report() const;
  void keep(std::string_view json) const;
  const Connector& connector() const { return *model_->connector; }

  std::shared_ptr<RouterCore> core_;
  net::HttpRequest& request_;
  net::HttpResponder& responder_;
  std::shared_ptr<const ServedModel> model_;
  // What is needed only while a leg may still be sent is given back at the first byte.
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
  std::vector<HeldPrefix> held_;  // when the last placement was made
  bool placed_ = false;
  Holder believed_;             // is taken to hold the prompt since it was placed there
  KvFeeds::Expected expected_;  // of its events
  std::string handoff_id_;      // Tandem's
  LegValues values_;            // of this attempt
  std::optional<Harvest> harvest_;
  LoadShare answer_load_;  // prefill first: of the answer leg that waits
  bool prefill_pending_ = false;
  int64_t prefill_kv_bytes_ = 0;
  std::optional<PromptTruth> prompt_truth_;
  std::optional<ReadyReply> ready_reply_;
  TimePoint first_byte_;
  bool stream_finished_ = false;
  ResponseFacts told_;  // of the Responses API: what the client's stream said of itself
  Summary summary_;
  net::Deadline heartbeat_;
  net::Event written_;
  bool writing_ = false;
  bool serving_ = false;
};

}  // namespace tandem::router
