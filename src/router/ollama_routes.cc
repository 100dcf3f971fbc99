#include "router/ollama_routes.h"

#include <chrono>
#include <utility>

#include "api/ollama.h"
#include "base/reply_text.h"
#include "net/sse.h"

namespace tandem::router {

namespace {

using net::asio::awaitable;

// Takes an OpenAI answer and sends Ollama's.
class TranslatingResponder final : public net::HttpResponder {
 public:
  TranslatingResponder(net::HttpResponder& to, api::OllamaReply reply)
      : to_(to), reply_(std::move(reply)), began_(std::chrono::steady_clock::now()) {}

  awaitable<Status> send(int status, net::Headers headers, std::string body) override {
    body = status == 200 ? reply_.whole(body, elapsed()) : api::ollama_error(body);
    headers.set("Content-Type", "application/json");
    return to_.send(status, std::move(headers), std::move(body));
  }
  awaitable<Status> begin_stream(int status, net::Headers headers) override {
    headers.set("Content-Type", "application/x-ndjson");
    return to_.begin_stream(status, std::move(headers));
  }
  awaitable<Status> write(std::string_view bytes) override {
    if (Status fed = framer_.feed(bytes); !fed) co_return fed;
    std::string lines;
    while (auto frame = framer_.next()) {
      if (frame->has_data) lines += reply_.line(frame->data, elapsed());
    }
    if (lines.empty()) co_return Status();
    co_return co_await to_.write(lines);
  }
  awaitable<Status> finish() override { return to_.finish(); }
  void abort() override { to_.abort(); }
  void on_disconnect(std::function<void()> action) override {
    to_.on_disconnect(std::move(action));
  }
  bool client_gone() const override { return to_.client_gone(); }
  bool started() const override { return to_.started(); }

 private:
  int64_t elapsed() const {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now() - began_).count();
  }

  net::HttpResponder& to_;
  api::OllamaReply reply_;
  net::SseFramer framer_;
  TimePoint began_;
};

}  // namespace

std::string timestamp(std::time_t at) {
  std::tm parts{};
  gmtime_r(&at, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

awaitable<int> ollama_route(std::shared_ptr<RouterCore> core, bool chat, net::HttpRequest& request,
                            IdentifiedResponder& responder, GenerateHandler messages,
                            GenerateHandler text) {
  auto asked = co_await net::run_on_body<api::OllamaRequest>(
      core->pool, core->reactor, request.body,
      [chat](const std::string& body) -> Result<api::OllamaRequest> {
        TANDEM_TRY(json, parse_json(body));
        return api::parse_ollama(chat, json);
      },
      core->options.preparation_timeout);
  if (!asked) {
    const Error& error = asked.error();
    co_await responder.send(error.status, net::error_headers(error),
                            api::ollama_error(error_body(error)));
    co_return error.status;
  }
  request.body = asked->body.dump();
  asked->body = JsonValue();
  request.path = asked->messages ? "/v1/chat/completions" : "/v1/completions";
  TranslatingResponder translating(responder,
                                   api::OllamaReply(*asked, timestamp(std::time(nullptr))));
  IdentifiedResponder identified(translating, responder.id());
  co_return co_await (asked->messages ? messages : text)(std::move(core), request, identified);
}

}  // namespace tandem::router
