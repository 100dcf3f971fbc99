#include "loadgen/client/driver.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "loadgen/client/answer_reader.h"

namespace tandem::loadgen {

using net::asio::awaitable;

namespace {

constexpr size_t kMostErrorBytes = 16384;
// After an error a client of the closed loop waits a little: a server that refuses at once would
// get nothing else.
constexpr double kPause = 0.05;

ErrorKind kind_of(const Error& error) {
  const std::string_view code = error.code;
  if (code == "head_timeout" || code == "body_timeout") return ErrorKind::kTimeout;
  if (code == "connection_lost") return ErrorKind::kBroken;
  if (code == "bad_response") return ErrorKind::kBad;
  return ErrorKind::kConnect;
}

net::ClientRequest request_of(const Target& target, std::string body) {
  net::ClientRequest request;
  request.method = "POST";
  request.host = target.url.host;
  request.port = target.url.port;
  request.tls = target.url.tls;
  request.target = target.url.base + target.path;
  request.headers = target.headers;
  request.headers.add("Content-Type", "application/json");
  request.headers.add("Accept", "text/event-stream");
  request.body = std::move(body);
  return request;
}

// The sentence of an error body, else its beginning.
std::string error_words(std::string_view body) {
  if (const auto json = parse_json(body); json && json->is_object()) {
    const JsonValue* const error = json->find("error");
    const JsonValue* const message = (error != nullptr ? *error : *json).find("message");
    if (message != nullptr && message->is_string()) return message->as_string();
  }
  return std::string(body.substr(0, 300));
}

}  // namespace

class Driver::Timer {
 public:
  explicit Timer(Driver& driver) : driver_(driver), timer_(driver.reactor_.context()) {
    driver_.timers_.insert(this);
  }
  ~Timer() { driver_.timers_.erase(this); }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  awaitable<void> wait(TimePoint until) {
    timer_.expires_at(until);
    co_await timer_.async_wait(net::asio::as_tuple(net::asio::use_awaitable));
  }
  void cancel() { timer_.cancel(); }

 private:
  Driver& driver_;
  net::asio::steady_timer timer_;
};

Driver::Driver(net::Reactor& reactor, net::HttpClient& client, const Target& target,
               const Schedule& schedule, Dataset& dataset, Listener listener)
    : reactor_(reactor),
      client_(client),
      target_(target),
      schedule_(schedule),
      dataset_(dataset),
      listener_(std::move(listener)),
      changed_(reactor) {}

Driver::~Driver() = default;

double Driver::now() const { return to_seconds(std::chrono::steady_clock::now() - begin_); }

bool Driver::may_send() const {
  return !stopping_ && (schedule_.requests == 0 || issued_ < schedule_.requests) &&
         (schedule_.seconds <= 0 || now() < schedule_.seconds);
}

bool Driver::take_place() {
  if (!may_send()) return false;
  ++issued_;
  return true;
}

awaitable<void> Driver::sleep_until(double seconds) {
  if (stopping_ || seconds <= now()) co_return;
  Timer timer(*this);
  co_await timer.wait(begin_ + from_seconds(std::min(seconds, 1e9)));
}

void Driver::left() {
  --live_;
  changed_.notify();
}

awaitable<RequestRecord> Driver::ask(RequestRecord record, const Session& session, std::string body,
                                     std::string& answer) {
  AnswerReader reader(static_cast<size_t>(record.turn) + 1 < session.turns.size());
  net::ClientRequest request = request_of(target_, std::move(body));
  if (session.has_key)
    request.headers.add("x-session-affinity",
                        schedule_.session_prefix + std::to_string(session.id));
  auto call = client_.call(std::move(request), target_.timeouts);
  calls_.insert(call.get());
  std::string words;
  record.sent = now();
  if (listener_.sent) listener_.sent(record.sent);
  auto head = co_await call->head();
  if (!head) {
    record.error = kind_of(head.error());
    words = head.error().message;
  } else if (record.status = head->status; head->status != 200) {
    record.error = ErrorKind::kStatus;
    if (const auto text = co_await call->read_all(kMostErrorBytes)) words = error_words(*text);
  } else {
    bool wanted = true;
    while (wanted) {
      const auto bytes = co_await call->read_some();
      if (!bytes) {
        record.error = kind_of(bytes.error());
        words = bytes.error().message;
      }
      if (!bytes || bytes->empty()) break;
      const double at = now();
      wanted = reader.feed(*bytes, at);
      for (int64_t fresh = reader.take_new_pieces(); fresh > 0 && listener_.piece; --fresh)
        listener_.piece(at);
    }
    const ErrorKind broken = record.error;
    reader.finish(record);
    if (broken != ErrorKind::kNone) record.error = broken;
    if (words.empty()) words = reader.error_text();
  }
  calls_.erase(call.get());
  record.ended = now();
  if (record.error != ErrorKind::kNone && stopping_) record.error = ErrorKind::kUnfinished;
  if (record.error != ErrorKind::kNone && !words.empty() && listener_.explain)
    listener_.explain(record.error, words);
  if (listener_.ended) listener_.ended(record, reader.gaps());
  answer = reader.text();
  co_return record;
}

awaitable<void> Driver::run_session(const Session& session, double planned) {
  Conversation conversation(target_.body);
  std::string answer;
  for (size_t i = 0; i < session.turns.size(); ++i) {
    const Turn& turn = session.turns[i];
    if (i > 0) {
      co_await sleep_until(now() + turn.think * schedule_.think_scale);
      planned = now();
    }
    if (!take_place()) co_return;
    conversation.apply(turn, answer);
    RequestRecord record;
    record.id = static_cast<uint64_t>(issued_ - 1);
    record.session = session.id;
    record.turn = static_cast<int32_t>(i);
    record.planned = planned;
    record.input_tokens = conversation.planned_tokens();
    record = co_await ask(record, session, conversation.body(turn.output_tokens), answer);
    // A conversation without its answer is not the planned one any more.
    if (record.error != ErrorKind::kNone) {
      co_await sleep_until(now() + kPause);
      co_return;
    }
  }
}

awaitable<void> Driver::closed_client() {
  while (may_send()) {
    const auto session = dataset_.next();
    if (!session) break;
    co_await run_session(*session, now());
  }
  left();
}

awaitable<void> Driver::arrive(Session session, double planned) {
  ++open_sessions_;
  co_await run_session(session, planned);
  --open_sessions_;
  left();
}

awaitable<void> Driver::arrivals() {
  std::optional<Arrivals> times;
  if (!schedule_.trace_times) times.emplace(*schedule_.arrivals);
  while (may_send()) {
    auto session = dataset_.next();
    if (!session) break;
    const double at = times ? times->next() : session->at / schedule_.speed;
    if (schedule_.seconds > 0 && at >= schedule_.seconds) break;
    co_await sleep_until(at);
    while (open_sessions_ >= schedule_.most_open && !stopping_) co_await changed_.wait();
    if (!may_send()) break;
    ++live_;
    reactor_.spawn(arrive(std::move(*session), at));
  }
  left();
}

// Stops what is open too long after the last request may be sent.
awaitable<void> Driver::watch_end() {
  co_await sleep_until(schedule_.seconds + schedule_.grace);
  if (live_ > 1) stop();
  left();
}

awaitable<void> Driver::run() {
  begin_ = std::chrono::steady_clock::now();
  if (schedule_.arrivals || schedule_.trace_times) {
    ++live_;
    reactor_.spawn(arrivals());
  } else {
    for (int32_t i = 0; i < schedule_.concurrency; ++i) {
      ++live_;
      reactor_.spawn(closed_client());
    }
  }
  if (schedule_.seconds > 0) {
    ++live_;
    reactor_.spawn(watch_end());
  }
  while (live_ > (schedule_.seconds > 0 && !stopping_ ? 1 : 0)) co_await changed_.wait();
  stop();
  while (live_ > 0) co_await changed_.wait();
}

void Driver::stop() {
  stopping_ = true;
  const std::vector<net::ClientCall*> calls(calls_.begin(), calls_.end());
  for (net::ClientCall* const call : calls) {
    if (calls_.contains(call)) call->cancel();
  }
  for (Timer* const timer : timers_) timer->cancel();
  changed_.notify();
}

namespace {

// The first model of the server's list.
awaitable<Result<std::string>> first_model(net::HttpClient& client, const Target& target) {
  net::ClientRequest request;
  request.host = target.url.host;
  request.port = target.url.port;
  request.tls = target.url.tls;
  request.target = target.url.base + "/v1/models";
  request.headers = target.headers;
  const auto reply = co_await net::fetch(client, std::move(request), target.timeouts);
  if (!reply) co_return tl::unexpected(reply.error());
  if (reply->status == 200) {
    if (const auto json = parse_json(reply->body)) {
      const JsonValue* const data = json->find("data");
      if (data != nullptr && !data->items().empty()) {
        const JsonValue* const id = data->items().front().find("id");
        if (id != nullptr && id->is_string()) co_return id->as_string();
      }
    }
  }
  co_return make_error(400, "no_model",
                       "the server's /v1/models names no model (status " +
                           std::to_string(reply->status) + "): name one with --model");
}

// Prompt tokens that the server counts for so many words; -1 when it does not say.
awaitable<Result<int64_t>> count_words(net::HttpClient& client, const Target& target,
                                       int32_t words) {
  Conversation conversation(target.body);
  Turn turn;
  turn.append.push_back({Role::kUser, static_cast<uint64_t>(words), words});
  conversation.apply(turn, {});
  auto call = client.call(request_of(target, conversation.body(1)), target.timeouts);
  const auto head = co_await call->head();
  if (!head) co_return tl::unexpected(head.error());
  const auto body = co_await call->read_all(size_t{1} << 20);
  if (!body) co_return tl::unexpected(body.error());
  if (head->status != 200)
    co_return make_error(
        head->status, "refused",
        "the server answers " + std::to_string(head->status) + ": " + error_words(*body));
  AnswerReader reader(false);
  reader.feed(*body, 0);
  RequestRecord record;
  reader.finish(record);
  if (record.error == ErrorKind::kBad || record.error == ErrorKind::kStream ||
      record.error == ErrorKind::kBroken)
    co_return make_error(502, "bad_reply",
                         "the server's answer is no stream: " + reader.error_text());
  co_return record.counted_by_server ? record.input_tokens : -1;
}

}  // namespace

awaitable<Result<Probe>> probe(net::HttpClient& client, Target target) {
  Probe found;
  if (target.body.model.empty()) {
    auto model = co_await first_model(client, target);
    if (!model) co_return tl::unexpected(model.error());
    target.body.model = *model;
  }
  found.model = target.body.model;
  target.body.words = {};
  constexpr int32_t kFew = 32;
  constexpr int32_t kMany = 160;
  const auto few = co_await count_words(client, target, kFew);
  if (!few) co_return tl::unexpected(few.error());
  const auto many = co_await count_words(client, target, kMany);
  if (!many) co_return tl::unexpected(many.error());
  found.counts_tokens = *few >= 0 && *many >= 0;
  if (found.counts_tokens && *many > *few) {
    found.words.tokens_per_word = static_cast<double>(*many - *few) / (kMany - kFew);
    found.words.tokens_per_request =
        std::max(0.0, static_cast<double>(*few) - kFew * found.words.tokens_per_word);
  }
  co_return found;
}

}  // namespace tandem::loadgen
