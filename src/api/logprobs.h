// Logprobs in the two shapes of the OpenAI dialect.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/json_value.h"
#include "protocol/token_event.h"
#include "text/tokenizer.h"

namespace tandem::api {

// The lists grow token by token; chat uses `content`, completions the other four.
struct LogprobLists {
  JsonValue content = JsonValue::array();
  JsonValue tokens = JsonValue::array();
  JsonValue token_logprobs = JsonValue::array();
  JsonValue top_logprobs = JsonValue::array();
  JsonValue text_offset = JsonValue::array();

  bool empty() const { return content.items().empty() && tokens.items().empty(); }
  void add_chat(const protocol::TokenLogprobs& token);
  // `offset`: where the token's text begins, in characters.
  void add_completion(const protocol::TokenLogprobs& token, int64_t offset);
  // A token without a logprob: the first of a prompt.
  void add_unscored(std::string_view bytes, int64_t offset);
};

// How many characters of the answer's text a token makes: none for control tokens; one that is
// split over tokens counts with its first byte.
int64_t characters_of(int32_t token, std::string_view bytes, const text::Tokenizer* tokenizer);

}  // namespace tandem::api
