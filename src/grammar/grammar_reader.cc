// What GBNF and Lark are read with.
#include <algorithm>

#include "grammar/expression.h"

namespace tandem::grammar {

tl::unexpected<Error> GrammarReader::wrong(const std::string& what) const {
  const std::string_view before = text_.substr(0, std::min(at_, text_.size()));
  const auto line = std::ranges::count(before, '\n') + 1;
  return make_error(400, "invalid_grammar",
                    "Line " + std::to_string(line) + " of the grammar: " + what + ".");
}

std::string GrammarReader::name() {
  std::string out;
  while (is_name(peek())) out += text_[at_++];
  return out;
}

std::optional<uint32_t> GrammarReader::number() {
  if (peek() < '0' || peek() > '9') return std::nullopt;
  uint32_t out = 0;
  while (peek() >= '0' && peek() <= '9')
    out = std::min(out * 10 + static_cast<uint32_t>(text_[at_++] - '0'), 100'000'000U);
  return out;
}

Status GrammarReader::braces(uint32_t& min, uint32_t& max) {
  ++at_;
  const auto skip = [&] {
    while (peek() == ' ') ++at_;
  };
  skip();
  const auto low = number();
  skip();
  min = max = low.value_or(0);
  bool bound = low.has_value();
  if (take(",")) {
    skip();
    const auto high = number();
    max = high.value_or(kUnbounded);
    bound = bound || high.has_value();
    skip();
  }
  if (!bound || !take("}")) return wrong("a repetition must be {n}, {n,} or {n,m}");
  if (min > max || min > 1'000'000 || (max != kUnbounded && max > 1'000'000))
    return wrong("the bounds of a repetition are too large or in the wrong order");
  return {};
}

Result<std::string> GrammarReader::quoted() {
  std::string out;
  while (peek() != '"') {
    if (at_end() || peek() == '\n') return wrong("a text has no end");
    if (peek() != '\\') {
      out += text_[at_++];
      continue;
    }
    ++at_;
    const char c = peek();
    ++at_;
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
      uint32_t value = 0;
      for (size_t i = 0; i < digits; ++i) {
        const char digit = peek();
        const int nibble = digit >= '0' && digit <= '9'   ? digit - '0'
                           : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10
                           : digit >= 'A' && digit <= 'F' ? digit - 'A' + 10
                                                          : -1;
        if (nibble < 0) return wrong("an escape has too few digits");
        value = value * 16 + static_cast<uint32_t>(nibble);
        ++at_;
      }
      if (value > kLastCodePoint || (value >= 0xD800 && value < 0xE000))
        return wrong("an escape is no character");
      append_code_point(out, value);
      continue;
    }
    switch (c) {
      case 'n':
        out += '\n';
        break;
      case 'r':
        out += '\r';
        break;
      case 't':
        out += '\t';
        break;
      case 'b':
        out += '\b';
        break;
      case 'f':
        out += '\f';
        break;
      case '0':
        out += '\0';
        break;
      default:
        if (is_name(c) && c != '-' && c != '_') return wrong("an escape is not known");
        out += c;
    }
  }
  ++at_;
  return out;
}

Result<Pattern> GrammarReader::bracket() {
  const size_t start = at_++;
  while (!at_end() && peek() != ']' && peek() != '\n') at_ += peek() == '\\' ? 2 : 1;
  if (!take("]")) return wrong("a character class has no end");
  return parse_pattern(text_.substr(start, at_ - start));
}

Result<std::string> GrammarReader::special_text() {
  const size_t start = at_;
  while (!at_end() && peek() != '>' && peek() != '\n') ++at_;
  if (!take(">")) return wrong("a special token has no end");
  return std::string(text_.substr(start, at_ - start));
}

}  // namespace tandem::grammar
