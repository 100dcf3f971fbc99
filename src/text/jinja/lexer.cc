#include "text/jinja/lexer.h"

#include <algorithm>
#include <cctype>
#include <cstdint>

#include "text/unicode.h"

namespace tandem::text::jinja {

namespace {

constexpr size_t kNpos = std::string_view::npos;

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) {
  return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         static_cast<uint8_t>(c) >= 0x80;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)), text_(source_) {}

  Result<std::vector<Token>> run() {
    while (at_ < text_.size()) TANDEM_CHECK(template_data());
    push(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  tl::unexpected<Error> fail(const std::string& message) const {
    return make_error(400, "invalid_chat_template",
                      "chat template line " + std::to_string(line_) + ": " + message);
  }
  void push(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  // Moves on, counting lines.
  void advance(size_t to) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<ptrdiff_t>(at_),
                                         text_.begin() + static_cast<ptrdiff_t>(to), '\n'));
    at_ = to;
  }
  bool starts(std::string_view what) const { return text_.substr(at_, what.size()) == what; }

  size_t next_tag(size_t from) const {
    for (size_t i = text_.find('{', from); i != kNpos; i = text_.find('{', i + 1)) {
      if (i + 1 < text_.size() &&
          (text_[i + 1] == '{' || text_[i + 1] == '%' || text_[i + 1] == '#')) {
        return i;
      }
    }
    return text_.size();
  }

  Status template_data() {
    const size_t tag = next_tag(at_);
    std::string data(text_.substr(at_, tag - at_));
    if (tag == text_.size()) {
      push(TokenKind::kText, std::move(data));
      advance(tag);
      return {};
    }
    const char kind = text_[tag + 1];
    const char sign = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
    strip_before(data, sign, kind == '{');
    if (!data.empty()) push(TokenKind::kText, std::move(data));
    // "{%-" eats its sign; "{{-1" does too, as in the reference.
    advance(std::min(text_.size(), tag + 2 + (sign == '-' || sign == '+' ? 1 : 0)));
    if (kind == '#') return comment();
    if (kind == '{') {
      push(TokenKind::kVariableBegin, "");
      TANDEM_CHECK(expression(true));
      line_starting_ = false;
      return {};
    }
    if (is_raw()) return raw();
    push(TokenKind::kBlockBegin, "");
    return expression(false);
  }

  // Text before a tag: `-` strips all white space, lstrip_blocks the indentation of a tag that
  // begins its line.
  void strip_before(std::string& data, char sign, bool variable) const {
    if (sign == '-') {
      while (!data.empty() && is_space(data.back())) data.pop_back();
      return;
    }
    if (sign == '+' || variable) return;
    const size_t newline = data.rfind('\n');
    const size_t line_begin = newline == std::string::npos ? 0 : newline + 1;
    if (line_begin == 0 && !line_starting_) return;
    if (std::all_of(data.begin() + static_cast<ptrdiff_t>(line_begin), data.end(), is_space)) {
      data.resize(line_begin);
    }
  }

  // Behind a tag's end: `-` strips, otherwise trim_blocks drops one newline (unless `+`).
  void after_tag(char sign) {
    size_t to = at_;
    if (sign == '-') {
      while (to < text_.size() && is_space(text_[to])) ++to;
    } else if (sign != '+' && to < text_.size() && text_[to] == '\n') {
      ++to;
    }
    line_starting_ = to > at_ && text_[to - 1] == '\n';
    advance(to);
  }

  Status comment() {
    const size_t end = text_.find("#}", at_);
    if (end == kNpos) return fail("a comment is not closed with #}");
    const char sign = end > at_ ? text_[end - 1] : '\0';
    advance(end + 2);
    after_tag(sign);
    return {};
  }

  size_t skip_spaces(size_t i) const {
    while (i < text_.size() && is_space(text_[i])) ++i;
    return i;
  }
  // End of "word [sign] %}" at `i`, or npos; `sign` is set.
  size_t tag_word(size_t i, std::string_view word, char& sign) const {
    i = skip_spaces(i);
    if (text_.substr(i, word.size()) != word) return kNpos;
    i = skip_spaces(i + word.size());
    sign = '\0';
    if (i < text_.size() && (text_[i] == '-' || text_[i] == '+')) sign = text_[i++];
    return text_.substr(i, 2) == "%}" ? i + 2 : kNpos;
  }
  bool is_raw() const {
    char sign;
    return tag_word(at_, "raw", sign) != kNpos;
  }

  Status raw() {
    char sign = '\0';
    advance(tag_word(at_, "raw", sign));
    if (sign == '-') advance(skip_spaces(at_));
    for (size_t i = text_.find("{%", at_); i != kNpos; i = text_.find("{%", i + 2)) {
      const char before = i + 2 < text_.size() ? text_[i + 2] : '\0';
      const bool signed_tag = before == '-' || before == '+';
      const size_t end = tag_word(i + 2 + (signed_tag ? 1 : 0), "endraw", sign);
      if (end == kNpos) continue;
      std::string data(text_.substr(at_, i - at_));
      line_starting_ = false;
      strip_before(data, before, false);
      push(TokenKind::kText, std::move(data));
      advance(end);
      after_tag(sign);
      return {};
    }
    return fail("{% raw %} is not closed with {% endraw %}");
  }

  Status expression(bool variable) {
    std::string brackets;
    for (;;) {
      advance(skip_spaces(at_));
      if (at_ >= text_.size()) return fail("a tag is not closed");
      if (brackets.empty() && tag_end(variable)) return {};
      const char c = text_[at_];
      if (is_name_start(c)) {
        size_t end = at_;
        while (end < text_.size() && (is_name_start(text_[end]) || is_digit(text_[end]))) ++end;
        push(TokenKind::kName, std::string(text_.substr(at_, end - at_)));
        advance(end);
      } else if (is_digit(c)) {
        TANDEM_CHECK(number());
      } else if (c == '\'' || c == '"') {
        TANDEM_CHECK(string(c));
      } else {
        TANDEM_CHECK(operation(brackets));
      }
    }
  }

  bool tag_end(bool variable) {
    const std::string_view close = variable ? "}}" : "%}";
    char sign = '\0';
    size_t end = at_;
    if (text_[end] == '-' || (text_[end] == '+' && !variable)) sign = text_[end++];
    if (text_.substr(end, 2) != close) return false;
    push(variable ? TokenKind::kVariableEnd : TokenKind::kBlockEnd, "");
    advance(end + 2);
    if (!variable) {
      after_tag(sign);
    } else if (sign == '-') {
      advance(skip_spaces(at_));
    }
    return true;
  }

  Status number() {
    const bool after_dot = !tokens_.empty() && tokens_.back().kind == TokenKind::kOperator &&
                           tokens_.back().text == ".";
    std::string digits;
    size_t i = at_;
    const auto take = [&] {
      while (i < text_.size() && (is_digit(text_[i]) || text_[i] == '_')) {
        if (text_[i] != '_') digits += text_[i];
        ++i;
      }
    };
    take();
    bool real = false;
    if (!after_dot) {
      if (i + 1 < text_.size() && text_[i] == '.' && is_digit(text_[i + 1])) {
        real = true;
        digits += text_[i++];
        take();
      }
      size_t exponent = i + 1;
      if (exponent < text_.size() && (text_[exponent] == '+' || text_[exponent] == '-')) ++exponent;
      if (i < text_.size() && (text_[i] == 'e' || text_[i] == 'E') && exponent < text_.size() &&
          is_digit(text_[exponent])) {
        real = true;
        digits.append(text_.substr(i, exponent - i));
        i = exponent;
        take();
      }
    }
    push(real ? TokenKind::kFloat : TokenKind::kInteger, std::move(digits));
    advance(i);
    return {};
  }

  Status operation(std::string& brackets) {
    static constexpr std::string_view kLong[] = {"//", "**", "==", "!=", ">=", "<="};
    for (const std::string_view op : kLong) {
      if (starts(op)) {
        push(TokenKind::kOperator, std::string(op));
        advance(at_ + 2);
        return {};
      }
    }
    const char c = text_[at_];
    if (std::string_view("+-/*%~[](){}><=.:|,").find(c) == kNpos) {
      return fail(std::string("unexpected character '") + c + "'");
    }
    if (c == '(' || c == '[' || c == '{') {
      brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
      if (brackets.empty() || brackets.back() != c)
        return fail(std::string("unexpected '") + c + "'");
      brackets.pop_back();
    }
    push(TokenKind::kOperator, std::string(1, c));
    advance(at_ + 1);
    return {};
  }

  // Digits of a \x, \u or \U escape; false when there are too few.
  bool hex_escape(size_t& i, size_t count, std::string& out) const {
    uint32_t value = 0;
    for (size_t k = 0; k < count; ++k, ++i) {
      if (i >= text_.size() || !std::isxdigit(static_cast<uint8_t>(text_[i]))) return false;
      const char c = text_[i];
      const int digit = is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10;
      value = value << 4 | static_cast<uint32_t>(digit);
    }
    append_utf8(out, value);
    return true;
  }

  Status escape(size_t& i, std::string& out) const {
    if (i >= text_.size()) return fail("a string is not closed");
    const char c = text_[i++];
    static constexpr std::string_view kNames = "abfnrtv\\'\"";
    static constexpr std::string_view kValues = "\a\b\f\n\r\t\v\\'\"";
    if (const size_t known = kNames.find(c); known != kNpos) {
      out += kValues[known];
    } else if (c == '\n') {
      // A line continued.
    } else if (c >= '0' && c <= '7') {
      uint32_t value = static_cast<uint32_t>(c - '0');
      for (int k = 0; k < 2 && i < text_.size() && text_[i] >= '0' && text_[i] <= '7'; ++k) {
        value = value * 8 + static_cast<uint32_t>(text_[i++] - '0');
      }
      append_utf8(out, value);
    } else if (c == 'x' || c == 'u' || c == 'U') {
      if (!hex_escape(i, c == 'x' ? 2 : c == 'u' ? 4 : 8, out))
        return fail("a broken string escape");
    } else {
      out += '\\';
      out += c;
    }
    return {};
  }

  Status string(char quote) {
    std::string value;
    size_t i = at_ + 1;
    for (;;) {
      if (i >= text_.size()) return fail("a string is not closed");
      const char c = text_[i++];
      if (c == quote) break;
      if (c == '\\') {
        TANDEM_CHECK(escape(i, value));
      } else {
        value += c;
      }
    }
    push(TokenKind::kString, std::move(value));
    advance(i);
    return {};
  }

  const std::string source_;
  const std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

// Line ends become \n; one at the very end is dropped.
std::string normalize(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

}  // namespace

Result<std::vector<Token>> tokenize(std::string_view source) {
  return Lexer(normalize(source)).run();
}

}  // namespace tandem::text::jinja
