#include "router/prompt_prefix.h"

#include <algorithm>
#include <utility>

#include "protocol/kv_events.h"

namespace tandem::router {

namespace {

PromptKeys keys_of_bytes(const std::vector<uint64_t>& hashes, size_t chunk_bytes) {
  PromptKeys made;
  made.of_bytes = true;
  made.block_tokens = static_cast<int32_t>(chunk_bytes / 4);
  made.keys.reserve(hashes.size());
  for (const uint64_t hash : hashes) made.keys.push_back(std::max<BlockKey>(hash >> 8, 1));
  return made;
}

std::vector<int32_t> ids_of(const JsonValue* value) {
  std::vector<int32_t> ids;
  if (value == nullptr || !value->is_array() || value->items().empty()) return ids;
  const JsonValue& first = value->items().front();
  // The first prompt of several.
  const JsonValue& list = first.is_array() ? first : *value;
  ids.reserve(list.items().size());
  for (const JsonValue& id : list.items()) {
    const auto number = id.as_integer();
    if (!number || *number < 0 || *number > INT32_MAX) return {};
    ids.push_back(static_cast<int32_t>(*number));
  }
  return ids;
}

std::string text_of(const JsonValue& body, const char* name) {
  const JsonValue* const value = body.find(name);
  return value != nullptr && value->is_string() ? value->as_string() : std::string();
}

// The tokens of the first prompt, or none.
std::vector<int32_t> tokens_of(const PrefixRule& rule, std::optional<api::Endpoint> endpoint,
                               const JsonValue& body) {
  for (const char* const name : {"prompt_token_ids", "input_ids", "prompt", "token_ids"}) {
    std::vector<int32_t> ids = ids_of(body.find(name));
    if (!ids.empty()) return ids;
  }
  if (rule.tokenizer == nullptr) return {};
  if (!endpoint) {  // SGLang's own
    const std::string text = text_of(body, "text");
    return rule.tokenizer->encode(text, {.parse_special = true, .add_bos = true});
  }
  const auto parsed = api::parse_request(*endpoint, body);
  if (!parsed) return {};
  auto prompts = api::render_prompts(*parsed, *rule.tokenizer, rule.chat_template.get());
  return prompts ? std::move(prompts->front()) : std::vector<int32_t>();
}

}  // namespace

int64_t PromptPrefix::beyond_chain(int64_t prompt_tokens) const {
  if (chain().empty()) return prompt_tokens;
  const int64_t rest = prompt_tokens - static_cast<int64_t>(chain().size()) * block_tokens();
  return rest < block_tokens() ? 0 : rest;
}

PromptPrefix prefix_of_tokens(const PrefixRule& rule, std::span<const int32_t> tokens,
                              std::string_view salt) {
  PromptPrefix prefix;
  const std::string extra = salt.empty() ? std::string() : protocol::extra_of_salt(salt);
  for (const int32_t block : rule.block_tokens) {
    const BlockKey root = rule.hasher.root(rule.model, rule.adapter, block);
    prefix.kinds.push_back({block, PrefixHasher::of_tokens(root, tokens, block, extra)});
  }
  return prefix;
}

PromptPrefix prefix_of_body(const PrefixRule& rule, std::optional<api::Endpoint> endpoint,
                            const std::string& body, const BodyFacts& facts) {
  const bool may_be_ids =
      facts.api != Api::kChat && facts.api != Api::kMessages && facts.api != Api::kResponses;
  if (!rule.block_tokens.empty() && (rule.tokenizer || may_be_ids)) {
    const auto json = parse_json(body);
    const std::vector<int32_t> tokens =
        json ? tokens_of(rule, endpoint, *json) : std::vector<int32_t>();
    if (!tokens.empty()) return prefix_of_tokens(rule, tokens, text_of(*json, "cache_salt"));
  }
  PromptPrefix prefix;
  prefix.kinds.push_back(keys_of_bytes(facts.prefix, kPrefixChunkBytes));
  if (!facts.far.empty()) prefix.kinds.push_back(keys_of_bytes(facts.far, kFarChunkBytes));
  return prefix;
}

}  // namespace tandem::router
