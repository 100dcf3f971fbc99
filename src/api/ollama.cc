#include "api/ollama.h"

#include <array>
#include <utility>

#include "api/fields.h"

namespace tandem::api {

namespace {

constexpr size_t kMaxText = size_t{64} << 20;

// Ollama's options that are fields of the OpenAI dialect under another or the same name.
struct Option {
  const char* ollama;
  const char* openai;
};
constexpr std::array kOptions = {
    Option{"temperature", "temperature"},
    Option{"top_p", "top_p"},
    Option{"top_k", "top_k"},
    Option{"min_p", "min_p"},
    Option{"typical_p", "typical_p"},
    Option{"seed", "seed"},
    Option{"stop", "stop"},
    Option{"repeat_penalty", "repetition_penalty"},
    Option{"presence_penalty", "presence_penalty"},
    Option{"frequency_penalty", "frequency_penalty"},
};

Status refuse_unsupported(const Fields& fields) {
  for (const char* key : {"images", "suffix", "context", "template", "logprobs", "top_logprobs"}) {
    const JsonValue* value = fields.find(key);
    const bool used = value != nullptr && !(value->is_string() && value->as_string().empty()) &&
                      !(value->is_array() && value->items().empty()) &&
                      !(value->is_bool() && !value->as_bool()) &&
                      !(value->is_number() && value->as_double() == 0.0);
    if (!used) continue;
    return make_error(400, "unsupported_parameter",
                      "'" + std::string(key) + "' is not supported here; leave it out",
                      fields.pointer(key));
  }
  return {};
}

Status read_options(const Fields& fields, JsonValue& out) {
  const JsonValue* options = fields.find("options");
  if (options == nullptr) return {};
  if (!options->is_object()) return fields.error("options", "must be an object");
  const Fields inner(*options, "/options");
  for (const Option& option : kOptions) {
    if (const JsonValue* value = inner.find(option.ollama)) out.set(option.openai, *value);
  }
  if (const JsonValue* limit = inner.find("num_predict")) {
    // Negative: until the context is full.
    const auto tokens = limit->is_number() ? limit->as_integer() : std::nullopt;
    if (!tokens) return inner.error("num_predict", "must be an integer");
    if (*tokens > 0) out.set("max_tokens", *limit);
  }
  return {};
}

// "json" or a schema.
Status read_format(const Fields& fields, JsonValue& out) {
  const JsonValue* format = fields.find("format");
  if (format == nullptr || (format->is_string() && format->as_string().empty())) return {};
  if (format->is_object()) {
    out.set(
        "response_format",
        JsonValue::object({{"type", JsonValue::string("json_schema")},
                           {"json_schema", JsonValue::object({{"name", JsonValue::string("format")},
                                                              {"schema", *format}})}}));
    return {};
  }
  if (!format->is_string() || format->as_string() != "json")
    return fields.error("format", "must be \"json\" or a JSON schema");
  out.set("response_format", JsonValue::object({{"type", JsonValue::string("json_object")}}));
  return {};
}

// Ollama's calls have arguments as an object and no ids, its results no ids either but perhaps the
// function's name: a result answers the first open call of that name, else the first open one.
class CallIds {
 public:
  // A conversation's message in the OpenAI dialect.
  JsonValue translate(const JsonValue& message) {
    JsonValue out = message;
    const JsonValue* role = message.find("role");
    if (role != nullptr && role->is_string() && role->as_string() == "tool" &&
        message.find("tool_call_id") == nullptr)
      out.set("tool_call_id", JsonValue::string(answered(message.find("tool_name"))));
    const JsonValue* calls = message.find("tool_calls");
    if (calls == nullptr || !calls->is_array()) return out;
    open_.clear();
    JsonValue translated = JsonValue::array();
    for (const JsonValue& call : calls->items())
      translated.push_back(call.is_object() ? translate_call(call) : call);
    out.set("tool_calls", std::move(translated));
    return out;
  }

 private:
  struct Open {
    std::string id;
    std::string name;
  };

  // Nine letters and digits: what the strictest templates take.
  std::string next_id() {
    constexpr int64_t kIds = 100'000;
    std::string digits = std::to_string(count_++ % kIds);
    return "call" + std::string(5 - digits.size(), '0') + digits;
  }

  static std::string text_of(const JsonValue* value) {
    return value != nullptr && value->is_string() ? value->as_string() : std::string();
  }

  std::string answered(const JsonValue* name) {
    if (open_.empty()) return next_id();
    auto found = open_.begin();
    const std::string wanted = text_of(name);
    for (auto at = open_.begin(); at != open_.end() && !wanted.empty(); ++at) {
      if (at->name != wanted) continue;
      found = at;
      break;
    }
    std::string id = found->id;
    open_.erase(found);
    return id;
  }

  JsonValue translate_call(const JsonValue& call) {
    JsonValue out = call;
    std::string id = text_of(call.find("id"));
    if (id.empty()) {
      id = next_id();
      out.set("id", JsonValue::string(id));
    }
    if (call.find("type") == nullptr) out.set("type", JsonValue::string("function"));
    const JsonValue* function = call.find("function");
    if (function == nullptr || !function->is_object()) return out;
    open_.push_back({.id = std::move(id), .name = text_of(function->find("name"))});
    const JsonValue* arguments = function->find("arguments");
    if (arguments != nullptr && !arguments->is_object()) return out;
    JsonValue with_text = *function;
    with_text.set("arguments", JsonValue::string(arguments == nullptr ? "{}" : arguments->dump()));
    out.set("function", std::move(with_text));
    return out;
  }

  int64_t count_ = 0;
  std::vector<Open> open_;  // calls of the last message that has any, without results so far
};

Status read_messages(const Fields& fields, OllamaRequest& out) {
  const JsonValue* messages = fields.find("messages");
  const bool none = messages == nullptr || (messages->is_array() && messages->items().empty());
  out.load = none && fields.find("model") != nullptr;
  if (out.load) return {};
  if (none) return fields.error("messages", "is missing");
  if (!messages->is_array()) return fields.error("messages", "must be an array");
  JsonValue translated = JsonValue::array();
  CallIds ids;
  for (size_t i = 0; i < messages->items().size(); ++i) {
    const JsonValue& message = messages->items()[i];
    const JsonValue* images = message.find("images");
    if (images != nullptr && !images->items().empty()) {
      return make_error(400, "unsupported_content", "images are not supported by this model",
                        pointer_to("/messages", i) + "/images");
    }
    translated.push_back(message.is_object() ? ids.translate(message) : message);
  }
  out.body.set("messages", std::move(translated));
  if (const JsonValue* tools = fields.find("tools")) out.body.set("tools", *tools);
  return {};
}

Status read_prompt(const Fields& fields, OllamaRequest& out) {
  std::string prompt;
  std::string system;
  bool raw = false;
  TANDEM_CHECK(fields.string("prompt", prompt, kMaxText));
  TANDEM_CHECK(fields.string("system", system, kMaxText));
  TANDEM_CHECK(fields.boolean("raw", raw));
  out.load = prompt.empty() && fields.find("model") != nullptr;
  if (prompt.empty() && !out.load) return fields.error("prompt", "is missing");
  if (raw) {
    out.endpoint = Endpoint::kCompletions;
    out.body.set("prompt", JsonValue::string(std::move(prompt)));
    return {};
  }
  JsonValue messages = JsonValue::array();
  const auto add = [&](const char* role, std::string text) {
    messages.push_back(JsonValue::object(
        {{"role", JsonValue::string(role)}, {"content", JsonValue::string(std::move(text))}}));
  };
  if (!system.empty()) add("system", std::move(system));
  add("user", std::move(prompt));
  out.body.set("messages", std::move(messages));
  return {};
}

Status read_texts(const Fields& fields, OllamaRequest& out) {
  out.endpoint = Endpoint::kEmbeddings;
  out.stream = false;
  const char* key = out.route == OllamaRoute::kEmbed ? "input" : "prompt";
  const JsonValue* texts = fields.find(key);
  if (texts == nullptr) return fields.error(key, "is missing");
  if (!texts->is_string() && (!texts->is_array() || out.route == OllamaRoute::kEmbedding))
    return fields.error(key, "must be a text");
  out.body.set("input", *texts);
  if (const JsonValue* dimensions = fields.find("dimensions"))
    out.body.set("dimensions", *dimensions);
  return {};
}

const JsonValue* first_choice(const JsonValue& reply) {
  const JsonValue* choices = reply.find("choices");
  return choices == nullptr || choices->items().empty() ? nullptr : &choices->items()[0];
}

std::string text_of(const JsonValue& choice) {
  for (const char* holder : {"delta", "message"}) {
    if (const JsonValue* part = choice.find(holder)) {
      const JsonValue* content = part->find("content");
      return content == nullptr ? std::string() : content->as_string();
    }
  }
  const JsonValue* text = choice.find("text");
  return text == nullptr ? std::string() : text->as_string();
}

// Calls of an OpenAI message as Ollama writes them. Arguments that are no object (an answer that
// was cut off) stay a text.
JsonValue ollama_calls(const std::vector<OllamaReply::Call>& calls) {
  JsonValue out = JsonValue::array();
  for (const OllamaReply::Call& call : calls) {
    if (call.name.empty()) continue;
    auto arguments = parse_json(call.arguments.empty() ? "{}" : call.arguments);
    const bool object = arguments && arguments->is_object();
    out.push_back(JsonValue::object(
        {{"function",
          JsonValue::object({{"name", JsonValue::string(call.name)},
                             {"arguments", object ? std::move(*arguments)
                                                  : JsonValue::string(call.arguments)}})}}));
  }
  return out;
}

constexpr size_t kMaxCallBytes = size_t{8} << 20;  // of an answer's calls together

// Adds a message's or a chunk's calls, or the next pieces of them. False: more than that.
bool collect_calls(const JsonValue& choice, std::vector<OllamaReply::Call>& calls, size_t& bytes) {
  constexpr size_t kMaxCalls = 1024;
  for (const char* holder : {"delta", "message"}) {
    const JsonValue* part = choice.find(holder);
    const JsonValue* pieces = part == nullptr ? nullptr : part->find("tool_calls");
    if (pieces == nullptr || !pieces->is_array()) continue;
    for (const JsonValue& piece : pieces->items()) {
      const JsonValue* function = piece.find("function");
      if (function == nullptr || !function->is_object()) continue;
      const JsonValue* name = function->find("name");
      const JsonValue* text = function->find("arguments");
      const bool named = name != nullptr && name->is_string() && !name->as_string().empty();
      // Without an index a piece with a name begins a call, one without goes on with the last.
      const JsonValue* index = piece.find("index");
      const auto given = index == nullptr ? std::nullopt : index->as_integer();
      if (given && (*given < 0 || static_cast<size_t>(*given) > calls.size())) continue;
      if (!given && !named && calls.empty()) continue;
      const size_t at = given   ? static_cast<size_t>(*given)
                        : named ? calls.size()
                                : calls.size() - 1;
      if (at == calls.size()) {
        if (at == kMaxCalls) return false;
        calls.emplace_back();
      }
      OllamaReply::Call& call = calls[at];
      if (named) call.name += name->as_string();
      if (text != nullptr && text->is_string()) call.arguments += text->as_string();
      bytes += (named ? name->as_string().size() : 0) +
               (text != nullptr && text->is_string() ? text->as_string().size() : 0);
      if (bytes > kMaxCallBytes) return false;
    }
  }
  return true;
}

// Ollama has no reason of its own for calls.
std::string ollama_reason(const std::string& openai) {
  return openai == "tool_calls" ? "stop" : openai;
}

}  // namespace

Result<OllamaRequest> parse_ollama(OllamaRoute route, const JsonValue& body) {
  if (!body.is_object()) return invalid_request("the body must be a JSON object", "");
  const Fields fields(body, "");
  OllamaRequest out;
  out.route = route;
  out.model = "default";
  out.body = JsonValue::object();
  TANDEM_CHECK(fields.string("model", out.model, 1024));
  TANDEM_CHECK(fields.boolean("stream", out.stream));
  TANDEM_CHECK(refuse_unsupported(fields));
  // Ollama's names end in a tag that says which build of a model is meant; there is one here.
  std::string name = out.model;
  if (name.ends_with(":latest")) name.resize(name.size() - 7);
  out.body.set("model", JsonValue::string(std::move(name)));
  if (route == OllamaRoute::kEmbed || route == OllamaRoute::kEmbedding) {
    TANDEM_CHECK(read_texts(fields, out));
    return out;
  }
  TANDEM_CHECK(read_options(fields, out.body));
  TANDEM_CHECK(read_format(fields, out.body));
  TANDEM_CHECK(route == OllamaRoute::kChat ? read_messages(fields, out) : read_prompt(fields, out));
  // The older dialect stops after 16 tokens unless told otherwise; Ollama does not.
  if (out.endpoint == Endpoint::kCompletions && out.body.find("max_tokens") == nullptr)
    out.body.set("max_tokens", JsonValue::integer(128));
  out.body.set("stream", JsonValue::boolean(out.stream));
  if (out.stream) {
    out.body.set("stream_options",
                 JsonValue::object({{"include_usage", JsonValue::boolean(true)}}));
  }
  return out;
}

std::string ollama_error(std::string_view openai_body) {
  std::string sentence = "the request failed";
  if (const auto json = parse_json(openai_body)) {
    const JsonValue* error = json->find("error");
    const JsonValue* message = error == nullptr ? nullptr : error->find("message");
    if (message != nullptr && message->is_string()) sentence = message->as_string();
  }
  return JsonValue::object({{"error", JsonValue::string(std::move(sentence))}}).dump();
}

OllamaReply::OllamaReply(const OllamaRequest& request, std::string created)
    : route_(request.route), model_(request.model), created_(std::move(created)) {}

JsonValue OllamaReply::part(const std::string& text, bool done,
                            const std::vector<Call>& calls) const {
  JsonValue json = JsonValue::object();
  json.set("model", JsonValue::string(model_));
  json.set("created_at", JsonValue::string(created_));
  if (route_ == OllamaRoute::kChat) {
    JsonValue message = JsonValue::object(
        {{"role", JsonValue::string("assistant")}, {"content", JsonValue::string(text)}});
    if (!calls.empty()) message.set("tool_calls", ollama_calls(calls));
    json.set("message", std::move(message));
  } else {
    json.set("response", JsonValue::string(text));
  }
  json.set("done", JsonValue::boolean(done));
  return json;
}

JsonValue OllamaReply::last(const std::string& text, const JsonValue* usage, int64_t elapsed,
                            const std::vector<Call>& calls) const {
  JsonValue json = part(text, true, calls);
  json.set("done_reason", JsonValue::string(reason_));
  json.set("total_duration", JsonValue::integer(elapsed));
  const auto count = [&](const char* to, const char* from) {
    const JsonValue* value = usage == nullptr ? nullptr : usage->find(from);
    if (value != nullptr) json.set(to, *value);
  };
  count("prompt_eval_count", "prompt_tokens");
  count("eval_count", "completion_tokens");
  return json;
}

std::string OllamaReply::line(std::string_view data, int64_t elapsed) {
  if (failed_) return {};
  if (data == "[DONE]") return last("", &usage_, elapsed, calls_).dump() + "\n";
  const auto json = parse_json(data);
  if (!json) return {};
  if (json->find("error") != nullptr) {
    failed_ = true;
    return ollama_error(data) + "\n";
  }
  if (const JsonValue* notes = json->find("tandem_notes")) notes_ = *notes;
  if (const JsonValue* usage = json->find("usage"); usage != nullptr && usage->is_object())
    usage_ = *usage;
  const JsonValue* choice = first_choice(*json);
  if (choice == nullptr) return {};
  if (const JsonValue* reason = choice->find("finish_reason");
      reason != nullptr && reason->is_string())
    reason_ = ollama_reason(reason->as_string());
  // Calls come in pieces; Ollama's clients get each whole.
  if (!collect_calls(*choice, calls_, call_bytes_)) {
    failed_ = true;
    return ollama_error(R"({"error":{"message":"the answer's calls are too long"}})") + "\n";
  }
  const bool ended = choice->find("finish_reason") != nullptr &&
                     choice->find("finish_reason")->is_string() && !calls_.empty();
  const std::string text = text_of(*choice);
  if (text.empty() && !ended) return {};
  JsonValue out = part(text, false, ended ? calls_ : std::vector<Call>{});
  if (!notes_.is_null()) out.set("tandem_notes", std::exchange(notes_, JsonValue()));
  if (ended) calls_.clear();
  return out.dump() + "\n";
}

std::string OllamaReply::loaded() const {
  JsonValue json = part("", true, {});
  json.set("done_reason", JsonValue::string("load"));
  return json.dump();
}

std::string OllamaReply::embeddings(const JsonValue& openai, int64_t elapsed) const {
  const JsonValue* data = openai.find("data");
  if (data == nullptr || data->items().empty()) return ollama_error("");
  JsonValue vectors = JsonValue::array();
  for (const JsonValue& entry : data->items()) {
    const JsonValue* vector = entry.find("embedding");
    vectors.push_back(vector == nullptr ? JsonValue::array() : *vector);
  }
  if (route_ == OllamaRoute::kEmbedding)
    return JsonValue::object({{"embedding", vectors.items()[0]}}).dump();
  JsonValue out = JsonValue::object({{"model", JsonValue::string(model_)}});
  out.set("embeddings", std::move(vectors));
  out.set("total_duration", JsonValue::integer(elapsed));
  const JsonValue* usage = openai.find("usage");
  const JsonValue* count = usage == nullptr ? nullptr : usage->find("prompt_tokens");
  if (count != nullptr) out.set("prompt_eval_count", *count);
  return out.dump();
}

std::string OllamaReply::whole(std::string_view openai_body, int64_t elapsed) const {
  const auto json = parse_json(openai_body);
  if (json && (route_ == OllamaRoute::kEmbed || route_ == OllamaRoute::kEmbedding))
    return embeddings(*json, elapsed);
  const JsonValue* choice = json ? first_choice(*json) : nullptr;
  if (choice == nullptr) return ollama_error("");
  std::vector<Call> calls;
  size_t bytes = 0;
  if (!collect_calls(*choice, calls, bytes)) return ollama_error("");
  JsonValue out = last(text_of(*choice), json->find("usage"), elapsed, calls);
  if (const JsonValue* reason = choice->find("finish_reason");
      reason != nullptr && reason->is_string())
    out.set("done_reason", JsonValue::string(ollama_reason(reason->as_string())));
  if (const JsonValue* notes = json->find("tandem_notes")) out.set("tandem_notes", *notes);
  return out.dump();
}

std::string ollama_tags(const std::vector<std::string>& ids, const std::string& modified) {
  JsonValue models = JsonValue::array();
  for (const std::string& id : ids) {
    JsonValue model = JsonValue::object();
    model.set("name", JsonValue::string(id + ":latest"));
    model.set("model", JsonValue::string(id + ":latest"));
    model.set("modified_at", JsonValue::string(modified));
    models.push_back(std::move(model));
  }
  return JsonValue::object({{"models", std::move(models)}}).dump();
}

// Clients compare it with the versions that brought features: one that has the two routes.
std::string ollama_version() { return R"({"version":"0.5.0"})"; }

}  // namespace tandem::api
