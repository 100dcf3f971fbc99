#include "text/jinja/format.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "text/unicode.h"

namespace tandem::text::jinja {

namespace {

void append_hex(std::string& out, const char* prefix, uint32_t value, int digits) {
  char buffer[16];
  std::snprintf(buffer, sizeof buffer, "%0*x", digits, value);
  out += prefix;
  out += buffer;
}

void repr_string(std::string& out, std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  out += quote;
  for (size_t i = 0; i < text.size();) {
    const Decoded decoded = decode_utf8(text, i);
    const uint32_t c = decoded.code_point;
    if (c == static_cast<uint8_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c != kInvalidCodePoint && !is_printable(c)) {
      if (c < 0x100) {
        append_hex(out, "\\x", c, 2);
      } else if (c < 0x10000) {
        append_hex(out, "\\u", c, 4);
      } else {
        append_hex(out, "\\U", c, 8);
      }
    } else {
      out.append(text.substr(i, decoded.size));
    }
    i += decoded.size;
  }
  out += quote;
}

void append_repr(std::string& out, const Value& value, int budget);

void append_str(std::string& out, const Value& value, int budget) {
  if (value.is_string()) {
    out += value.str();
  } else if (!value.is_undefined()) {
    append_repr(out, value, budget);
  }
}

void append_dict_repr(std::string& out, const Dict& dict, int budget) {
  out += '{';
  const char* separator = "";
  for (const auto& [key, item] : dict.items) {
    out += separator;
    append_repr(out, key, budget - 1);
    out += ": ";
    append_repr(out, item, budget - 1);
    separator = ", ";
  }
  out += '}';
}

void append_repr(std::string& out, const Value& value, int budget) {
  if (budget <= 0) {
    out += "...";
  } else if (value.is_undefined()) {
    out += "Undefined";
  } else if (value.is_none()) {
    out += "None";
  } else if (value.is<bool>()) {
    out += value.as<bool>() ? "True" : "False";
  } else if (value.is<int64_t>()) {
    out += std::to_string(value.as<int64_t>());
  } else if (value.is<BigInteger>()) {
    out += *value.as<BigInteger>().digits;
  } else if (value.is<double>()) {
    out += format_float(value.as<double>());
  } else if (value.is_string()) {
    repr_string(out, value.str());
  } else if (const List* list = value.as_list()) {
    if (list->lazy) {
      out += "<generator object>";
      return;
    }
    out += list->tuple ? '(' : '[';
    const char* separator = "";
    for (const Value& item : list->items) {
      out += separator;
      append_repr(out, item, budget - 1);
      separator = ", ";
    }
    if (list->tuple && list->items.size() == 1) out += ',';
    out += list->tuple ? ')' : ']';
  } else if (const Dict* dict = value.as_dict()) {
    append_dict_repr(out, *dict, budget);
  } else if (value.is<std::shared_ptr<Namespace>>()) {
    out += "<Namespace ";
    append_dict_repr(out, value.as<std::shared_ptr<Namespace>>()->fields, budget);
    out += '>';
  } else {
    out += '<';
    out += value.type_name();
    out += '>';
  }
}

class JsonPrinter {
 public:
  JsonPrinter(const JsonStyle& style, std::string& out) : style_(style), out_(out) {}

  bool print(const Value& value, int level) {
    if (level > kMaxValueDepth) return false;
    if (value.is_none()) {
      out_ += "null";
    } else if (value.is<bool>()) {
      out_ += value.as<bool>() ? "true" : "false";
    } else if (value.is<int64_t>()) {
      out_ += std::to_string(value.as<int64_t>());
    } else if (value.is<BigInteger>()) {
      out_ += *value.as<BigInteger>().digits;
    } else if (value.is<double>()) {
      print_real(value.as<double>());
    } else if (value.is_string()) {
      print_string(value.str());
    } else if (const List* list = value.as_list()) {
      if (list->lazy) return false;
      return print_list(*list, level);
    } else if (const Dict* dict = value.as_dict()) {
      return print_dict(*dict, level);
    } else {
      return false;
    }
    return true;
  }

 private:
  void new_line(int level) {
    if (!style_.indent) return;
    out_ += '\n';
    for (int i = 0; i < level; ++i) out_ += *style_.indent;
  }

  bool print_list(const List& list, int level) {
    if (list.items.empty()) {
      out_ += "[]";
      return true;
    }
    out_ += '[';
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      new_line(level + 1);
      if (!print(list.items[i], level + 1)) return false;
    }
    new_line(level);
    out_ += ']';
    return true;
  }

  bool print_dict(const Dict& dict, int level) {
    if (dict.items.empty()) {
      out_ += "{}";
      return true;
    }
    std::vector<const std::pair<Value, Value>*> order;
    order.reserve(dict.items.size());
    for (const auto& item : dict.items) order.push_back(&item);
    if (style_.sort_keys) {
      std::sort(order.begin(), order.end(),
                [](const auto* a, const auto* b) { return key_less(a->first, b->first); });
    }
    out_ += '{';
    for (size_t i = 0; i < order.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      new_line(level + 1);
      print_string(key_text(order[i]->first));
      out_ += style_.key_separator;
      if (!print(order[i]->second, level + 1)) return false;
    }
    new_line(level);
    out_ += '}';
    return true;
  }

  static bool key_less(const Value& a, const Value& b) {
    if (a.is_number() && b.is_number()) return a.as_real() < b.as_real();
    return key_text(a) < key_text(b);
  }
  static std::string key_text(const Value& key) {
    if (key.is<bool>()) return key.as<bool>() ? "true" : "false";
    return key.is_none() ? "null" : to_str(key);
  }

  void print_real(double value) {
    if (std::isnan(value)) {
      out_ += "NaN";
    } else if (std::isinf(value)) {
      out_ += value < 0 ? "-Infinity" : "Infinity";
    } else {
      out_ += format_float(value);
    }
  }

  void print_string(std::string_view text) {
    out_ += '"';
    for (size_t i = 0; i < text.size();) {
      const auto byte = static_cast<uint8_t>(text[i]);
      if (byte < 0x80) {
        print_ascii(text[i]);
        ++i;
        continue;
      }
      const Decoded decoded = decode_utf8(text, i);
      const std::string_view character = text.substr(i, decoded.size);
      i += decoded.size;
      if (!style_.ensure_ascii || character == style_.sentinel) {
        out_.append(character);
      } else if (decoded.code_point == kInvalidCodePoint) {
        out_ += "\\ufffd";
      } else if (decoded.code_point < 0x10000) {
        append_hex(out_, "\\u", decoded.code_point, 4);
      } else {
        const uint32_t rest = decoded.code_point - 0x10000;
        append_hex(out_, "\\u", 0xD800 + (rest >> 10), 4);
        append_hex(out_, "\\u", 0xDC00 + (rest & 0x3FF), 4);
      }
    }
    out_ += '"';
  }

  void print_ascii(char c) {
    switch (c) {
      case '"':
        out_ += "\\\"";
        break;
      case '\\':
        out_ += "\\\\";
        break;
      case '\n':
        out_ += "\\n";
        break;
      case '\r':
        out_ += "\\r";
        break;
      case '\t':
        out_ += "\\t";
        break;
      case '\f':
        out_ += "\\f";
        break;
      case '\b':
        out_ += "\\b";
        break;
      default:
        if (static_cast<uint8_t>(c) < 0x20) {
          append_hex(out_, "\\u", static_cast<uint8_t>(c), 4);
        } else {
          out_ += c;
        }
    }
  }

  const JsonStyle& style_;
  std::string& out_;
};

}  // namespace

std::string format_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  // The shortest digits that read back; Python chooses between the two notations by the exponent.
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  std::string scientific(buffer, end.ptr);
  const int exponent = std::atoi(scientific.c_str() + scientific.find('e') + 1);
  if (exponent < -4 || exponent >= 16) return scientific;
  const auto fixed = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed);
  std::string text(buffer, fixed.ptr);
  if (text.find('.') == std::string::npos) text += ".0";
  return text;
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string to_str(const Value& value) {
  std::string out;
  append_str(out, value, kMaxValueDepth + 1);
  return out;
}

std::string to_repr(const Value& value) {
  std::string out;
  append_repr(out, value, kMaxValueDepth + 1);
  return out;
}

std::optional<std::string> to_json(const Value& value, const JsonStyle& style) {
  std::string out;
  if (!JsonPrinter(style, out).print(value, 0)) return std::nullopt;
  return out;
}

Value from_json(const JsonValue& json) {
  switch (json.kind()) {
    case JsonValue::Kind::kNull:
      return Value::none();
    case JsonValue::Kind::kBool:
      return Value(json.as_bool());
    case JsonValue::Kind::kNumber: {
      const std::string& digits = json.as_string();
      if (digits.find_first_of(".eE") != std::string::npos) {
        return Value(std::strtod(digits.c_str(), nullptr));
      }
      if (const auto integer = json.as_integer()) return Value::integer(*integer);
      return Value(BigInteger{std::make_shared<const std::string>(digits)});
    }
    case JsonValue::Kind::kString:
      return Value::string(json.as_string());
    case JsonValue::Kind::kArray: {
      std::vector<Value> items;
      items.reserve(json.items().size());
      for (const JsonValue& item : json.items()) items.push_back(from_json(item));
      return Value::list(std::move(items));
    }
    case JsonValue::Kind::kObject: {
      std::vector<std::pair<Value, Value>> items;
      items.reserve(json.members().size());
      for (const auto& [key, item] : json.members()) {
        items.emplace_back(Value::string(key), from_json(item));
      }
      return Value::dict(std::move(items));
    }
  }
  return Value::none();
}

}  // namespace tandem::text::jinja
