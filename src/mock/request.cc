#include "mock/request.h"

#include <algorithm>

namespace tandem::mock {

namespace {

// text/byte_tokenizer.h
constexpr uint32_t kStart = 256;
constexpr uint32_t kEnd = 257;

void append_bytes(std::string_view text, std::vector<uint32_t>& tokens) {
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
}

void append_tokens(std::string_view text, bool byte_tokens, std::vector<uint32_t>& tokens) {
  if (byte_tokens) return append_bytes(text, tokens);
  for (size_t at = 0; at < text.size(); at += 4) {
    uint32_t hash = 2166136261U;
    for (const char c : text.substr(at, 4))
      hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
    tokens.push_back(hash & 0xffffU);
  }
}

// The text of a message's content: a string, or parts with text.
std::string text_of(const JsonValue& content) {
  if (content.is_string()) return content.as_string();
  std::string text;
  for (const JsonValue& part : content.items()) {
    const JsonValue* const piece = part.find("text");
    text += piece != nullptr ? piece->as_string() : part.dump();
  }
  return text;
}

std::vector<uint32_t> tokens_of_messages(const JsonValue& messages, bool byte_tokens) {
  std::string text;
  std::vector<uint32_t> tokens;
  for (const JsonValue& message : messages.items()) {
    const JsonValue* const role = message.find("role");
    const JsonValue* const content = message.find("content");
    const std::string name = (role == nullptr ? "" : role->as_string()) + "\n";
    const std::string said = content == nullptr ? message.dump() : text_of(*content);
    text += name + said + "\n";
    if (!byte_tokens) continue;
    tokens.push_back(kStart);
    append_bytes(name + said, tokens);
    tokens.push_back(kEnd);
  }
  if (byte_tokens) {
    tokens.push_back(kStart);
    append_bytes("assistant\n", tokens);
  } else {
    append_tokens(text, false, tokens);
  }
  return tokens;
}

bool is_ids(const JsonValue& value) {
  return value.is_array() && !value.items().empty() && value.items()[0].is_number();
}

std::vector<uint32_t> tokens_of(const JsonValue& prompt, bool byte_tokens) {
  std::vector<uint32_t> tokens;
  if (prompt.is_string()) append_tokens(prompt.as_string(), byte_tokens, tokens);
  for (const JsonValue& id : prompt.items())
    tokens.push_back(static_cast<uint32_t>(id.as_integer().value_or(0)));
  return tokens;
}

// One prompt, or several.
void read_prompts(const JsonValue& value, bool byte_tokens,
                  std::vector<std::vector<uint32_t>>& prompts) {
  if (!value.is_array() || is_ids(value)) {
    prompts.push_back(tokens_of(value, byte_tokens));
    return;
  }
  for (const JsonValue& prompt : value.items()) prompts.push_back(tokens_of(prompt, byte_tokens));
}

const JsonValue* prompt_field(Api api, const JsonValue& body) {
  const auto first = [&](std::initializer_list<const char*> names) -> const JsonValue* {
    for (const char* name : names) {
      const JsonValue* const found = body.find(name);
      if (found != nullptr && !found->is_null()) return found;
    }
    return nullptr;
  };
  switch (api) {
    case Api::kChat:
    case Api::kMessages:
      return first({"prompt_token_ids", "messages"});
    case Api::kCompletions:
      return first({"prompt_token_ids", "prompt"});
    case Api::kGenerate:
      return first({"input_ids", "text"});
    case Api::kResponses:
      return first({"input"});
  }
  return nullptr;
}

int32_t number(const JsonValue& body, std::initializer_list<const char*> names, int32_t otherwise) {
  for (const char* name : names) {
    const JsonValue* const found = body.find(name);
    if (found != nullptr && found->as_integer())
      return static_cast<int32_t>(std::clamp<int64_t>(*found->as_integer(), -1, 1 << 20));
  }
  return otherwise;
}

bool flag(const JsonValue& body, const char* name) {
  const JsonValue* const found = body.find(name);
  return found != nullptr && found->as_bool();
}

}  // namespace

int64_t MockRequest::prompt_tokens() const {
  int64_t sum = 0;
  for (const auto& prompt : prompts) sum += static_cast<int64_t>(prompt.size());
  return sum;
}

Result<MockRequest> read_request(Api api, std::string_view text, bool byte_tokens) {
  MockRequest request;
  request.api = api;
  TANDEM_TRY(body, parse_json(text));
  if (!body.is_object()) return make_error(400, "invalid_json", "the body is not an object");
  if (const JsonValue* model = body.find("model")) request.model = model->as_string();
  const JsonValue* const prompt = prompt_field(api, body);
  if (prompt == nullptr) return make_error(400, "invalid_request", "there is no prompt");
  const bool messages =
      prompt->is_array() && !prompt->items().empty() && prompt->items()[0].is_object();
  if (messages) {
    request.prompts.push_back(tokens_of_messages(*prompt, byte_tokens));
  } else {
    read_prompts(*prompt, byte_tokens, request.prompts);
  }
  for (const auto& tokens : request.prompts) {
    if (tokens.empty()) return make_error(400, "invalid_request", "a prompt is empty");
  }
  const JsonValue* const sampling = body.find("sampling_params");
  const JsonValue& limits = api == Api::kGenerate && sampling != nullptr ? *sampling : body;
  request.max_tokens = number(
      limits, {"max_completion_tokens", "max_tokens", "max_output_tokens", "max_new_tokens"}, 0);
  request.n = number(limits, {"n"}, 1);
  if (request.n < 1 || request.n > 128)
    return make_error(400, "invalid_request", "n is out of range");
  request.stream = flag(body, "stream");
  request.logprobs = flag(body, "return_logprob");
  if (const JsonValue* options = body.find("stream_options"))
    request.include_usage = flag(*options, "include_usage");
  request.body = std::move(body);
  return request;
}

}  // namespace tandem::mock
