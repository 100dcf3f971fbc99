// Bodies of the OpenAI dialect to plain requests.
#include <algorithm>
#include <limits>
#include <string_view>
#include <vector>

#include "api/fields.h"
#include "api/messages.h"
#include "api/openai.h"

namespace tandem::api {

namespace {

constexpr size_t kMaxName = 1024;
constexpr size_t kMaxPromptBytes = size_t{64} << 20;
constexpr size_t kMaxPromptTokens = size_t{1} << 24;
constexpr size_t kMaxStops = 16;
constexpr size_t kMaxStopBytes = 4096;
constexpr size_t kMaxTools = 4096;
constexpr size_t kMaxFields = 1024;  // each look-up passes over all of them

tl::unexpected<Error> unsupported(const Fields& fields, std::string_view key,
                                  const std::string& detail = "") {
  return make_error(
      400, "unsupported_parameter",
      "'" + std::string(key) + "' is not supported yet" + (detail.empty() ? "" : ": " + detail),
      fields.pointer(key));
}

// Fields that would change the answer when they are given with anything but their neutral value.
Status refuse_unsupported(const Fields& fields) {
  struct Neutral {
    const char* key;
    double value;
  };
  constexpr Neutral kNumbers[] = {
      {"n", 1},          {"best_of", 1},           {"presence_penalty", 0},
      {"min_p", 0},      {"frequency_penalty", 0}, {"repetition_penalty", 1},
      {"min_tokens", 0}, {"top_logprobs", 0},      {"typical_p", 1}};
  for (const Neutral& neutral : kNumbers) {
    const JsonValue* value = fields.find(neutral.key);
    if (value == nullptr) continue;
    const auto number = value->is_number() ? value->as_double() : std::nullopt;
    if (!number) return fields.error(neutral.key, "must be a number");
    if (*number != neutral.value) {
      return unsupported(fields, neutral.key,
                         "only " + JsonValue::real(neutral.value).as_string() + " is");
    }
  }
  // false, empty and null mean "not used".
  constexpr const char* kUnused[] = {"logprobs",
                                     "logit_bias",
                                     "echo",
                                     "suffix",
                                     "functions",
                                     "guided_json",
                                     "guided_regex",
                                     "guided_choice",
                                     "guided_grammar",
                                     "structured_outputs",
                                     "grammar",
                                     "stop_token_ids",
                                     "prompt_logprobs",
                                     "chat_template",
                                     "continue_final_message",
                                     "audio",
                                     "use_beam_search"};
  for (const char* key : kUnused) {
    const JsonValue* value = fields.find(key);
    if (value == nullptr) continue;
    const bool unused = (value->is_bool() && !value->as_bool()) ||
                        (value->is_string() && value->as_string().empty()) ||
                        (value->is_array() && value->items().empty()) ||
                        (value->is_object() && value->members().empty());
    if (!unused) return unsupported(fields, key);
  }
  if (const JsonValue* format = fields.find("response_format")) {
    const JsonValue* type = format->find("type");
    if (!format->is_object() || type == nullptr || !type->is_string()) {
      return fields.error("response_format", "must be an object with a type");
    }
    if (type->as_string() != "text")
      return unsupported(fields, "response_format", "only type 'text' is");
  }
  if (const JsonValue* choice = fields.find("tool_choice")) {
    if (!choice->is_string() || (choice->as_string() != "auto" && choice->as_string() != "none")) {
      return unsupported(fields, "tool_choice", "only 'auto' and 'none' are");
    }
  }
  if (const JsonValue* choice = fields.find("function_call")) {
    if (!choice->is_string() || (choice->as_string() != "auto" && choice->as_string() != "none")) {
      return unsupported(fields, "function_call");
    }
  }
  return {};
}

// A key given twice means one value to one reader and the other to the next.
Status check_keys(const JsonValue& body) {
  if (body.members().size() > kMaxFields)
    return invalid_request("the body has more than " + std::to_string(kMaxFields) + " fields");
  std::vector<std::string_view> keys;
  keys.reserve(body.members().size());
  for (const JsonValue::Member& member : body.members()) keys.emplace_back(member.first);
  std::sort(keys.begin(), keys.end());
  const auto twice = std::adjacent_find(keys.begin(), keys.end());
  if (twice == keys.end()) return {};
  const std::string key(twice->substr(0, kMaxName));
  return invalid_request("'" + key + "' is given twice", pointer_to("", key));
}

Status read_stops(const Fields& fields, std::vector<std::string>& out) {
  const JsonValue* stop = fields.find("stop");
  if (stop == nullptr) return {};
  const auto add = [&](const JsonValue& value, const std::string& pointer) -> Status {
    if (!value.is_string() || value.as_string().size() > kMaxStopBytes) {
      return invalid_request("a stop sequence must be a string of at most 4096 bytes", pointer);
    }
    if (!value.as_string().empty()) out.push_back(value.as_string());
    return {};
  };
  if (stop->is_string()) return add(*stop, fields.pointer("stop"));
  if (!stop->is_array() || stop->items().size() > kMaxStops) {
    return fields.error("stop", "must be a string or an array of at most 16 strings");
  }
  for (size_t i = 0; i < stop->items().size(); ++i) {
    TANDEM_CHECK(add(stop->items()[i], pointer_to(fields.pointer("stop"), std::to_string(i))));
  }
  return {};
}

Status read_sampling(const Fields& fields, Endpoint endpoint, protocol::SamplingParams& out) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  TANDEM_CHECK(fields.real("temperature", out.temperature, 0, 2));
  TANDEM_CHECK(fields.real("top_p", out.top_p, 0, 1, true));
  int64_t top_k = 0;
  TANDEM_CHECK(fields.integer("top_k", top_k, -1, kMax));
  out.top_k = static_cast<int32_t>(std::max<int64_t>(top_k, 0));
  if (fields.find("seed") != nullptr) {
    int64_t seed = 0;
    TANDEM_CHECK(fields.integer("seed", seed, std::numeric_limits<int64_t>::min(),
                                std::numeric_limits<int64_t>::max()));
    out.seed = static_cast<uint64_t>(seed);
  }
  // The older dialect generates 16 tokens unless asked.
  int64_t max_tokens = endpoint == Endpoint::kCompletions ? 16 : 0;
  TANDEM_CHECK(fields.integer("max_tokens", max_tokens, 1, kMax));
  if (endpoint == Endpoint::kChatCompletions) {
    TANDEM_CHECK(fields.integer("max_completion_tokens", max_tokens, 1, kMax));
  }
  out.max_tokens = static_cast<int32_t>(max_tokens);
  TANDEM_CHECK(fields.boolean("ignore_eos", out.ignore_eos));
  return read_stops(fields, out.stop);
}

Status read_chat(const Fields& fields, ApiRequest& out) {
  const JsonValue* messages = fields.find("messages");
  if (messages == nullptr) return fields.error("messages", "is missing");
  TANDEM_TRY(normalized, normalize_messages(*messages, fields.pointer("messages")));
  out.messages = std::move(normalized);
  if (const JsonValue* tools = fields.find("tools")) {
    if (!tools->is_array() || tools->items().size() > kMaxTools) {
      return fields.error("tools", "must be an array of at most 4096 tools");
    }
    for (size_t i = 0; i < tools->items().size(); ++i) {
      if (tools->items()[i].is_object()) continue;
      return invalid_request("a tool must be an object",
                             pointer_to(fields.pointer("tools"), std::to_string(i)));
    }
    const JsonValue* choice = fields.find("tool_choice");
    const bool none = choice != nullptr && choice->is_string() && choice->as_string() == "none";
    if (!tools->items().empty() && !none) out.tools = *tools;
  }
  TANDEM_CHECK(fields.boolean("add_generation_prompt", out.add_generation_prompt));
  if (const JsonValue* extra = fields.find("chat_template_kwargs")) {
    if (!extra->is_object()) return fields.error("chat_template_kwargs", "must be an object");
    out.template_arguments = *extra;
  }
  return {};
}

Status read_prompt(const Fields& fields, ApiRequest& out) {
  const JsonValue* prompt = fields.find("prompt");
  if (prompt == nullptr) return fields.error("prompt", "is missing");
  std::string pointer = fields.pointer("prompt");
  const bool list =
      prompt->is_array() && !prompt->items().empty() && !prompt->items()[0].is_number();
  if (list) {
    if (prompt->items().size() > 1)
      return unsupported(fields, "prompt", "only one prompt per request is");
    prompt = &prompt->items()[0];
    pointer += "/0";
  }
  if (prompt->is_string()) {
    if (prompt->as_string().size() > kMaxPromptBytes)
      return invalid_request("the prompt is too large", pointer);
    out.prompt = prompt->as_string();
    return {};
  }
  if (!prompt->is_array()) {
    return invalid_request("'prompt' must be a string or an array of token ids", pointer);
  }
  TANDEM_TRY(tokens, read_tokens(*prompt, pointer, kMaxPromptTokens));
  out.prompt_token_ids = std::move(tokens);
  return {};
}

Status read_stream(const Fields& fields, ApiRequest& out) {
  TANDEM_CHECK(fields.boolean("stream", out.stream));
  const JsonValue* options = fields.find("stream_options");
  if (options == nullptr) return {};
  if (!options->is_object()) return fields.error("stream_options", "must be an object");
  return Fields(*options, fields.pointer("stream_options"))
      .boolean("include_usage", out.include_usage);
}

Status check_tokens(std::span<const int32_t> tokens, const text::Tokenizer& tokenizer,
                    const char* pointer) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && tokens[i] < tokenizer.vocab_size()) continue;
    return invalid_request("token id " + std::to_string(tokens[i]) +
                               " is outside the vocabulary of " +
                               std::to_string(tokenizer.vocab_size()) + " tokens",
                           pointer_to(pointer, std::to_string(i)));
  }
  return {};
}

}  // namespace

Result<ApiRequest> parse_request(Endpoint endpoint, const JsonValue& body, bool trust_envelope) {
  if (!body.is_object()) return invalid_request("the body must be a JSON object", "");
  const Fields fields(body, "");
  ApiRequest out;
  out.endpoint = endpoint;
  TANDEM_CHECK(check_keys(body));
  TANDEM_CHECK(fields.string("model", out.model, kMaxName));
  TANDEM_CHECK(fields.string("user", out.user, kMaxName));
  TANDEM_CHECK(fields.string("prompt_cache_key", out.prompt_cache_key, kMaxName));
  TANDEM_CHECK(read_stream(fields, out));
  TANDEM_CHECK(read_sampling(fields, endpoint, out.sampling));
  TANDEM_CHECK(refuse_unsupported(fields));
  if (endpoint == Endpoint::kChatCompletions) {
    TANDEM_CHECK(read_chat(fields, out));
  } else {
    TANDEM_CHECK(read_prompt(fields, out));
  }
  if (trust_envelope) {
    if (const JsonValue* envelope = fields.find("tandem")) {
      TANDEM_TRY(parsed, parse_envelope(*envelope));
      out.envelope = std::move(parsed);
    }
  }
  return out;
}

Result<std::vector<int32_t>> render_prompt(const ApiRequest& request,
                                           const text::Tokenizer& tokenizer,
                                           const text::ChatTemplate* chat_template) {
  std::vector<int32_t> tokens;
  const char* pointer = "/prompt";
  if (request.envelope && !request.envelope->prompt_token_ids.empty()) {
    tokens = request.envelope->prompt_token_ids;
    TANDEM_CHECK(check_tokens(tokens, tokenizer, "/tandem/prompt_token_ids"));
  } else if (request.endpoint == Endpoint::kChatCompletions) {
    pointer = "/messages";
    if (chat_template == nullptr) {
      return make_error(400, "no_chat_template",
                        "this model has no chat template: use /v1/completions instead", pointer);
    }
    TANDEM_TRY(encoded,
               text::encode_chat(tokenizer, *chat_template, request.messages, request.tools,
                                 request.add_generation_prompt, request.template_arguments));
    tokens = std::move(encoded);
  } else if (request.prompt_token_ids) {
    tokens = *request.prompt_token_ids;
    TANDEM_CHECK(check_tokens(tokens, tokenizer, pointer));
  } else {
    // A raw prompt is the whole text the model sees, so it may spell special tokens.
    tokens = tokenizer.encode(request.prompt, {.parse_special = true, .add_bos = true});
  }
  if (tokens.empty()) return invalid_request("the prompt is empty: it has no tokens", pointer);
  return tokens;
}

Status check_context(int64_t prompt_tokens, int64_t max_tokens, int64_t context_length) {
  const int64_t wanted = std::max<int64_t>(max_tokens, 1);
  if (prompt_tokens + wanted <= context_length) return {};
  const std::string limit =
      "This model's maximum context length is " + std::to_string(context_length) + " tokens. ";
  const std::string detail =
      max_tokens > 0 && prompt_tokens < context_length
          ? "However, you requested " + std::to_string(prompt_tokens + max_tokens) + " tokens (" +
                std::to_string(prompt_tokens) + " in the prompt, " + std::to_string(max_tokens) +
                " in the completion). Please reduce the prompt or max_tokens."
          : "However, your prompt has " + std::to_string(prompt_tokens) +
                " tokens. Please reduce the length of the prompt.";
  return make_error(400, "context_length_exceeded", limit + detail);
}

Result<TokenizeRequest> parse_tokenize_request(const JsonValue& body) {
  if (!body.is_object()) return invalid_request("the body must be a JSON object", "");
  const Fields fields(body, "");
  TokenizeRequest out;
  TANDEM_CHECK(fields.string("model", out.request.model, kMaxName));
  TANDEM_CHECK(fields.boolean("add_special_tokens", out.add_special_tokens));
  if (fields.find("messages") != nullptr) {
    TANDEM_CHECK(read_chat(fields, out.request));
    return out;
  }
  out.request.endpoint = Endpoint::kCompletions;
  const JsonValue* prompt = fields.find("prompt");
  if (prompt == nullptr || !prompt->is_string()) {
    return invalid_request("'prompt' must be a string (or give 'messages')", "/prompt");
  }
  TANDEM_CHECK(fields.string("prompt", out.request.prompt, kMaxPromptBytes));
  return out;
}

Result<std::vector<int32_t>> tokenize(const TokenizeRequest& request,
                                      const text::Tokenizer& tokenizer,
                                      const text::ChatTemplate* chat_template) {
  if (request.request.endpoint == Endpoint::kChatCompletions) {
    return render_prompt(request.request, tokenizer, chat_template);
  }
  return tokenizer.encode(request.request.prompt,
                          {.parse_special = true, .add_bos = request.add_special_tokens});
}

Result<std::vector<int32_t>> parse_detokenize_request(const JsonValue& body,
                                                      const text::Tokenizer& tokenizer) {
  if (!body.is_object()) return invalid_request("the body must be a JSON object", "");
  const JsonValue* tokens = body.find("tokens");
  if (tokens == nullptr) return invalid_request("'tokens' is missing", "/tokens");
  TANDEM_TRY(ids, read_tokens(*tokens, "/tokens", kMaxPromptTokens));
  TANDEM_CHECK(check_tokens(ids, tokenizer, "/tokens"));
  return std::move(ids);
}

}  // namespace tandem::api
