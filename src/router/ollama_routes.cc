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
  awaitable<Status> begin_stream(int status, net::Headers headers,
                                 std::string_view first) override {
    headers.set("Content-Type", "application/x-ndjson");
    const Result<std::string> lines = translate(first);
    if (!lines) co_return tl::unexpected(lines.error());
    co_return co_await to_.begin_stream(status, std::move(headers), *lines);
  }
  awaitable<Status> whole_stream(int status, net::Headers headers,
                                 std::string_view bytes) override {
    headers.set("Content-Type", "application/x-ndjson");
    const Result<std::string> lines = translate(bytes);
    if (!lines) co_return tl::unexpected(lines.error());
    co_return co_await to_.whole_stream(status, std::move(headers), *lines);
  }
  awaitable<Status> write(std::string_view bytes) override {
    const Result<std::string> lines = translate(bytes);
    if (!lines) co_return tl::unexpected(lines.error());
    if (lines->empty()) co_return Status();
    co_return co_await to_.write(*lines);
  }
  awaitable<Status> finish(std::string_view last) override {
    const Result<std::string> lines = translate(last);
    if (!lines) co_return tl::unexpected(lines.error());
    co_return co_await to_.finish(*lines);
  }
  void abort() override { to_.abort(); }
  void on_disconnect(std::function<void()> action) override {
    to_.on_disconnect(std::move(action));
  }
  bool client_gone() const override { return to_.client_gone(); }
  bool started() const override { return to_.started(); }

 private:
  Result<std::string> translate(std::string_view bytes) {
    TANDEM_CHECK(framer_.feed(bytes));
    std::string lines;
    while (auto frame = framer_.next()) {
      if (frame->has_data) lines += reply_.line(frame->data, elapsed());
    }
    return lines;
  }
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

awaitable<int> ollama_route(std::shared_ptr<RouterCore> core, api::OllamaRoute route,
                            net::HttpRequest& request, IdentifiedResponder& responder,
                            OllamaHandlers handlers) {
  auto asked = co_await net::run_on_body<api::OllamaRequest>(
      core->pool, core->reactor, request.body,
      [route,
       models = core->registry.models()](const std::string& body) -> Result<api::OllamaRequest> {
        TANDEM_TRY(json, parse_json(body));
        TANDEM_TRY(request, api::parse_ollama(route, json));
        if (request.load) TANDEM_CHECK(models->choose(request.body.find("model")->as_string()));
        return request;
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
  api::OllamaReply reply(*asked, timestamp(std::time(nullptr)));
  if (asked->load) {
    co_await responder.send(200, {{"Content-Type", "application/json"}}, reply.loaded());
    co_return 200;
  }
  TranslatingResponder translating(responder, std::move(reply));
  IdentifiedResponder identified(translating, responder.id());
  GenerateHandler handler = handlers.chat;
  request.path = "/v1/chat/completions";
  if (asked->endpoint == api::Endpoint::kCompletions) {
    handler = handlers.completions;
    request.path = "/v1/completions";
  } else if (asked->endpoint == api::Endpoint::kEmbeddings) {
    handler = handlers.embeddings;
    request.path = "/v1/embeddings";
  }
  co_return co_await handler(std::move(core), request, identified);
}

}  // namespace tandem::router
