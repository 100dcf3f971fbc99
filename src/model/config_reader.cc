#include "model/config_reader.h"

#include <cmath>

namespace tandem::model {
namespace {

Result<JsonValue> array_fact(const weights::GgufFile& file, const std::string& key,
                             weights::GgufType element) {
  JsonValue out = JsonValue::array();
  switch (element) {
    case weights::GgufType::kString: {
      TANDEM_TRY(values, file.strings(key));
      for (const std::string_view value : values)
        out.push_back(JsonValue::string(std::string(value)));
      return out;
    }
    case weights::GgufType::kF32:
    case weights::GgufType::kF64: {
      TANDEM_TRY(values, file.reals(key));
      for (const float value : values) out.push_back(JsonValue::real(value));
      return out;
    }
    case weights::GgufType::kBool: {
      for (const std::byte value : file.find(key)->bytes)
        out.push_back(JsonValue::boolean(value != std::byte{0}));
      return out;
    }
    default: {
      TANDEM_TRY(values, file.integers(key));
      for (const int64_t value : values) out.push_back(JsonValue::integer(value));
      return out;
    }
  }
}

Result<JsonValue> fact(const weights::GgufFile& file, const std::string& key,
                       const weights::GgufValue& value) {
  switch (value.type) {
    case weights::GgufType::kString: {
      TANDEM_TRY(text, file.string(key));
      return JsonValue::string(std::string(text));
    }
    case weights::GgufType::kF32:
    case weights::GgufType::kF64: {
      TANDEM_TRY(real, file.real(key));
      return JsonValue::real(real);
    }
    case weights::GgufType::kBool: {
      TANDEM_TRY(flag, file.boolean(key));
      return JsonValue::boolean(flag);
    }
    case weights::GgufType::kArray:
      return array_fact(file, key, value.element);
    default: {
      TANDEM_TRY(integer, file.integer(key));
      return JsonValue::integer(integer);
    }
  }
}

bool says_nothing(const JsonValue& value) {
  switch (value.kind()) {
    case JsonValue::Kind::kNull:
      return true;
    case JsonValue::Kind::kBool:
      return !value.as_bool();
    case JsonValue::Kind::kNumber:
      return value.as_double() == 0.0;
    case JsonValue::Kind::kString:
      return value.as_string().empty();
    case JsonValue::Kind::kArray:
      return value.items().empty();
    case JsonValue::Kind::kObject:
      return value.members().empty();
  }
  return false;
}

}  // namespace

Result<ConfigReader> ConfigReader::from_gguf(const weights::GgufFile& file,
                                             std::string_view architecture) {
  const std::string prefix = std::string(architecture) + ".";
  JsonValue facts = JsonValue::object();
  for (const auto& [key, value] : file.metadata()) {
    if (!key.starts_with(prefix)) continue;
    TANDEM_TRY(read, fact(file, key, value));
    facts.set(std::string_view(key).substr(prefix.size()), std::move(read));
  }
  return ConfigReader(std::move(facts), prefix);
}

bool ConfigReader::is_null(std::string_view key) const {
  const JsonValue* value = facts_.find(key);
  return value != nullptr && value->is_null();
}

const JsonValue* ConfigReader::find(std::string_view key) const {
  const JsonValue* value = facts_.find(key);
  if (value == nullptr || value->is_null()) return nullptr;
  read_.emplace(key);
  return value;
}

Result<int32_t> ConfigReader::integer(std::string_view key, int64_t low, int64_t high,
                                      std::optional<int32_t> fallback) const {
  const JsonValue* value = find(key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    return invalid_model("the model's configuration has no " + name(key));
  }
  const auto number = value->is_number() ? value->as_integer() : std::nullopt;
  if (!number || *number < low || *number > high) {
    return invalid_model(name(key) + " must be an integer from " + std::to_string(low) + " to " +
                         std::to_string(high));
  }
  return static_cast<int32_t>(*number);
}

Result<double> ConfigReader::positive_real(std::string_view key,
                                           std::optional<double> fallback) const {
  const JsonValue* value = find(key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    return invalid_model("the model's configuration has no " + name(key));
  }
  const auto number = value->is_number() ? value->as_double() : std::nullopt;
  if (!number || !(*number > 0) || *number > 1e30)
    return invalid_model(name(key) + " must be a positive number");
  return *number;
}

Result<bool> ConfigReader::boolean(std::string_view key, bool fallback) const {
  const JsonValue* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_bool()) return invalid_model(name(key) + " must be true or false");
  return value->as_bool();
}

Result<std::string> ConfigReader::string(std::string_view key,
                                         std::optional<std::string_view> fallback) const {
  const JsonValue* value = find(key);
  if (value == nullptr) {
    if (fallback) return std::string(*fallback);
    return invalid_model("the model's configuration has no " + name(key));
  }
  if (!value->is_string()) return invalid_model(name(key) + " must be a string");
  return value->as_string().substr(0, 64);
}

Result<std::vector<double>> ConfigReader::positive_reals(std::string_view key) const {
  std::vector<double> out;
  const JsonValue* value = find(key);
  if (value == nullptr || !value->is_array())
    return invalid_model(name(key) + " must be an array of numbers");
  for (const JsonValue& item : value->items()) {
    const auto number = item.is_number() ? item.as_double() : std::nullopt;
    if (!number || !(*number > 0) || *number > 1e30)
      return invalid_model(name(key) + " must hold positive numbers");
    out.push_back(*number);
  }
  return out;
}

Result<std::vector<JsonValue>> ConfigReader::per_layer(std::string_view key, int32_t layers) const {
  const JsonValue* value = find(key);
  if (value == nullptr) return std::vector<JsonValue>();
  if (!value->is_array() || value->items().size() < static_cast<size_t>(layers))
    return invalid_model(name(key) + " must be an array with one entry for each layer");
  return std::vector<JsonValue>(value->items().begin(), value->items().begin() + layers);
}

Result<std::optional<ConfigReader>> ConfigReader::child(std::string_view key) const {
  const JsonValue* value = find(key);
  if (value == nullptr) return std::optional<ConfigReader>();
  if (!value->is_object()) return invalid_model(name(key) + " must be an object");
  return std::optional<ConfigReader>(ConfigReader(*value, name(key) + "."));
}

Status ConfigReader::finish() const {
  for (const auto& [key, value] : facts_.members()) {
    if (read_.contains(key) || key.starts_with('_') || says_nothing(value)) continue;
    return unsupported_model("the model's configuration has a key that is not supported here: " +
                             name(std::string_view(key).substr(0, 128)));
  }
  return {};
}

}  // namespace tandem::model
