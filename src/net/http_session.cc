#include "net/http_session.h"

#include <algorithm>
#include <charconv>
#include <exception>
#include <utility>

#include "base/reply_text.h"
#include "net/route_table.h"
#include "observe/log.h"

namespace tandem::net {

namespace {

constexpr Duration kLingerTime = std::chrono::seconds(2);
constexpr size_t kLingerBytes = 4UL << 20;
// A refused request's body up to this is read and dropped, so that the connection lives on.
constexpr uint64_t kDroppedBody = 64UL << 10;

constexpr size_t kUsualHead = 640;
constexpr std::string_view kChunkEnd = "\r\n";
constexpr std::string_view kLastChunk = "0\r\n\r\n";
constexpr std::string_view kEndAndLastChunk = "\r\n0\r\n\r\n";

bool body_forbidden(int status) { return status < 200 || status == 204 || status == 304; }

Status gone() { return make_error(499, "client_gone", "the client closed the connection"); }

// The line before a chunk's bytes.
class ChunkSize {
 public:
  explicit ChunkSize(size_t bytes) {
    char* const end = std::to_chars(text_, text_ + 16, bytes, 16).ptr;
    end[0] = '\r';
    end[1] = '\n';
    size_ = static_cast<size_t>(end - text_) + 2;
  }
  std::string_view line() const { return {text_, size_}; }

 private:
  char text_[20];
  size_t size_;
};

bool wants_websocket(const Headers& headers) {
  return headers.has_token("connection", "upgrade") && headers.has_token("upgrade", "websocket");
}

}  // namespace

std::string response_head(int status, const Headers& headers, std::string_view framing,
                          int64_t keep_alive_seconds, int minor_version) {
  std::string text;
  text.reserve(kUsualHead);
  text += "HTTP/1.1 ";
  text += std::to_string(status);
  text += ' ';
  text += http_reason(status);
  text += "\r\n";
  for (const auto& [name, value] : headers) {
    // Framing is ours; a value with a line break would split the response.
    if (equal_ignoring_case(name, "content-length") ||
        equal_ignoring_case(name, "transfer-encoding") || equal_ignoring_case(name, "connection")) {
      continue;
    }
    if (has_line_break(value)) continue;
    text += name;
    text += ": ";
    text += value;
    text += "\r\n";
  }
  text += framing;
  if (keep_alive_seconds <= 0) {
    text += "Connection: close\r\n";
  } else {
    if (minor_version == 0) text += "Connection: keep-alive\r\n";
    text += "Keep-Alive: timeout=" + std::to_string(keep_alive_seconds) + "\r\n";
  }
  text += "\r\n";
  return text;
}

Session::Session(Reactor& reactor, ServerShared& shared, std::unique_ptr<Stream> stream)
    : reactor_(reactor),
      shared_(shared),
      connection_(std::make_shared<Connection>(reactor, std::move(stream))),
      parser_(MessageParser::Kind::kRequest, {.header_bytes = shared.options.max_header_bytes,
                                              .body_bytes = shared.options.max_body_bytes,
                                              .header_fields = shared.options.max_header_fields,
                                              .target_bytes = shared.options.max_target_bytes}) {}

asio::awaitable<void> Session::serve() {
  connection_->start();
  while (!closing_ && co_await read_head()) {
    if (auto refused = refusal_of_head()) {
      if (!co_await answer_from_head(std::move(*refused))) break;
    } else {
      if (!co_await read_body()) break;
      co_await run_handler();
    }
    parser_.reset();
    request_ = {};
    cors_ = {};
    hold(0);
  }
  parser_.reset();
  hold(0);
  if (!connection_->gone()) co_await linger();
  connection_->close();
}

int64_t Session::keep_alive_seconds() const {
  if (!keep_alive()) return 0;
  return std::max<int64_t>(
      1, std::chrono::duration_cast<std::chrono::seconds>(shared_.options.keep_alive).count());
}

asio::awaitable<Status> Session::send(int status, Headers headers, std::string body) {
  if (started_) co_return internal_error("the answer was already started");
  started_ = true;
  finished_ = true;
  std::string framing;
  if (!body_forbidden(status)) framing = "Content-Length: " + std::to_string(body.size()) + "\r\n";
  identify(headers);
  for (const auto& [name, value] : cors_) headers.add(name, value);
  const std::string text =
      response_head(status, headers, framing, keep_alive_seconds(), minor_version_);
  const bool with_body = !head_request_ && !body_forbidden(status);
  co_return co_await put({text, with_body ? std::string_view(body) : std::string_view()});
}

asio::awaitable<Status> Session::begin_stream(int status, Headers headers, std::string_view first) {
  return stream(status, std::move(headers), first, false);
}

asio::awaitable<Status> Session::whole_stream(int status, Headers headers, std::string_view bytes) {
  return stream(status, std::move(headers), bytes, true);
}

asio::awaitable<Status> Session::stream(int status, Headers headers, std::string_view first,
                                        bool last) {
  if (started_) co_return internal_error("the answer was already started");
  started_ = true;
  no_body_ = head_request_ || body_forbidden(status);
  chunked_ = minor_version_ > 0 && !body_forbidden(status);
  if (!chunked_ && !no_body_) closing_ = true;  // HTTP/1.0: the close is the end
  for (const auto& [name, value] : cors_) headers.add(name, value);
  const std::string text =
      response_head(status, headers, chunked_ ? "Transfer-Encoding: chunked\r\n" : "",
                    keep_alive_seconds(), minor_version_);
  finished_ = last;
  if (no_body_) co_return co_await put({text});
  if (!chunked_) co_return co_await put({text, first});
  if (first.empty()) co_return co_await put({text, last ? kLastChunk : std::string_view()});
  const ChunkSize size(first.size());
  co_return co_await put({text, size.line(), first, last ? kEndAndLastChunk : kChunkEnd});
}

asio::awaitable<Status> Session::write(std::string_view bytes) {
  if (!started_ || finished_) co_return internal_error("no answer is being streamed");
  if (bytes.empty() || no_body_) co_return client_gone() ? gone() : Status();
  if (!chunked_) co_return co_await put({bytes});
  const ChunkSize size(bytes.size());
  co_return co_await put({size.line(), bytes, kChunkEnd});
}

asio::awaitable<Status> Session::finish(std::string_view last) {
  if (!started_ || finished_) co_return internal_error("no answer is being streamed");
  finished_ = true;
  if (no_body_) co_return Status();
  if (!chunked_) co_return last.empty() ? Status() : co_await put({last});
  if (last.empty()) co_return co_await put({kLastChunk});
  const ChunkSize size(last.size());
  co_return co_await put({size.line(), last, kEndAndLastChunk});
}

void Session::abort() {
  finished_ = started_ = closing_ = true;
  connection_->close(true);
}

void Session::on_disconnect(std::function<void()> action) {
  on_disconnect_ = std::move(action);
  if (client_gone()) disconnected();
}

void Session::disconnected() {
  if (on_disconnect_) std::exchange(on_disconnect_, nullptr)();
}

void Session::close() {
  const auto self = shared_from_this();
  connection_->close(running_);
  disconnected();
}

asio::awaitable<Status> Session::put(std::initializer_list<std::string_view> pieces) {
  size_t bytes = 0;
  for (const std::string_view piece : pieces) bytes += piece.size();
  const Duration limit =
      shared_.options.write_timeout +
      from_seconds(static_cast<double>(bytes) /
                   static_cast<double>(std::max<size_t>(shared_.options.least_rate, 1)));
  const bool there = !client_gone();
  if (there && co_await connection_->write(pieces, limit)) co_return Status();
  closing_ = true;
  // Too slow is as good as gone; half an answer must not look whole.
  if (there && !client_gone()) observe::Counter(shared_.write_timeouts).add();
  if (!connection_->closed()) connection_->close(true);
  disconnected();
  co_return gone();
}

// The request's own once its head is whole, else what was read of it.
const Headers& Session::known_headers() {
  return request_.method.empty() ? parser_.headers() : request_.headers;
}

void Session::identify(Headers& headers) {
  constexpr std::string_view kName = "x-request-id";
  if (shared_.options.identify && headers.find(kName) == nullptr)
    headers.add(std::string(kName), shared_.options.identify(known_headers()));
}

asio::awaitable<void> Session::refuse(Error error) {
  closing_ = true;
  started_ = finished_ = false;
  minor_version_ = 1;
  head_request_ = parser_.head_complete() && parser_.method() == "HEAD";
  cors_ = shared_.options.cors.answer_headers(known_headers().get("origin"));
  Headers headers = error_headers(error);
  if (error.status == 405) headers.add("Allow", "GET, HEAD, OPTIONS, POST");
  co_await send(error.status, std::move(headers), error_body(error));
}

asio::awaitable<bool> Session::read_until(const std::function<bool()>& done,
                                          const std::function<TimePoint()>& until,
                                          observe::Counter timeouts) {
  while (true) {
    while (!connection_->buffered().empty() && !done()) {
      const size_t used = parser_.feed(connection_->buffered());
      connection_->consume(used);
      if (parser_.error()) {
        co_await refuse(*parser_.error());
        co_return false;
      }
      if (!hold(parser_.body().size())) {
        shared_.refused_bodies.add();
        parser_.body() = std::string();
        hold(0);
        co_await refuse(Error{503, "overloaded",
                              "the server holds as many request bodies as it may; retry in a "
                              "moment"});
        co_return false;
      }
      if (used == 0) break;
    }
    if (done()) co_return true;
    if (read_pause_ > Duration::zero()) co_await reactor_.sleep(read_pause_);
    switch (co_await connection_->wait_more(until() - now())) {
      case Connection::Wait::kData:
        break;
      case Connection::Wait::kTimeout:
        timeouts.add();
        co_await refuse(Error{408, "request_timeout", "the request did not arrive in time"});
        co_return false;
      case Connection::Wait::kEnd:
      case Connection::Wait::kFailed:
        closing_ = true;
        co_return false;
    }
  }
}

bool Session::hold(size_t bytes) {
  if (bytes == held_) return true;
  shared_.body_bytes += bytes - held_;
  if (bytes == 0) shared_.heap.body_came(held_);
  const bool grows = bytes > std::exchange(held_, bytes);
  shared_.buffered_bodies.set(static_cast<double>(shared_.body_bytes));
  return !grows || shared_.body_bytes <= shared_.options.max_buffered_bytes;
}

asio::awaitable<bool> Session::read_head() {
  idle_ = connection_->buffered().empty();
  while (connection_->buffered().empty()) {
    if (co_await connection_->wait_more(shared_.options.keep_alive) == Connection::Wait::kData)
      continue;
    closing_ = true;
    connection_->close();
    co_return false;
  }
  idle_ = false;
  const TimePoint limit = now() + shared_.options.header_timeout;
  if (!co_await read_until([this] { return parser_.head_complete(); }, [limit] { return limit; },
                           shared_.head_timeouts))
    co_return false;
  take_head();
  co_return true;
}

void Session::take_head() {
  head_request_ = parser_.method() == "HEAD";
  minor_version_ = parser_.minor_version();
  started_ = finished_ = no_body_ = chunked_ = false;
  request_ = {};
  request_.method = parser_.method();
  request_.target = parser_.target();
  std::string_view target = request_.target;
  if (target.starts_with("http://")) {  // absolute form, as proxies send it
    const size_t slash = target.find('/', 7);
    target = slash == std::string_view::npos ? std::string_view("/") : target.substr(slash);
  }
  const size_t mark = target.find('?');
  request_.path = target.substr(0, mark);
  if (mark != std::string_view::npos) request_.query = target.substr(mark + 1);
  request_.headers = std::move(parser_.headers());
  if (remote_.empty()) remote_ = connection_->remote();
  request_.remote = remote_;
  cors_ = shared_.options.cors.answer_headers(request_.headers.get("origin"));
}

bool Session::body_expected() const {
  return parser_.chunked() || parser_.content_length().value_or(0) > 0;
}

std::optional<HttpRefusal> Session::refusal_of_head() const {
  // Agents that try a WebSocket first fall back to POST at once after a 426, and only then.
  if (wants_websocket(request_.headers)) {
    return refusal({426, "upgrade_required", "WebSocket is not spoken here; use HTTP/1.1 requests"},
                   {{"Upgrade", "HTTP/1.1"}});
  }
  if (request_.method == "OPTIONS" &&
      request_.headers.find("access-control-request-method") != nullptr) {
    Headers headers = shared_.options.cors.preflight_headers(request_.headers);
    if (headers.find("access-control-allow-origin") == nullptr) {
      return refusal({403, "origin_not_allowed",
                      "pages of this origin may not call this server (--cors-origin)"});
    }
    headers.fields().erase(
        std::remove_if(headers.fields().begin(), headers.fields().end(),
                       [this](const auto& field) { return cors_.find(field.first) != nullptr; }),
        headers.fields().end());  // send() adds those
    return HttpRefusal{204, std::move(headers), ""};
  }
  if (const std::string* expect = request_.headers.find("expect");
      expect != nullptr && !equal_ignoring_case(*expect, "100-continue"))
    return refusal({417, "expectation_failed", "only Expect: 100-continue is understood"});
  return shared_.gate ? shared_.gate(request_) : std::nullopt;
}

// True when the connection can take another request.
asio::awaitable<bool> Session::answer_from_head(HttpRefusal refusal) {
  const bool short_body = !parser_.chunked() &&
                          parser_.content_length().value_or(0) <= kDroppedBody &&
                          request_.headers.find("expect") == nullptr;
  if (body_expected() && !short_body) {
    closing_ = true;
  } else if (!co_await read_body()) {
    co_return false;
  }
  co_await send(refusal.status, std::move(refusal.headers), std::move(refusal.body));
  if (!keep_alive() || client_gone()) closing_ = true;
  co_return !closing_;
}

asio::awaitable<bool> Session::continue_if_expected() {
  if (request_.headers.find("expect") == nullptr || minor_version_ == 0 || !body_expected())
    co_return true;
  // The byte that ends the head is still in the buffer (MessageParser); more means that the body
  // comes already.
  if (connection_->buffered().size() > 1) co_return true;
  if (co_await connection_->write({"HTTP/1.1 100 Continue\r\n\r\n"}, shared_.options.write_timeout))
    co_return true;
  closing_ = true;
  co_return false;
}

asio::awaitable<bool> Session::read_body() {
  if (!co_await continue_if_expected()) co_return false;
  const TimePoint start = now();
  const ServerOptions& options = shared_.options;
  if (options.read_pause && body_expected()) read_pause_ = options.read_pause(request_);
  if (read_pause_ > Duration::zero()) co_await reactor_.sleep(read_pause_);
  const bool done = co_await read_until(
      [this] { return parser_.complete(); },
      [&] {
        const Duration earned =
            from_seconds(static_cast<double>(parser_.body().size()) /
                         static_cast<double>(std::max<size_t>(options.least_rate, 1)));
        return start + std::min(options.body_timeout, options.body_grace + earned);
      },
      shared_.body_timeouts);
  read_pause_ = Duration::zero();
  if (done) request_.body = std::move(parser_.body());
  co_return done;
}

asio::awaitable<void> Session::run_handler() {
  running_ = true;
  connection_->on_gone([this] { disconnected(); });
  bool failed = false;
  try {
    co_await shared_.handler(request_, *this);
  } catch (const std::exception& error) {
    observe::log_error("a handler of {} failed: {}", request_.path, error.what());
    failed = true;
  } catch (...) {
    observe::log_error("a handler of {} failed", request_.path);
    failed = true;
  }
  on_disconnect_ = nullptr;
  connection_->on_gone({});
  if (!keep_alive()) closing_ = true;
  if (!started_ && !client_gone()) {
    if (!failed) observe::log_error("the handler of {} did not answer", request_.path);
    const Error error{500, "internal_error", "the server failed to handle the request"};
    co_await send(error.status, error_headers(error), error_body(error));
  } else if (!finished_) {
    abort();
  }
  running_ = false;
  request_ = {};
  if (client_gone()) closing_ = true;
}

// Lets the client read the last answer before the socket goes: closing with unread input would
// reset it away.
asio::awaitable<void> Session::linger() {
  connection_->shutdown_send();
  const TimePoint until = now() + kLingerTime;
  size_t discarded = 0;
  while (discarded < kLingerBytes) {
    discarded += connection_->buffered().size();
    connection_->consume(connection_->buffered().size());
    if (co_await connection_->wait_more(until - now()) != Connection::Wait::kData) break;
  }
}

}  // namespace tandem::net
