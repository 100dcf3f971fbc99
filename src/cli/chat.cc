// `tandem chat`: a conversation in the terminal, streamed, with a table of what each turn cost.
#include <cstdio>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include "base/bytes.h"
#include "base/json_value.h"
#include "cli/commands.h"
#include "config/options.h"
#include "net/http_client.h"
#include "net/sse.h"

namespace tandem::cli {
namespace {

struct Turn {
  double first_token_ms = 0;
  double token_ms = 0;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t answer_tokens = 0;
  int64_t kv_bytes = 0;
};

struct ChatOptions {
  std::string url = "http://127.0.0.1:8000";
  std::string model = "default";
  std::string system;
  std::string api_key;
  std::vector<std::string> messages;
  int32_t max_tokens = 256;
  std::string temperature = "0.7";
  std::string seed;
};

int64_t number_at(const JsonValue* json, std::string_view key) {
  const JsonValue* value = json == nullptr ? nullptr : json->find(key);
  return value == nullptr ? 0 : value->as_integer().value_or(0);
}

// Reads the streamed answer: prints its text, keeps its figures.
class AnswerReader {
 public:
  explicit AnswerReader(TimePoint sent) : sent_(sent) {}

  bool feed(std::string_view bytes) {
    raw_ += raw_.size() < 65536 ? bytes.substr(0, 65536 - raw_.size()) : std::string_view();
    if (!framer_.feed(bytes)) return false;
    while (auto frame = framer_.next()) {
      if (!frame->has_data || frame->done()) continue;
      if (const auto json = parse_json(frame->data)) take(*json);
    }
    return true;
  }

  Turn turn() const {
    Turn out = turn_;
    out.first_token_ms = 1e3 * to_seconds(first_ - sent_);
    if (out.answer_tokens > 1)
      out.token_ms = 1e3 * to_seconds(last_ - first_) / static_cast<double>(out.answer_tokens - 1);
    return out;
  }
  const std::string& text() const { return text_; }
  const std::string& error() const { return error_; }
  const std::string& raw() const { return raw_; }

 private:
  void take(const JsonValue& json) {
    if (const JsonValue* error = json.find("error")) {
      const JsonValue* message = error->find("message");
      error_ = message != nullptr ? message->as_string() : error->dump();
    }
    if (const JsonValue* choices = json.find("choices");
        choices != nullptr && !choices->items().empty()) {
      const JsonValue* delta = choices->items().front().find("delta");
      const JsonValue* content = delta == nullptr ? nullptr : delta->find("content");
      if (content != nullptr && !content->as_string().empty()) {
        last_ = std::chrono::steady_clock::now();
        if (text_.empty()) first_ = last_;
        text_ += content->as_string();
        std::fputs(content->as_string().c_str(), stdout);
        std::fflush(stdout);
      }
    }
    if (const JsonValue* usage = json.find("usage"); usage != nullptr && usage->is_object()) {
      turn_.prompt_tokens = number_at(usage, "prompt_tokens");
      turn_.cached_tokens = number_at(usage->find("prompt_tokens_details"), "cached_tokens");
      turn_.answer_tokens = number_at(usage, "completion_tokens");
      turn_.kv_bytes = number_at(json.find("tandem"), "kv_bytes");
    }
  }

  TimePoint sent_;
  TimePoint first_{};
  TimePoint last_{};
  net::SseFramer framer_;
  Turn turn_;
  std::string text_;
  std::string error_;
  std::string raw_;
};

JsonValue message(std::string role, std::string content) {
  JsonValue out = JsonValue::object();
  out.set("role", JsonValue::string(std::move(role)));
  out.set("content", JsonValue::string(std::move(content)));
  return out;
}

JsonValue request_body(const ChatOptions& options, const JsonValue& messages) {
  JsonValue body = JsonValue::object();
  body.set("model", JsonValue::string(options.model));
  body.set("messages", messages);
  body.set("max_tokens", JsonValue::integer(options.max_tokens));
  if (const auto temperature = parse_json(options.temperature);
      temperature && temperature->is_number())
    body.set("temperature", *temperature);
  if (const auto seed = parse_json(options.seed); seed && seed->is_number())
    body.set("seed", *seed);
  body.set("stream", JsonValue::boolean(true));
  JsonValue stream_options = JsonValue::object();
  stream_options.set("include_usage", JsonValue::boolean(true));
  body.set("stream_options", std::move(stream_options));
  return body;
}

// One turn: the answer is appended to `messages`.
Result<Turn> ask(const ChatOptions& options, const net::Url& url, const std::string& session,
                 JsonValue& messages) {
  net::ClientRequest request;
  request.method = "POST";
  request.host = url.host;
  request.port = url.port;
  request.tls = url.tls;
  request.target = url.base + "/v1/chat/completions";
  request.headers = {{"Content-Type", "application/json"},
                     {"x-session-affinity", session},
                     {"x-tandem-report", "1"}};
  if (!options.api_key.empty()) request.headers.add("Authorization", "Bearer " + options.api_key);
  request.body = request_body(options, messages).dump();
  AnswerReader reader(std::chrono::steady_clock::now());
  int status = 0;
  const auto response = net::blocking_request(
      request, {}, [&](const net::ClientHead& head) { status = head.status; },
      [&](std::string_view bytes) { return reader.feed(bytes); });
  if (!response) {
    Error error = response.error();
    error.message = options.url + ": " + error.message + ". `tandem up MODEL` starts a server.";
    return tl::unexpected(std::move(error));
  }
  if (status != 200) {
    const auto json = parse_json(reader.raw());
    const JsonValue* error = json ? json->find("error") : nullptr;
    const JsonValue* text = error == nullptr ? nullptr : error->find("message");
    return make_error(status, "request_failed",
                      "The server answered " + std::to_string(status) + ": " +
                          (text != nullptr ? text->as_string() : reader.raw()));
  }
  if (!reader.error().empty()) return make_error(500, "request_failed", reader.error());
  messages.push_back(message("assistant", reader.text()));
  return reader.turn();
}

void print_table(const std::vector<Turn>& turns) {
  std::printf("\n%4s %8s %8s %8s %14s %12s %12s\n", "turn", "prompt", "cached", "answer",
              "first token", "per token", "KV moved");
  for (size_t i = 0; i < turns.size(); ++i) {
    const Turn& turn = turns[i];
    std::printf("%4zu %8lld %8lld %8lld %11.1f ms %9.2f ms %12s\n", i + 1,
                static_cast<long long>(turn.prompt_tokens),
                static_cast<long long>(turn.cached_tokens),
                static_cast<long long>(turn.answer_tokens), turn.first_token_ms, turn.token_ms,
                format_bytes(static_cast<size_t>(turn.kv_bytes)).c_str());
  }
}

}  // namespace

int run_chat(const Arguments& arguments) {
  config::Options options(
      "chat", "Talks to a server in the terminal. An empty line or Ctrl-D ends the conversation.");
  ChatOptions chat;
  options.positional(chat.url, "URL", "the server; else http://127.0.0.1:8000",
                     /*required=*/false);
  options.list(chat.messages, "message", "TEXT",
               "says these, one turn each, instead of reading the terminal");
  options.value(chat.system, "system", "TEXT", "system message");
  options.value(chat.model, "model", "NAME", "model to ask for");
  options.value(chat.max_tokens, "max-tokens", "N", "longest answer", 1, 1 << 20);
  options.value(chat.temperature, "temperature", "T", "0 is greedy");
  options.value(chat.seed, "seed", "N", "makes the answers repeatable");
  options.value(chat.api_key, "api-key", "KEY", "sent as Authorization: Bearer KEY");
  options.example("tandem chat http://127.0.0.1:8000");
  options.example("tandem chat --message \"Hello\" --message \"And in French?\" --temperature 0");
  auto parsed = options.parse(arguments);
  if (!parsed) return report(parsed.error());
  if (parsed->help) {
    std::fputs(parsed->help->c_str(), stdout);
    return 0;
  }
  const auto url = net::parse_url(chat.url);
  if (!url) return report(url.error());
  JsonValue messages = JsonValue::array();
  if (!chat.system.empty()) messages.push_back(message("system", chat.system));
  const std::string session = "chat-" + std::to_string(getpid());
  const bool interactive = chat.messages.empty();
  std::vector<Turn> turns;
  for (size_t i = 0;; ++i) {
    std::string text;
    if (interactive) {
      if (isatty(STDIN_FILENO) != 0) std::fputs("you> ", stdout);
      std::fflush(stdout);
      if (!std::getline(std::cin, text) || text.empty()) break;
    } else {
      if (i >= chat.messages.size()) break;
      text = chat.messages[i];
      std::printf("you> %s\n", text.c_str());
    }
    messages.push_back(message("user", text));
    auto turn = ask(chat, *url, session, messages);
    std::printf("\n");
    if (!turn) {
      report(turn.error());
      if (!interactive) return 1;
      messages.items().pop_back();
      continue;
    }
    turns.push_back(*turn);
  }
  if (!turns.empty()) print_table(turns);
  return 0;
}

}  // namespace tandem::cli
