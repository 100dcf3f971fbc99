// Template source to tokens, with the reference environment's white-space rules: trim_blocks,
// lstrip_blocks,
// `-` and `+` on either side of a tag, one final newline dropped.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem::text::jinja {

enum class TokenKind {
  kText,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind;
  std::string text;  // text, name, operator, digits, or the string's value
  int line;
};

// Errors: 400 "invalid_chat_template" with the line.
Result<std::vector<Token>> tokenize(std::string_view source);

}  // namespace tandem::text::jinja
