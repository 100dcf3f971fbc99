#include <algorithm>
#include <thread>
#include <utility>

#include "eval/backend.h"
#include "net/http_client.h"

namespace tandem::eval {
namespace {

constexpr int kTries = 6;
constexpr auto kLongestPause = std::chrono::seconds(10);

tl::unexpected<Error> bad_reply(const std::string& what) {
  return make_error(502, "bad_response", "The server's reply " + what + ".");
}

// The first of `choices`, or nullptr.
const JsonValue* first_choice(const JsonValue& reply) {
  const JsonValue* choices = reply.find("choices");
  return choices == nullptr || choices->items().empty() ? nullptr : &choices->items().front();
}

class Connection {
 public:
  explicit Connection(const Server& server) : server_(server) {}

  Status open() {
    TANDEM_TRY(url, net::parse_url(server_.url));
    url_ = std::move(url);
    if (url_.base.ends_with("/v1")) url_.base.resize(url_.base.size() - 3);
    return {};
  }
  const Server& server() const { return server_; }

  Result<JsonValue> post(const std::string& path, const JsonValue& body) const {
    net::ClientRequest request;
    request.method = "POST";
    request.host = url_.host;
    request.port = url_.port;
    request.target = url_.base + path;
    request.headers = {{"Content-Type", "application/json"}};
    if (!server_.api_key.empty()) request.headers.add("Authorization", "Bearer " + server_.api_key);
    request.body = body.dump();
    request.replay_safe = true;
    for (int i = 1;; ++i) {
      auto reply = net::blocking_request(request);
      const bool again = !reply || reply->status == 429 || reply->status == 503;
      if (!again || i == kTries) return read(std::move(reply));
      std::this_thread::sleep_for(pause(reply, i));
    }
  }

 private:
  static Duration pause(const Result<net::WholeResponse>& reply, int attempt) {
    Duration out = std::chrono::milliseconds(250) * (1 << attempt);
    if (reply) {
      const auto asked = parse_json(reply->headers.get("Retry-After"));
      if (asked && asked->as_double()) out = from_seconds(std::max(*asked->as_double(), 0.1));
    }
    return std::min<Duration>(out, kLongestPause);
  }

  static Result<JsonValue> read(Result<net::WholeResponse> reply) {
    if (!reply) return tl::unexpected(reply.error());
    auto json = parse_json(reply->body);
    if (reply->status != 200) {
      const JsonValue* error = json ? json->find("error") : nullptr;
      const JsonValue* text = error == nullptr ? nullptr : error->find("message");
      return make_error(reply->status, "request_failed",
                        "The server answered " + std::to_string(reply->status) + ": " +
                            (text != nullptr ? text->as_string() : reply->body.substr(0, 300)));
    }
    if (!json) return bad_reply("is not JSON");
    return json;
  }

  Server server_;
  net::Url url_;
};

class ServerGenerator final : public Generator {
 public:
  explicit ServerGenerator(Connection connection) : connection_(std::move(connection)) {}

  Result<Generated> generate(const Prompt& prompt, const Generation& how) override {
    const bool chat = prompt.messages.is_array();
    JsonValue body = JsonValue::object();
    body.set("model", JsonValue::string(connection_.server().model));
    if (chat) {
      body.set("messages", prompt.messages);
    } else {
      body.set("prompt", JsonValue::string(prompt.text));
    }
    body.set("max_tokens", JsonValue::integer(how.max_tokens));
    body.set("temperature", JsonValue::real(how.temperature));
    body.set("seed", JsonValue::integer(static_cast<int64_t>(how.seed)));
    if (!how.stop.empty()) {
      JsonValue stop = JsonValue::array();
      for (const std::string& text : how.stop) stop.push_back(JsonValue::string(text));
      body.set("stop", std::move(stop));
    }
    TANDEM_TRY(reply, connection_.post(chat ? "/v1/chat/completions" : "/v1/completions", body));
    const JsonValue* choice = first_choice(reply);
    const JsonValue* holder = choice != nullptr && chat ? choice->find("message") : choice;
    const JsonValue* text = holder == nullptr ? nullptr : holder->find(chat ? "content" : "text");
    if (text == nullptr || !(text->is_string() || text->is_null())) return bad_reply("has no text");
    const JsonValue* reason = choice->find("finish_reason");
    return Generated{text->as_string(), reason != nullptr && reason->as_string() == "length"};
  }

 private:
  Connection connection_;
};

class ServerScorer final : public Scorer {
 public:
  explicit ServerScorer(Connection connection) : connection_(std::move(connection)) {}

  int32_t parallel() const override { return connection_.server().parallel; }

  Result<std::vector<Score>> score(const std::string& context,
                                   std::span<const std::string> continuations) override {
    std::vector<Score> out;
    for (const std::string& continuation : continuations) {
      TANDEM_TRY(one, score_one(context, continuation));
      out.push_back(one);
    }
    return out;
  }

 private:
  Result<Score> score_one(const std::string& context, const std::string& continuation) {
    const JsonValue body =
        JsonValue::object({{"model", JsonValue::string(connection_.server().model)},
                           {"prompt", JsonValue::string(context + continuation)},
                           {"max_tokens", JsonValue::integer(0)},
                           {"temperature", JsonValue::integer(0)},
                           {"echo", JsonValue::boolean(true)},
                           {"logprobs", JsonValue::integer(1)}});
    TANDEM_TRY(reply, connection_.post("/v1/completions", body));
    const JsonValue* choice = first_choice(reply);
    const JsonValue* logprobs = choice == nullptr ? nullptr : choice->find("logprobs");
    const JsonValue* values = logprobs == nullptr ? nullptr : logprobs->find("token_logprobs");
    const JsonValue* starts = logprobs == nullptr ? nullptr : logprobs->find("text_offset");
    if (values == nullptr || starts == nullptr || values->items().empty() ||
        values->items().size() != starts->items().size())
      return bad_reply(
          "has no logprobs of the prompt: choices need a server that knows echo with logprobs");
    std::vector<int64_t> offsets;
    for (const JsonValue& start : starts->items())
      offsets.push_back(start.as_integer().value_or(-1));
    const int64_t end = count_characters(context) + count_characters(continuation);
    Score out;
    for (size_t i = first_token_beyond(offsets, count_characters(context)); i < offsets.size();
         ++i) {
      if (offsets[i] >= end) break;  // what a server generated although asked for nothing
      const auto value = values->items()[i].as_double();
      if (!value) {
        if (i == 0) continue;  // the first token of all has no probability
        return bad_reply("lacks the logprob of a token");
      }
      out.logprob += *value;
      ++out.tokens;
    }
    return out;
  }

  Connection connection_;
};

}  // namespace

size_t first_token_beyond(std::span<const int64_t> offsets, int64_t context) {
  size_t i = 0;
  while (i + 1 < offsets.size() && offsets[i + 1] <= context) ++i;
  return i;
}

int64_t count_characters(std::string_view utf8) {
  return std::ranges::count_if(utf8, [](char c) { return (c & 0xC0) != 0x80; });
}

Result<std::unique_ptr<Generator>> make_server_generator(const Server& server) {
  Connection connection(server);
  TANDEM_CHECK(connection.open());
  return std::make_unique<ServerGenerator>(std::move(connection));
}

Result<std::unique_ptr<Scorer>> make_server_scorer(const Server& server) {
  Connection connection(server);
  TANDEM_CHECK(connection.open());
  return std::make_unique<ServerScorer>(std::move(connection));
}

}  // namespace tandem::eval
