#include "api/tools/json_stream.h"

#include "base/json_value.h"
#include "text/unicode.h"

namespace tandem::api {

namespace {

constexpr size_t kMaxWord = 1024;

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

bool is_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '+' ||
         c == '-' || c == '.';
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_number(std::string_view text) {
  size_t at = 0;
  const auto digits = [&] {
    const size_t from = at;
    while (at < text.size() && is_digit(text[at])) ++at;
    return at > from;
  };
  if (at < text.size() && text[at] == '-') ++at;
  const size_t whole = at;
  if (!digits() || (text[whole] == '0' && at - whole > 1)) return false;
  if (at < text.size() && text[at] == '.') {
    ++at;
    if (!digits()) return false;
  }
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
    if (!digits()) return false;
  }
  return at == text.size();
}

}  // namespace

void append_json_text(std::string& out, std::string_view text) {
  for (const char c : text) append_json_byte(out, c);
}

JsonStream::State JsonStream::push(std::string_view text, size_t& used, std::string& out) {
  used = 0;
  while (used < text.size() && state_ == State::kMore) {
    if (!feed(text[used], out)) break;
    ++used;
  }
  return state_;
}

JsonStream::State JsonStream::finish(std::string& out) {
  if (state_ == State::kMore && !word_.empty()) end_word(out);
  if (state_ == State::kMore) state_ = State::kBad;
  return state_;
}

bool JsonStream::feed(char c, std::string& out) {
  if (string_) {
    in_string(c, out);
    return true;
  }
  if (!word_.empty()) {
    if (is_word(c)) {
      word_ += c;
      if (word_.size() > kMaxWord) state_ = State::kBad;
      return true;
    }
    end_word(out);
    if (state_ != State::kMore) return false;
  }
  if (is_space(c)) return true;
  switch (expect_) {
    case Expect::kColon:
      if (c != ':') break;
      out += ':';
      expect_ = Expect::kValue;
      return true;
    case Expect::kNext:
      if (c == ',') {
        out += ',';
        expect_ = stack_.back() == '{' ? Expect::kKey : Expect::kValue;
        return true;
      }
      close(c, out);
      return true;
    case Expect::kFirstKey:
    case Expect::kKey:
      if (c == '"') {
        string_ = key_ = true;
        out += '"';
        return true;
      }
      if (expect_ != Expect::kFirstKey) break;
      close(c, out);
      return true;
    case Expect::kFirstItem:
      if (c == ']') {
        close(c, out);
        return true;
      }
      begin_value(c, out);
      return true;
    case Expect::kValue:
      begin_value(c, out);
      return true;
  }
  state_ = State::kBad;
  return true;
}

void JsonStream::begin_value(char c, std::string& out) {
  if (c == '"') {
    string_ = true;
    key_ = false;
    out += '"';
  } else if (c == '{' || c == '[') {
    if (stack_.size() >= static_cast<size_t>(kJsonMaxDepth)) {
      state_ = State::kBad;
      return;
    }
    stack_ += c;
    out += c;
    expect_ = c == '{' ? Expect::kFirstKey : Expect::kFirstItem;
  } else if (is_word(c)) {
    word_ = c;
  } else {
    state_ = State::kBad;
  }
}

void JsonStream::end_value() {
  if (stack_.empty()) {
    state_ = State::kDone;
  } else {
    expect_ = Expect::kNext;
  }
}

void JsonStream::close(char c, std::string& out) {
  if (stack_.empty() || c != (stack_.back() == '{' ? '}' : ']')) {
    state_ = State::kBad;
    return;
  }
  stack_.pop_back();
  out += c;
  end_value();
}

void JsonStream::end_word(std::string& out) {
  const bool fine = word_ == "true" || word_ == "false" || word_ == "null" || is_number(word_);
  if (!fine) {
    state_ = State::kBad;
    return;
  }
  out += word_;
  word_.clear();
  end_value();
}

void JsonStream::in_string(char c, std::string& out) {
  if (hex_left_ > 0) return hex(c, out);
  if (escaped_) return escape(c, out);
  if (c == '\\') {
    escaped_ = true;
    return;
  }
  flush_surrogate(out);
  if (c != '"') return append_json_byte(out, c);
  out += '"';
  string_ = false;
  if (key_) {
    expect_ = Expect::kColon;
  } else {
    end_value();
  }
}

void JsonStream::escape(char c, std::string& out) {
  escaped_ = false;
  if (c == 'u') {
    hex_left_ = 4;
    code_ = 0;
    return;
  }
  flush_surrogate(out);
  switch (c) {
    case 'b':
      return append_json_byte(out, '\b');
    case 'f':
      return append_json_byte(out, '\f');
    case 'n':
      return append_json_byte(out, '\n');
    case 'r':
      return append_json_byte(out, '\r');
    case 't':
      return append_json_byte(out, '\t');
    case '"':
    case '\\':
    case '/':
    case '\'':
      return append_json_byte(out, c);
    default:
      // No escape of JSON's: the model meant a backslash, as in a regular expression.
      append_json_byte(out, '\\');
      append_json_byte(out, c);
  }
}

void JsonStream::hex(char c, std::string& out) {
  uint32_t digit = 0;
  if (is_digit(c)) {
    digit = static_cast<uint32_t>(c - '0');
  } else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
    digit = static_cast<uint32_t>((c | 0x20) - 'a') + 10;
  } else {
    state_ = State::kBad;
    return;
  }
  code_ = code_ * 16 + digit;
  if (--hex_left_ > 0) return;
  if (code_ >= 0xDC00 && code_ < 0xE000 && high_ != 0) {
    text::append_utf8(out, 0x10000 + ((high_ - 0xD800) << 10) + (code_ - 0xDC00));
    high_ = 0;
    return;
  }
  flush_surrogate(out);
  if (code_ >= 0xD800 && code_ < 0xDC00) {
    high_ = code_;
  } else if (code_ >= 0xDC00 && code_ < 0xE000) {
    text::append_utf8(out, 0xFFFD);
  } else if (code_ < 0x80) {
    append_json_byte(out, static_cast<char>(code_));
  } else {
    text::append_utf8(out, code_);
  }
}

// A high surrogate without its low one stands for no character.
void JsonStream::flush_surrogate(std::string& out) {
  if (high_ == 0) return;
  text::append_utf8(out, 0xFFFD);
  high_ = 0;
}

}  // namespace tandem::api
