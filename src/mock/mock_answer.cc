// How MockServer sends its answers: whole, as a stream, broken as a fault says, or ready-made.
#include <algorithm>
#include <array>
#include <charconv>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "mock/answers.h"
#include "mock/running.h"

namespace tandem::mock {

const net::Headers& json_headers() {
  static const net::Headers kHeaders{{"Content-Type", "application/json"}};
  return kHeaders;
}

std::string error_text(const Error& error) {
  JsonValue fields = JsonValue::object();
  fields.set("message", JsonValue::string(error.message));
  fields.set("type",
             JsonValue::string(error.status < 500 ? "invalid_request_error" : "server_error"));
  fields.set("code", JsonValue::string(error.code));
  JsonValue json = JsonValue::object();
  json.set("error", std::move(fields));
  return json.dump();
}

net::asio::awaitable<void> send_error(net::HttpResponder& responder, Error error) {
  net::Headers headers = json_headers();
  if (error.status == 503 || error.status == 429) headers.add("Retry-After", "1");
  (void)co_await responder.send(error.status, std::move(headers), error_text(error));
}

net::asio::awaitable<void> MockServer::answer(Running& run, ReplyPlan plan,
                                              net::HttpResponder& responder) {
  const Reply reply(options_, run.request, std::move(plan));
  if (run.request.stream) co_return co_await stream(run, reply, responder);
  for (size_t i = 0; i < reply.steps(); ++i) {
    if (!co_await step(run)) co_return;
  }
  JsonValue whole = reply.whole();
  if (run.handoff.kind == Handoff::Kind::kPrefill)
    add_prefill_result(options_, run.request, run.handoff, run.me, run.facts[0], whole);
  if (options_.dialect == Dialect::kTandem) whole.set("tandem", JsonValue::object());
  std::string body = whole.dump();
  switch (run.fault.kind) {
    case FaultKind::kDieAfterHead:
    case FaultKind::kDieMidStream:
    case FaultKind::kTruncate:
      if (co_await responder.begin_stream(200, json_headers()))
        (void)co_await responder.write(body.substr(0, body.size() / 2));
      responder.abort();
      co_return;
    case FaultKind::kStallMidStream:
      if (co_await responder.begin_stream(200, json_headers()))
        (void)co_await responder.write(body.substr(0, body.size() / 2));
      co_return co_await until_gone(&run, responder);
    case FaultKind::kGarbage:
      body = "{\"choices\": [";
      break;
    default:
      break;
  }
  (void)co_await responder.send(200, json_headers(), std::move(body));
}

net::asio::awaitable<bool> MockServer::step(Running& run) {
  for (int slow = run.fault.kind == FaultKind::kSlow ? 10 : 1; slow > 0; --slow) {
    if (!co_await run.engine->step(run.job)) co_return false;
  }
  co_return true;
}

net::asio::awaitable<bool> MockServer::write(net::HttpResponder& responder, std::string bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    size_t length = bytes.size();
    if (options_.piece > 0) length = static_cast<size_t>(options_.piece);
    if (options_.piece < 0) length = 1 + faults_.random() % 40;
    const auto piece = std::string_view(bytes).substr(at, length);
    if (!co_await responder.write(piece)) co_return false;
    at += piece.size();
  }
  co_return true;
}

net::asio::awaitable<void> MockServer::stream(Running& run, const Reply& reply,
                                              net::HttpResponder& responder) {
  const FaultKind fault = run.fault.kind;
  if (!co_await responder.begin_stream(200, {{"Content-Type", "text/event-stream; charset=utf-8"}}))
    co_return;
  if (fault == FaultKind::kDieAfterHead) co_return responder.abort();
  if (!co_await write(responder, reply.opening())) co_return;
  for (size_t i = 0; i < reply.steps(); ++i) {
    if (!co_await step(run)) co_return;
    if (i == reply.steps() / 2) {
      if (fault == FaultKind::kDieMidStream) co_return responder.abort();
      if (fault == FaultKind::kStallMidStream) co_return co_await until_gone(&run, responder);
      if (fault == FaultKind::kGarbage && !co_await write(responder, "data: {\"choices\": [\n\n"))
        co_return;
      if (fault == FaultKind::kErrorFrame) {
        (void)co_await write(
            responder, "data: " + error_text({500, "mock_fault", "the engine failed"}) + "\n\n");
        (void)co_await responder.finish();
        co_return;
      }
    }
    std::string frame = reply.step(i);
    if (fault == FaultKind::kTruncate && i + 1 == reply.steps()) {
      (void)co_await write(responder, frame.substr(0, frame.size() / 2));
      (void)co_await responder.finish();
      co_return;
    }
    if (!co_await write(responder, std::move(frame))) co_return;
  }
  std::string end = reply.closing();
  if (reply.ends_with_done() && fault != FaultKind::kNoDone) end += "data: [DONE]\n\n";
  if (co_await write(responder, std::move(end))) (void)co_await responder.finish();
}

// What a static server sends. A stream's chunks hold the moment they were written ("tick " and
// nanoseconds of the monotonic clock in 19 digits), from which a client on the same machine can
// tell how long each was under way.
struct MockServer::StaticReply {
  std::string whole;
  std::string chunk;  // with a place for the moment
  size_t moment = 0;
  std::string end;
};

namespace {

constexpr std::string_view kNoMoment = "0000000000000000000";

void write_moment(std::string& chunk, size_t at) {
  std::array<char, 24> digits;
  const int64_t moment = std::chrono::duration_cast<std::chrono::nanoseconds>(
                             std::chrono::steady_clock::now().time_since_epoch())
                             .count();
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), moment).ptr;
  const auto length = static_cast<size_t>(end - digits.data());
  std::copy(digits.data(), end, chunk.begin() + static_cast<std::ptrdiff_t>(at + 19 - length));
}

bool asks_for_stream(std::string_view body) {
  return body.find("\"stream\":true") != std::string_view::npos ||
         body.find("\"stream\": true") != std::string_view::npos;
}

}  // namespace

std::shared_ptr<const MockServer::StaticReply> MockServer::static_reply(Api api) {
  auto& made = static_replies_[static_cast<size_t>(api)];
  if (made) return made;
  const bool prefill = options_.role == Role::kPrefill;
  MockRequest request;
  request.api = api;
  request.prompts = {{1, 2, 3, 4}};
  request.max_tokens = prefill ? 1 : options_.reply_tokens;
  request.include_usage = true;
  ReplyPlan plan{"static-0", 1700000000, {{chain_hash(0, request.prompts[0]), 4, 0}}, 0, false};
  const Reply reply(options_, request, plan);
  auto fresh = std::make_shared<StaticReply>();
  JsonValue whole = reply.whole();
  Handoff handoff;
  handoff.ids = {"static-0"};
  if (prefill) add_prefill_result(options_, request, handoff, me_, plan.facts[0], whole);
  fresh->whole = whole.dump();
  JsonValue delta = JsonValue::object();
  delta.set("content", JsonValue::string("tick " + std::string(kNoMoment) + " "));
  JsonValue choice = JsonValue::object();
  choice.set("index", JsonValue::integer(0));
  choice.set("delta", std::move(delta));
  choice.set("logprobs", JsonValue());
  choice.set("finish_reason", JsonValue());
  JsonValue chunk = JsonValue::object();
  chunk.set("id", JsonValue::string("static-0"));
  chunk.set("object", JsonValue::string("chat.completion.chunk"));
  chunk.set("created", JsonValue::integer(1700000000));
  chunk.set("model", JsonValue::string(options_.model));
  chunk.set("choices", JsonValue::array({std::move(choice)}));
  fresh->chunk = data_frame(chunk);
  fresh->moment = fresh->chunk.find(kNoMoment);
  fresh->end = reply.step(reply.steps() - 1) + reply.closing() +
               (reply.ends_with_done() ? "data: [DONE]\n\n" : "");
  made = std::move(fresh);
  return made;
}

// Wakes the streams of one phase after the other, so that not all of them write in one moment.
net::asio::awaitable<void> MockServer::tick_loop(std::shared_ptr<MockServer> self) {
  net::asio::steady_timer timer(reactor_.context());
  TimePoint next = std::chrono::steady_clock::now();
  for (size_t phase = 0; static_running_ > 0; phase = (phase + 1) % ticks_.size()) {
    next += options_.speed.step / static_cast<int>(ticks_.size());
    timer.expires_at(next);
    (void)co_await timer.async_wait(net::asio::as_tuple(net::asio::use_awaitable));
    self->ticks_[phase]->notify();
  }
  ticking_ = false;
}

net::asio::awaitable<void> MockServer::answer_static(Api api, net::HttpRequest& request,
                                                     net::HttpResponder& responder) {
  const auto reply = static_reply(api);
  if (options_.role == Role::kPrefill || !asks_for_stream(request.body)) {
    (void)co_await responder.send(200, json_headers(), reply->whole);
    ++completed_;
    co_return;
  }
  struct Counted {
    explicit Counted(int64_t& in) : count(in) { ++count; }
    ~Counted() { --count; }
    int64_t& count;
  };
  const Counted counted(static_running_);
  if (!co_await responder.begin_stream(200, {{"Content-Type", "text/event-stream; charset=utf-8"}}))
    co_return;
  std::string chunk = reply->chunk;
  if (options_.speed.step <= Duration::zero()) {
    std::string all;
    write_moment(chunk, reply->moment);
    for (int32_t i = 0; i < options_.reply_tokens; ++i) all += chunk;
    all += reply->end;
    if (co_await responder.write(all)) (void)co_await responder.finish();
    ++completed_;
    co_return;
  }
  constexpr size_t kPhases = 64;
  while (ticks_.size() < kPhases) ticks_.push_back(std::make_unique<net::Event>(reactor_));
  if (!std::exchange(ticking_, true)) reactor_.spawn(tick_loop(shared_from_this()));
  net::Event& tick = *ticks_[static_cast<size_t>(requests_) % kPhases];
  for (int32_t i = 0; i < options_.reply_tokens; ++i) {
    if (i > 0) co_await tick.wait();
    write_moment(chunk, reply->moment);
    if (responder.client_gone() || !co_await responder.write(chunk)) co_return;
  }
  if (co_await responder.write(reply->end)) (void)co_await responder.finish();
  ++completed_;
}

}  // namespace tandem::mock
