#include "api/logprobs.h"

#include <algorithm>
#include <cmath>

namespace tandem::api {

namespace {

// JSON has no infinities; a token that cannot come has the value that OpenAI gives it.
JsonValue number(float logprob) {
  return JsonValue::real(std::isfinite(logprob) ? static_cast<double>(logprob) : -9999.0);
}

JsonValue byte_array(std::string_view bytes) {
  JsonValue out = JsonValue::array();
  for (const char c : bytes) out.push_back(JsonValue::integer(static_cast<unsigned char>(c)));
  return out;
}

JsonValue chat_entry(const protocol::TokenChance& chance) {
  JsonValue entry = JsonValue::object();
  entry.set("token", JsonValue::string(sanitize_utf8(chance.bytes)));
  entry.set("logprob", number(chance.logprob));
  entry.set("bytes", byte_array(chance.bytes));
  return entry;
}

// The older dialect has no bytes: part of a character is spelled out.
std::string spelled(std::string_view bytes) {
  if (is_valid_utf8(bytes)) return std::string(bytes);
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "bytes:";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out += "\\x";
    out += kHex[byte >> 4];
    out += kHex[byte & 15];
  }
  return out;
}

}  // namespace

void LogprobLists::add_chat(const protocol::TokenLogprobs& token) {
  JsonValue entry = chat_entry(token.chosen);
  JsonValue top = JsonValue::array();
  for (const protocol::TokenChance& chance : token.top) top.push_back(chat_entry(chance));
  entry.set("top_logprobs", std::move(top));
  content.push_back(std::move(entry));
}

void LogprobLists::add_completion(const protocol::TokenLogprobs& token, int64_t offset) {
  JsonValue top = JsonValue::object();
  for (const protocol::TokenChance& chance : token.top) {
    // Two tokens may have one spelling: the likelier stays.
    const std::string name = spelled(chance.bytes);
    if (top.find(name) == nullptr) top.set(name, number(chance.logprob));
  }
  const std::string name = spelled(token.chosen.bytes);
  if (top.find(name) == nullptr) top.set(name, number(token.chosen.logprob));
  tokens.push_back(JsonValue::string(name));
  token_logprobs.push_back(number(token.chosen.logprob));
  top_logprobs.push_back(std::move(top));
  text_offset.push_back(JsonValue::integer(offset));
}

void LogprobLists::add_unscored(std::string_view bytes, int64_t offset) {
  tokens.push_back(JsonValue::string(spelled(bytes)));
  token_logprobs.push_back(JsonValue());
  top_logprobs.push_back(JsonValue());
  text_offset.push_back(JsonValue::integer(offset));
}

int64_t characters_of(int32_t token, std::string_view bytes, const text::Tokenizer* tokenizer) {
  if (tokenizer != nullptr && tokenizer->is_control(token)) return 0;
  return std::count_if(bytes.begin(), bytes.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace tandem::api
