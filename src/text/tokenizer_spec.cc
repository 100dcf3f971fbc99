#include "text/tokenizer_spec.h"

#include <bit>
#include <cmath>
#include <span>
#include <string_view>
#include <type_traits>

#include "numerics/digest.h"

namespace tandem::text {

namespace {

constexpr size_t kMaxTokens = 1 << 21;
constexpr size_t kMaxMerges = 1 << 22;
constexpr size_t kMaxTemplateBytes = 1 << 20;

tl::unexpected<Error> bad(const std::string& key, const std::string& what) {
  return make_error(400, "invalid_tokenizer", "tokenizer field \"" + key + "\" " + what, "/" + key);
}

Status read_string(const JsonValue& json, const char* key, size_t limit, std::string& out) {
  const JsonValue* value = json.find(key);
  if (value == nullptr) return {};
  if (!value->is_string() || value->as_string().size() > limit) {
    return bad(key, "must be a string of at most " + std::to_string(limit) + " bytes");
  }
  out = value->as_string();
  return {};
}

Status read_strings(const JsonValue& json, const char* key, size_t limit,
                    std::vector<std::string>& out) {
  const JsonValue* value = json.find(key);
  if (value == nullptr) return {};
  if (!value->is_array() || value->items().size() > limit) {
    return bad(key, "must be an array of at most " + std::to_string(limit) + " strings");
  }
  out.reserve(value->items().size());
  for (const JsonValue& item : value->items()) {
    if (!item.is_string()) return bad(key, "must hold only strings");
    out.push_back(item.as_string());
  }
  return {};
}

Status read_integers(const JsonValue& json, const char* key, size_t limit, int64_t low,
                     int64_t high, std::vector<int32_t>& out) {
  const JsonValue* value = json.find(key);
  if (value == nullptr) return {};
  if (!value->is_array() || value->items().size() > limit) {
    return bad(key, "must be an array of at most " + std::to_string(limit) + " integers");
  }
  out.reserve(value->items().size());
  for (const JsonValue& item : value->items()) {
    const auto number = item.as_integer();
    if (!number || *number < low || *number > high) return bad(key, "holds a number out of range");
    out.push_back(static_cast<int32_t>(*number));
  }
  return {};
}

Status read_id(const JsonValue& json, const char* key, size_t vocab, int32_t& out) {
  const JsonValue* value = json.find(key);
  if (value == nullptr || value->is_null()) return {};
  const auto number = value->as_integer();
  if (!number || *number < -1 || *number >= static_cast<int64_t>(vocab)) {
    return bad(key, "is not a token of the vocabulary");
  }
  out = static_cast<int32_t>(*number);
  return {};
}

Status read_flag(const JsonValue& json, const char* key, bool& out) {
  const JsonValue* value = json.find(key);
  if (value == nullptr) return {};
  if (!value->is_bool()) return bad(key, "must be true or false");
  out = value->as_bool();
  return {};
}

Status read_scores(const JsonValue& json, size_t vocab, std::vector<double>& out) {
  const JsonValue* value = json.find("scores");
  if (value == nullptr) return {};
  if (!value->is_array() || (!value->items().empty() && value->items().size() != vocab)) {
    return bad("scores", "must be an array with one number per token");
  }
  out.reserve(value->items().size());
  for (const JsonValue& item : value->items()) {
    const auto number = item.as_double();
    if (!number || !std::isfinite(*number) || std::abs(*number) > 1e30) {
      return bad("scores", "holds something that is not a number of moderate size");
    }
    out.push_back(*number);
  }
  return {};
}

constexpr const char* kAddedFlags[] = {"strip_left", "strip_right", "single_word", "normalized"};

// [{"id": 7, "strip_left": true}, ...]
Status read_added(const JsonValue& json, size_t vocab, std::vector<AddedToken>& out) {
  const JsonValue* value = json.find("added");
  if (value == nullptr) return {};
  if (!value->is_array() || value->items().size() > vocab) {
    return bad("added", "must be an array of at most one entry per token");
  }
  for (const JsonValue& item : value->items()) {
    AddedToken added;
    if (!item.is_object() || !read_id(item, "id", vocab, added.id) || added.id < 0) {
      return bad("added", "holds something that is not an object with the id of a token");
    }
    bool* flags[] = {&added.strip_left, &added.strip_right, &added.single_word, &added.normalized};
    for (size_t i = 0; i < 4; ++i) {
      if (!read_flag(item, kAddedFlags[i], *flags[i])) {
        return bad("added", "holds a flag that is neither true nor false");
      }
    }
    out.push_back(added);
  }
  return {};
}

JsonValue added_array(const std::vector<AddedToken>& values) {
  JsonValue::Array array;
  for (const AddedToken& added : values) {
    JsonValue item = JsonValue::object();
    item.set("id", JsonValue::integer(added.id));
    const bool flags[] = {added.strip_left, added.strip_right, added.single_word, added.normalized};
    for (size_t i = 0; i < 4; ++i) {
      if (flags[i]) item.set(kAddedFlags[i], JsonValue::boolean(true));
    }
    array.push_back(std::move(item));
  }
  return JsonValue::array(std::move(array));
}

void read_json(const JsonValue& json, const char* key, JsonValue& out) {
  if (const JsonValue* value = json.find(key)) out = *value;
}

JsonValue string_array(const std::vector<std::string>& values) {
  JsonValue::Array array;
  array.reserve(values.size());
  for (const std::string& value : values) array.push_back(JsonValue::string(value));
  return JsonValue::array(std::move(array));
}

JsonValue integer_array(const std::vector<int32_t>& values) {
  JsonValue::Array array;
  array.reserve(values.size());
  for (const int32_t value : values) array.push_back(JsonValue::integer(value));
  return JsonValue::array(std::move(array));
}

// Every field with its length before it, so that no two specs give the same bytes.
class SpecDigest {
 public:
  void add(uint64_t value) {
    for (int i = 0; i < 8; ++i) bytes_.push_back(static_cast<char>(value >> (8 * i)));
    if (bytes_.size() >= kBuffered) flush();
  }
  void add(std::string_view text) {
    add(uint64_t{text.size()});
    bytes_ += text;
  }
  template <typename Item>
  void add_all(const std::vector<Item>& items) {
    add(uint64_t{items.size()});
    for (const Item& item : items) {
      if constexpr (std::is_floating_point_v<Item>) {
        add(std::bit_cast<uint64_t>(item));
      } else if constexpr (std::is_integral_v<Item>) {
        add(static_cast<uint64_t>(item));
      } else {
        add(std::string_view(item));
      }
    }
  }
  std::string finish() {
    flush();
    return numerics::to_hex(hash_.finish());
  }

 private:
  static constexpr size_t kBuffered = size_t{1} << 16;
  void flush() {
    hash_.update(std::as_bytes(std::span(bytes_)));
    bytes_.clear();
  }
  numerics::Sha256 hash_;
  std::string bytes_;
};

}  // namespace

std::string tokenizer_identity(const TokenizerSpec& spec) {
  SpecDigest digest;
  digest.add(spec.kind);
  digest.add(spec.pre);
  digest.add_all(spec.tokens);
  digest.add_all(spec.types);
  digest.add_all(spec.merges);
  digest.add_all(spec.scores);
  digest.add(uint64_t{spec.added.size()});
  for (const AddedToken& added : spec.added) {
    digest.add(static_cast<uint64_t>(added.id));
    for (const bool flag :
         {added.strip_left, added.strip_right, added.single_word, added.normalized})
      digest.add(uint64_t{flag});
  }
  for (const int32_t id : {spec.bos, spec.eos, spec.unknown, spec.pad})
    digest.add(static_cast<uint64_t>(id));
  digest.add_all(spec.end_of_generation);
  for (const bool flag : {spec.add_bos, spec.add_eos, spec.whole_words, spec.fuse_unknown,
                          spec.single_precision, spec.metaspace, spec.strip_leading_space})
    digest.add(uint64_t{flag});
  digest.add(spec.normalizer.dump());
  digest.add(spec.pre_tokenizer.dump());
  digest.add(spec.chat_template);
  digest.add(spec.tool_template);
  return digest.finish();
}

JsonValue tokenizer_spec_to_json(const TokenizerSpec& spec) {
  JsonValue json = JsonValue::object();
  json.set("kind", JsonValue::string(spec.kind));
  json.set("pre", JsonValue::string(spec.pre));
  json.set("tokens", string_array(spec.tokens));
  json.set("types", integer_array(spec.types));
  json.set("merges", string_array(spec.merges));
  JsonValue::Array scores;
  scores.reserve(spec.scores.size());
  for (const double score : spec.scores) scores.push_back(JsonValue::real(score));
  json.set("scores", JsonValue::array(std::move(scores)));
  json.set("added", added_array(spec.added));
  json.set("bos", JsonValue::integer(spec.bos));
  json.set("eos", JsonValue::integer(spec.eos));
  json.set("unknown", JsonValue::integer(spec.unknown));
  json.set("pad", JsonValue::integer(spec.pad));
  json.set("end_of_generation", integer_array(spec.end_of_generation));
  json.set("add_bos", JsonValue::boolean(spec.add_bos));
  json.set("add_eos", JsonValue::boolean(spec.add_eos));
  json.set("whole_words", JsonValue::boolean(spec.whole_words));
  json.set("fuse_unknown", JsonValue::boolean(spec.fuse_unknown));
  json.set("single_precision", JsonValue::boolean(spec.single_precision));
  json.set("metaspace", JsonValue::boolean(spec.metaspace));
  json.set("strip_leading_space", JsonValue::boolean(spec.strip_leading_space));
  json.set("normalizer", spec.normalizer);
  json.set("pre_tokenizer", spec.pre_tokenizer);
  json.set("chat_template", JsonValue::string(spec.chat_template));
  json.set("tool_template", JsonValue::string(spec.tool_template));
  return json;
}

Result<TokenizerSpec> tokenizer_spec_from_json(const JsonValue& json) {
  if (!json.is_object()) {
    return make_error(400, "invalid_tokenizer", "a tokenizer is a JSON object", "");
  }
  TokenizerSpec spec;
  TANDEM_CHECK(read_string(json, "kind", 64, spec.kind));
  TANDEM_CHECK(read_string(json, "pre", 64, spec.pre));
  TANDEM_CHECK(read_strings(json, "tokens", kMaxTokens, spec.tokens));
  const size_t vocab = spec.tokens.size();
  const auto last = static_cast<int64_t>(vocab) - 1;
  TANDEM_CHECK(read_integers(json, "types", kMaxTokens, 0, 6, spec.types));
  if (!spec.types.empty() && spec.types.size() != vocab) {
    return bad("types", "must have one entry per token, or none");
  }
  TANDEM_CHECK(read_strings(json, "merges", kMaxMerges, spec.merges));
  TANDEM_CHECK(read_scores(json, vocab, spec.scores));
  TANDEM_CHECK(read_added(json, vocab, spec.added));
  TANDEM_CHECK(read_id(json, "bos", vocab, spec.bos));
  TANDEM_CHECK(read_id(json, "eos", vocab, spec.eos));
  TANDEM_CHECK(read_id(json, "unknown", vocab, spec.unknown));
  TANDEM_CHECK(read_id(json, "pad", vocab, spec.pad));
  TANDEM_CHECK(read_integers(json, "end_of_generation", 1024, 0, last, spec.end_of_generation));
  TANDEM_CHECK(read_flag(json, "add_bos", spec.add_bos));
  TANDEM_CHECK(read_flag(json, "add_eos", spec.add_eos));
  TANDEM_CHECK(read_flag(json, "whole_words", spec.whole_words));
  TANDEM_CHECK(read_flag(json, "fuse_unknown", spec.fuse_unknown));
  TANDEM_CHECK(read_flag(json, "single_precision", spec.single_precision));
  TANDEM_CHECK(read_flag(json, "metaspace", spec.metaspace));
  TANDEM_CHECK(read_flag(json, "strip_leading_space", spec.strip_leading_space));
  read_json(json, "normalizer", spec.normalizer);
  read_json(json, "pre_tokenizer", spec.pre_tokenizer);
  TANDEM_CHECK(read_string(json, "chat_template", kMaxTemplateBytes, spec.chat_template));
  TANDEM_CHECK(read_string(json, "tool_template", kMaxTemplateBytes, spec.tool_template));
  return spec;
}

}  // namespace tandem::text
