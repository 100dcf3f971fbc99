#include "base/json_value.h"

#include <array>
#include <charconv>
#include <cmath>

namespace tandem {
namespace {

// Length of the valid UTF-8 sequence at `text[at]`, or 0 and in `bad` the length of the maximal
// invalid prefix.
size_t utf8_sequence(std::string_view text, size_t at, size_t& bad) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  bad = 1;
  if (lead < 0x80) return 1;
  size_t length = 0;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return 0;
  }
  for (size_t i = 1; i < length; ++i) {
    if (at + i >= text.size() || byte(at + i) < low || byte(at + i) > high) {
      bad = i;
      return 0;
    }
    low = 0x80;
    high = 0xBF;
  }
  return length;
}

}  // namespace

std::string sanitize_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  size_t bad = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_sequence(text, i, bad);
    if (length == 0) {
      out += "\xEF\xBF\xBD";
      i += bad;
    } else {
      out.append(text.substr(i, length));
      i += length;
    }
  }
  return out;
}

void append_json_byte(std::string& out, char c) {
  static constexpr char kHex[] = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(c);
  switch (c) {
    case '"':
      out += "\\\"";
      break;
    case '\\':
      out += "\\\\";
      break;
    case '\n':
      out += "\\n";
      break;
    case '\r':
      out += "\\r";
      break;
    case '\t':
      out += "\\t";
      break;
    case '\b':
      out += "\\b";
      break;
    case '\f':
      out += "\\f";
      break;
    default:
      if (byte < 0x20) {
        out += "\\u00";
        out += kHex[byte >> 4];
        out += kHex[byte & 15];
      } else {
        out += c;
      }
  }
}

// Stands in a JSON string as it is.
static bool is_plain(char c) { return c >= 0x20 && c <= 0x7e && c != '"' && c != '\\'; }

void append_json_string(std::string& out, std::string_view value) {
  out.reserve(out.size() + value.size() + 2);
  out += '"';
  size_t bad = 0;
  for (size_t i = 0; i < value.size();) {
    const size_t begin = i;
    while (i < value.size() && is_plain(value[i])) ++i;
    out.append(value.substr(begin, i - begin));
    if (i == value.size()) break;
    if (static_cast<unsigned char>(value[i]) < 0x80) {
      append_json_byte(out, value[i]);
      ++i;
      continue;
    }
    const size_t length = utf8_sequence(value, i, bad);
    if (length == 0) {
      out += "\xEF\xBF\xBD";
      i += bad;
    } else {
      out.append(value.substr(i, length));
      i += length;
    }
  }
  out += '"';
}

JsonValue JsonValue::boolean(bool value) {
  JsonValue result;
  result.kind_ = Kind::kBool;
  result.bool_ = value;
  return result;
}

JsonValue JsonValue::integer(int64_t value) { return number_text(std::to_string(value)); }

JsonValue JsonValue::unsigned_integer(uint64_t value) { return number_text(std::to_string(value)); }

JsonValue JsonValue::real(double value) {
  if (!std::isfinite(value)) return {};
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return number_text(std::string(buffer.data(), end));
}

JsonValue JsonValue::number_text(std::string text) {
  JsonValue result;
  result.kind_ = Kind::kNumber;
  result.text_ = std::move(text);
  return result;
}

JsonValue JsonValue::string(std::string value) {
  JsonValue result;
  result.kind_ = Kind::kString;
  result.text_ = std::move(value);
  return result;
}

JsonValue JsonValue::array(Array values) {
  JsonValue result;
  result.kind_ = Kind::kArray;
  result.array_ = std::move(values);
  return result;
}

JsonValue JsonValue::object(Object members) {
  JsonValue result;
  result.kind_ = Kind::kObject;
  result.object_ = std::move(members);
  return result;
}

std::optional<int64_t> JsonValue::as_integer() const {
  if (kind_ != Kind::kNumber) return std::nullopt;
  int64_t value = 0;
  const char* end = text_.data() + text_.size();
  const auto parsed = std::from_chars(text_.data(), end, value);
  if (parsed.ec == std::errc() && parsed.ptr == end) return value;
  const auto real = as_double();
  if (!real || *real != std::floor(*real) || std::fabs(*real) > 9007199254740992.0)
    return std::nullopt;
  return static_cast<int64_t>(*real);
}

std::optional<double> JsonValue::as_double() const {
  if (kind_ != Kind::kNumber) return std::nullopt;
  double value = 0;
  const char* end = text_.data() + text_.size();
  const auto parsed = std::from_chars(text_.data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return value;
}

const JsonValue* JsonValue::find(std::string_view key) const {
  for (const auto& member : object_) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}

JsonValue* JsonValue::find(std::string_view key) {
  for (auto& member : object_) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}

JsonValue& JsonValue::set(std::string_view key, JsonValue value) {
  kind_ = Kind::kObject;
  if (JsonValue* found = find(key)) {
    *found = std::move(value);
    return *found;
  }
  return object_.emplace_back(std::string(key), std::move(value)).second;
}

bool JsonValue::erase(std::string_view key) {
  return std::erase_if(object_, [&](const Member& member) { return member.first == key; }) != 0;
}

void JsonValue::push_back(JsonValue value) {
  kind_ = Kind::kArray;
  array_.push_back(std::move(value));
}

std::string JsonValue::dump() const {
  std::string out;
  dump_to(out);
  return out;
}

void JsonValue::dump_to(std::string& out) const {
  switch (kind_) {
    case Kind::kNull:
      out += "null";
      break;
    case Kind::kBool:
      out += bool_ ? "true" : "false";
      break;
    case Kind::kNumber:
      out += text_;
      break;
    case Kind::kString:
      append_json_string(out, text_);
      break;
    case Kind::kArray: {
      out += '[';
      bool first = true;
      for (const auto& value : array_) {
        if (!first) out += ',';
        first = false;
        value.dump_to(out);
      }
      out += ']';
      break;
    }
    case Kind::kObject: {
      out += '{';
      bool first = true;
      for (const auto& [key, value] : object_) {
        if (!first) out += ',';
        first = false;
        append_json_string(out, key);
        out += ':';
        value.dump_to(out);
      }
      out += '}';
      break;
    }
  }
}

}  // namespace tandem
