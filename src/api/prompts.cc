// Requests to the tokens of their prompts, checked against vocabulary and context.
#include <algorithm>
#include <utility>

#include "api/content_blocks.h"
#include "api/fields.h"
#include "api/openai.h"

namespace tandem::api {

namespace {

Status check_token(int32_t token, const text::Tokenizer& tokenizer, const std::string& pointer) {
  if (token >= 0 && token < tokenizer.vocab_size()) return {};
  return make_error(400, "invalid_value",
                    "token id " + std::to_string(token) + " is outside the vocabulary of " +
                        std::to_string(tokenizer.vocab_size()) + " tokens",
                    pointer);
}

Status check_tokens(std::span<const int32_t> tokens, const text::Tokenizer& tokenizer,
                    const std::string& pointer) {
  for (size_t i = 0; i < tokens.size(); ++i)
    TANDEM_CHECK(check_token(tokens[i], tokenizer, pointer_to(pointer, i)));
  return {};
}

Status check_sampling(const protocol::SamplingParams& sampling, const text::Tokenizer& tokenizer) {
  for (const protocol::LogitBias& bias : sampling.logit_bias) {
    TANDEM_CHECK(
        check_token(bias.token, tokenizer, pointer_to("/logit_bias", std::to_string(bias.token))));
  }
  return check_tokens(sampling.stop_token_ids, tokenizer, "/stop_token_ids");
}

const char* prompt_field(const ApiRequest& request) {
  return request.endpoint == Endpoint::kEmbeddings ? "/input" : "/prompt";
}

std::string prompt_pointer(const ApiRequest& request, size_t index) {
  const std::string field = prompt_field(request);
  return request.prompts.size() > 1 ? pointer_to(field, index) : field;
}

Result<std::vector<int32_t>> encode_messages(const ApiRequest& request,
                                             const text::Tokenizer& tokenizer,
                                             const text::ChatTemplate* chat_template) {
  if (chat_template == nullptr) {
    return make_error(400, "no_chat_template",
                      "this model has no chat template: use /v1/completions instead", "/messages");
  }
  auto tokens = text::encode_chat(tokenizer, *chat_template, request.messages, request.tools,
                                  request.add_generation_prompt, request.template_arguments);
  // Agents put system messages in the middle and several user messages in a row; these dialects
  // say that both are fine, some templates do not.
  const bool strict = !tokens && tokens.error().code == "chat_template_error" &&
                      request.endpoint != Endpoint::kChatCompletions;
  if (!strict) return tokens;
  return text::encode_chat(tokenizer, *chat_template, alternating(request.messages), request.tools,
                           request.add_generation_prompt, request.template_arguments);
}

Result<std::vector<int32_t>> encode_prompt(const ApiRequest& request, size_t index,
                                           const text::Tokenizer& tokenizer) {
  const Prompt& prompt = request.prompts[index];
  if (prompt.tokens) {
    TANDEM_CHECK(check_tokens(*prompt.tokens, tokenizer, prompt_pointer(request, index)));
    return *prompt.tokens;
  }
  // A raw prompt is the whole text the model sees, so it may spell special tokens.
  return tokenizer.encode(prompt.text,
                          {.parse_special = true, .add_bos = request.add_special_tokens});
}

// Of all prompts together.
Status check_prompt_logprobs(const std::vector<std::vector<int32_t>>& prompts,
                             const protocol::SamplingParams& sampling) {
  int64_t tokens = 0;
  for (const auto& prompt : prompts) tokens += static_cast<int64_t>(prompt.size());
  return protocol::check_prompt_chances(tokens, sampling);
}

Status not_empty(const std::vector<int32_t>& tokens, const std::string& pointer) {
  if (!tokens.empty()) return {};
  return make_error(400, "invalid_value", "the prompt is empty: it has no tokens", pointer);
}

}  // namespace

Result<std::vector<std::vector<int32_t>>> render_prompts(const ApiRequest& request,
                                                         const text::Tokenizer& tokenizer,
                                                         const text::ChatTemplate* chat_template) {
  TANDEM_CHECK(check_sampling(request.sampling, tokenizer));
  if (request.envelope && !request.envelope->prompts.empty()) {
    for (const auto& tokens : request.envelope->prompts)
      TANDEM_CHECK(check_tokens(tokens, tokenizer, "/tandem/prompt_token_ids"));
    return request.envelope->prompts;
  }
  std::vector<std::vector<int32_t>> out;
  if (!request.messages.is_null()) {
    TANDEM_TRY(tokens, encode_messages(request, tokenizer, chat_template));
    TANDEM_CHECK(not_empty(tokens, "/messages"));
    out.push_back(std::move(tokens));
    return out;
  }
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    TANDEM_TRY(tokens, encode_prompt(request, i, tokenizer));
    TANDEM_CHECK(not_empty(tokens, prompt_pointer(request, i)));
    out.push_back(std::move(tokens));
  }
  TANDEM_CHECK(check_prompt_logprobs(out, request.sampling));
  return out;
}

Status check_context(int64_t prompt_tokens, const ApiRequest& request, int64_t context_length) {
  const bool nothing = request.sampling.score_only || request.endpoint == Endpoint::kEmbeddings;
  const int64_t asked = nothing ? 0 : request.sampling.max_tokens;
  const int64_t wanted = nothing ? 0 : std::max<int64_t>(asked, 1);
  if (prompt_tokens + wanted <= context_length) return {};
  const std::string limit =
      "This model's maximum context length is " + std::to_string(context_length) + " tokens. ";
  const std::string detail =
      asked > 0 && prompt_tokens < context_length
          ? "However, you requested " + std::to_string(prompt_tokens + asked) + " tokens (" +
                std::to_string(prompt_tokens) + " in the prompt, " + std::to_string(asked) +
                " in the completion). Please reduce the prompt or max_tokens."
          : "However, your prompt has " + std::to_string(prompt_tokens) +
                " tokens. Please reduce the length of the prompt.";
  const bool responses = request.endpoint == Endpoint::kResponses;
  const char* field = responses                           ? "/input"
                      : is_conversation(request.endpoint) ? "/messages"
                                                          : prompt_field(request);
  // Agents of the Messages dialect look for these words.
  const std::string first = request.endpoint == Endpoint::kMessages
                                ? "prompt is too long: " + std::to_string(prompt_tokens) +
                                      " tokens > " + std::to_string(context_length) + " maximum. "
                                : "";
  return make_error(400, "context_length_exceeded", first + limit + detail, field);
}

Result<std::vector<int32_t>> tokenize(const ApiRequest& request, const text::Tokenizer& tokenizer,
                                      const text::ChatTemplate* chat_template) {
  if (!request.messages.is_null()) return encode_messages(request, tokenizer, chat_template);
  return encode_prompt(request, 0, tokenizer);
}

Result<std::string> detokenize(const ApiRequest& request, const text::Tokenizer& tokenizer) {
  const std::vector<int32_t>& tokens = *request.prompts[0].tokens;
  TANDEM_CHECK(check_tokens(tokens, tokenizer, "/tokens"));
  return tokenizer.decode(tokens, true);
}

}  // namespace tandem::api
