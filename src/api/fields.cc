#include "api/fields.h"

#include <limits>

namespace tandem::api {

Result<std::string> string_member(const JsonValue& object, const char* key,
                                  const std::string& pointer) {
  const JsonValue* value = object.find(key);
  if (value == nullptr || !value->is_string())
    return make_error(400, "invalid_type", "'" + std::string(key) + "' must be a string",
                      pointer_to(pointer, key));
  return value->as_string();
}

const JsonValue* Fields::find(std::string_view key) const {
  const JsonValue* value = json_.find(key);
  return value != nullptr && !value->is_null() ? value : nullptr;
}

tl::unexpected<Error> Fields::error(std::string_view key, std::string_view what) const {
  return invalid_request("'" + std::string(key) + "' " + std::string(what), pointer(key));
}

Status Fields::string(std::string_view key, std::string& out, size_t limit) const {
  const JsonValue* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_string()) return error(key, "must be a string");
  if (value->as_string().size() > limit) {
    return error(key, "is longer than " + std::to_string(limit) + " bytes");
  }
  out = value->as_string();
  return {};
}

Status Fields::boolean(std::string_view key, bool& out) const {
  const JsonValue* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_bool()) return error(key, "must be true or false");
  out = value->as_bool();
  return {};
}

Status Fields::integer(std::string_view key, int64_t& out, int64_t low, int64_t high) const {
  const JsonValue* value = find(key);
  if (value == nullptr) return {};
  const auto number = value->is_number() ? value->as_integer() : std::nullopt;
  if (!number || *number < low || *number > high) {
    return error(key,
                 "must be an integer from " + std::to_string(low) + " to " + std::to_string(high));
  }
  out = *number;
  return {};
}

Result<std::vector<int32_t>> read_tokens(const JsonValue& array, const std::string& pointer,
                                         size_t limit) {
  if (!array.is_array() || array.items().size() > limit) {
    return invalid_request("expected an array of at most " + std::to_string(limit) + " token ids",
                           pointer);
  }
  std::vector<int32_t> tokens;
  tokens.reserve(array.items().size());
  for (size_t i = 0; i < array.items().size(); ++i) {
    const JsonValue& item = array.items()[i];
    const auto number = item.is_number() ? item.as_integer() : std::nullopt;
    if (!number || *number < 0 || *number > std::numeric_limits<int32_t>::max()) {
      return invalid_request("a token id must be a non-negative integer", pointer_to(pointer, i));
    }
    tokens.push_back(static_cast<int32_t>(*number));
  }
  return tokens;
}

JsonValue token_array(std::span<const int32_t> tokens) {
  JsonValue::Array items;
  items.reserve(tokens.size());
  for (const int32_t token : tokens) items.push_back(JsonValue::integer(token));
  return JsonValue::array(std::move(items));
}

}  // namespace tandem::api
