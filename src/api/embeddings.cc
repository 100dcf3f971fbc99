#include "api/embeddings.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <utility>

namespace tandem::api {

namespace {

static_assert(std::endian::native == std::endian::little, "clients expect little-endian floats");

Status shorten(std::vector<float>& vector, int64_t dimensions) {
  if (dimensions > static_cast<int64_t>(vector.size())) {
    return make_error(400, "invalid_value",
                      "'dimensions' is more than the " + std::to_string(vector.size()) +
                          " values of this model's embeddings",
                      "/dimensions");
  }
  vector.resize(static_cast<size_t>(dimensions));
  double square = 0;
  for (const float value : vector) square += static_cast<double>(value) * value;
  if (square <= 0) return {};
  const double scale = 1 / std::sqrt(square);
  for (float& value : vector) value = static_cast<float>(value * scale);
  return {};
}

JsonValue float_array(const std::vector<float>& vector) {
  JsonValue::Array items;
  items.reserve(vector.size());
  char digits[32];
  for (const float value : vector) {
    const char* const end = std::to_chars(digits, digits + sizeof digits, value).ptr;
    items.push_back(JsonValue::number_text(std::string(digits, static_cast<size_t>(end - digits))));
  }
  return JsonValue::array(std::move(items));
}

}  // namespace

std::string base64(std::string_view bytes) {
  constexpr char kLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j)
      group = group << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0U);
    for (size_t j = 0; j < 4; ++j)
      out += i + j <= bytes.size() ? kLetters[group >> (18 - (6 * j)) & 63] : '=';
  }
  return out;
}

Result<std::string> embeddings_body(const ApiRequest& request, const std::string& model,
                                    std::vector<std::vector<float>> vectors,
                                    int64_t prompt_tokens) {
  JsonValue data = JsonValue::array();
  for (size_t i = 0; i < vectors.size(); ++i) {
    std::vector<float>& vector = vectors[i];
    if (request.dimensions) TANDEM_CHECK(shorten(vector, *request.dimensions));
    for (const float value : vector) {
      if (!std::isfinite(value))
        return make_error(500, "embedding_not_finite",
                          "the model computed a value that is no number");
    }
    JsonValue entry = JsonValue::object();
    entry.set("object", JsonValue::string("embedding"));
    entry.set("index", JsonValue::integer(static_cast<int64_t>(i)));
    if (request.base64) {
      std::string bytes(vector.size() * sizeof(float), '\0');
      std::memcpy(bytes.data(), vector.data(), bytes.size());
      entry.set("embedding", JsonValue::string(base64(bytes)));
    } else {
      entry.set("embedding", float_array(vector));
    }
    data.push_back(std::move(entry));
  }
  JsonValue usage = JsonValue::object();
  usage.set("prompt_tokens", JsonValue::integer(prompt_tokens));
  usage.set("total_tokens", JsonValue::integer(prompt_tokens));
  JsonValue json = JsonValue::object({{"object", JsonValue::string("list")}});
  json.set("data", std::move(data));
  json.set("model", JsonValue::string(model));
  json.set("usage", std::move(usage));
  if (request.envelope && request.envelope->report_tokens) json.set("tandem", JsonValue::object());
  return json.dump();
}

}  // namespace tandem::api
