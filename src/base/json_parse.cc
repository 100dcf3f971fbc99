// Reading JSON with simdjson's on-demand interface. Its skips do not validate, so every value is
// visited; depth, number syntax and trailing bytes are checked here.
#include <simdjson.h>

#include "base/json_value.h"

namespace tandem {
namespace {

using simdjson::ondemand::json_type;

tl::unexpected<Error> invalid_json(std::string_view why) {
  return make_error(400, "invalid_json", "The body is not valid JSON: " + std::string(why) + ".");
}

std::string_view trimmed(std::string_view token) {
  while (!token.empty() && (token.back() == ' ' || token.back() == '\n' || token.back() == '\t' ||
                            token.back() == '\r')) {
    token.remove_suffix(1);
  }
  return token;
}

bool is_number(std::string_view text) {
  size_t i = 0;
  const auto digits = [&] {
    const size_t start = i;
    while (i < text.size() && text[i] >= '0' && text[i] <= '9') ++i;
    return i - start;
  };
  if (i < text.size() && text[i] == '-') ++i;
  const size_t start = i;
  const size_t whole = digits();
  if (whole == 0 || (whole > 1 && text[start] == '0')) return false;
  if (i < text.size() && text[i] == '.') {
    ++i;
    if (digits() == 0) return false;
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && (text[i] == '+' || text[i] == '-')) ++i;
    if (digits() == 0) return false;
  }
  return i == text.size();
}

template <typename Value>
Result<JsonValue> read_scalar(Value& value, json_type type) {
  switch (type) {
    case json_type::string: {
      std::string_view text;
      if (value.get_string().get(text) != simdjson::SUCCESS)
        return invalid_json("a string has a bad escape");
      return JsonValue::string(std::string(text));
    }
    case json_type::number: {
      std::string_view token;
      if (simdjson::error_code(
              simdjson::simdjson_result<std::string_view>(value.raw_json_token()).get(token)) !=
          simdjson::SUCCESS) {
        return invalid_json("a number cannot be read");
      }
      token = trimmed(token);
      if (!is_number(token)) return invalid_json("a number is malformed");
      double unused = 0;  // moves the reader past the token
      (void)value.get_double().get(unused);
      return JsonValue::number_text(std::string(token));
    }
    case json_type::boolean: {
      bool flag = false;
      if (value.get_bool().get(flag) != simdjson::SUCCESS)
        return invalid_json("an unknown word stands in it");
      return JsonValue::boolean(flag);
    }
    default: {
      std::string_view token;
      if (simdjson::simdjson_result<std::string_view>(value.raw_json_token()).get(token) !=
              simdjson::SUCCESS ||
          trimmed(token) != "null") {
        return invalid_json("an unknown word stands in it");
      }
      bool null = false;  // moves the reader past the token
      if (simdjson::simdjson_result<bool>(value.is_null()).get(null) != simdjson::SUCCESS || !null)
        return invalid_json("an unknown word stands in it");
      return JsonValue();
    }
  }
}

template <typename Value>
Result<JsonValue> read_value(Value& value, int depth_left) {
  json_type type{};
  if (value.type().get(type) != simdjson::SUCCESS)
    return invalid_json("a value is missing or malformed");
  if (type != json_type::array && type != json_type::object) return read_scalar(value, type);
  if (depth_left <= 0) {
    return make_error(400, "invalid_json", "The JSON body is nested too deeply.");
  }
  if (type == json_type::array) {
    simdjson::ondemand::array array;
    if (value.get_array().get(array) != simdjson::SUCCESS)
      return invalid_json("an array is malformed");
    JsonValue result = JsonValue::array();
    for (auto item : array) {
      simdjson::ondemand::value element;
      if (item.get(element) != simdjson::SUCCESS) return invalid_json("an array is malformed");
      auto read = read_value(element, depth_left - 1);
      if (!read) return read;
      result.items().push_back(std::move(*read));
    }
    return result;
  }
  simdjson::ondemand::object object;
  if (value.get_object().get(object) != simdjson::SUCCESS)
    return invalid_json("an object is malformed");
  JsonValue result = JsonValue::object();
  for (auto field : object) {
    if (field.error() != simdjson::SUCCESS) return invalid_json("an object is malformed");
    std::string_view key;
    if (field.unescaped_key().get(key) != simdjson::SUCCESS)
      return invalid_json("a key is malformed");
    std::string owned(key);
    simdjson::ondemand::value member;
    if (simdjson::simdjson_result<simdjson::ondemand::value>(field.value()).get(member) !=
        simdjson::SUCCESS) {
      return invalid_json("an object is malformed");
    }
    auto read = read_value(member, depth_left - 1);
    if (!read) return read;
    result.members().emplace_back(std::move(owned), std::move(*read));
  }
  return result;
}

}  // namespace

bool is_valid_utf8(std::string_view text) {
  return simdjson::validate_utf8(text.data(), text.size());
}

Result<JsonValue> parse_json(std::string_view text, int max_depth) {
  // simdjson reports invalid UTF-8 while indexing, but an error of ours names it best.
  if (!is_valid_utf8(text)) return make_error(400, "invalid_json", "The body is not valid UTF-8.");
  const simdjson::padded_string padded(text);
  simdjson::ondemand::parser parser;
  simdjson::ondemand::document document;
  if (parser.iterate(padded).get(document) != simdjson::SUCCESS)
    return invalid_json("it is empty or malformed");
  auto result = read_value(document, max_depth);
  if (!result) return result;
  // The reader stands after the last token it used; anything but white space there is a second
  // document.
  const char* at = nullptr;
  if (document.current_location().get(at) == simdjson::SUCCESS &&
      !trimmed(std::string_view(at, static_cast<size_t>(padded.data() + padded.size() - at)))
           .empty()) {
    return invalid_json("bytes follow the document");
  }
  return result;
}

}  // namespace tandem
