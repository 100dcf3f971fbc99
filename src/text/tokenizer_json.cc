#include "text/tokenizer_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

namespace tandem::text {

namespace {

constexpr size_t kMaxTokens = 1 << 21;
constexpr size_t kMaxMerges = 1 << 22;

tl::unexpected<Error> invalid(std::string message) {
  return make_error(400, "invalid_tokenizer", "tokenizer.json: " + std::move(message));
}
tl::unexpected<Error> unsupported(std::string message) {
  return make_error(400, "unsupported_tokenizer", "tokenizer.json: " + std::move(message));
}

std::string string_of(const JsonValue& json, std::string_view key) {
  const JsonValue* value = json.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : std::string();
}

bool flag_of(const JsonValue& json, std::string_view key, bool fallback = false) {
  const JsonValue* value = json.find(key);
  return value != nullptr && value->is_bool() ? value->as_bool() : fallback;
}

const JsonValue& member(const JsonValue& json, std::string_view key) {
  static const JsonValue kNull;
  const JsonValue* value = json.find(key);
  return value == nullptr ? kNull : *value;
}

// Correctly rounded, up to 1e308.
double power_of_ten(int exponent) {
  const std::string text = "1e" + std::to_string(exponent);
  double value = std::numeric_limits<double>::infinity();
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// A number as the reference library's JSON parser reads it: its digits as an integer, then one
// multiplication or division by a power of ten. That may miss the nearest double by its last bit,
// and the last bit decides between segmentations of equal score.
double score_of(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  uint64_t digits = 0;
  int exponent = 0;
  bool fraction = false;
  size_t i = 0;
  for (; i < text.size() && text[i] != 'e' && text[i] != 'E'; ++i) {
    if (text[i] == '.') {
      fraction = true;
      continue;
    }
    const auto digit = static_cast<uint64_t>(text[i] - '0');
    const bool fits = digits <= (UINT64_MAX - digit) / 10;
    if (fits) digits = digits * 10 + digit;
    if (fits && fraction) --exponent;
    if (!fits && !fraction) ++exponent;
  }
  if (i < text.size()) {
    std::string_view power = text.substr(i + 1);
    if (power.starts_with('+')) power.remove_prefix(1);
    int value = 0;
    std::from_chars(power.data(), power.data() + power.size(), value);
    exponent += std::clamp(value, -400, 400);
  }
  auto number = static_cast<double>(digits);
  for (; exponent < -308; exponent += 308) number /= 1e308;
  number = exponent < 0 ? number / power_of_ten(-exponent) : number * power_of_ten(exponent);
  return negative ? -number : number;
}

class Reader {
 public:
  explicit Reader(const JsonValue& json) : json_(json), model_(member(json, "model")) {}

  Result<TokenizerSpec> read() {
    if (!model_.is_object()) return invalid("it has no model");
    std::string type = string_of(model_, "type");
    if (type.empty()) type = model_.find("merges") != nullptr ? "BPE" : "Unigram";
    if (type == "BPE") {
      TANDEM_CHECK(read_bpe());
    } else if (type == "Unigram") {
      TANDEM_CHECK(read_unigram());
    } else {
      return unsupported("its model is " + type + "; BPE and Unigram are supported");
    }
    if (flag_of(model_, "byte_fallback")) mark_bytes();
    TANDEM_CHECK(read_added());
    read_pipeline();
    read_decoder(member(json_, "decoder"), 0);
    read_post_processor(member(json_, "post_processor"), 0);
    return std::move(spec_);
  }

 private:
  Status set_token(int64_t id, std::string spelling, TokenType type) {
    if (id < 0 || id >= static_cast<int64_t>(kMaxTokens)) return invalid("a token's id is too big");
    const auto i = static_cast<size_t>(id);
    if (i >= spec_.tokens.size()) {
      spec_.tokens.resize(i + 1);
      spec_.types.resize(i + 1, static_cast<int32_t>(TokenType::kUnused));
    }
    spec_.tokens[i] = std::move(spelling);
    spec_.types[i] = static_cast<int32_t>(type);
    return {};
  }

  Status read_bpe() {
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!string_of(model_, key).empty()) return unsupported(std::string("BPE with ") + key);
    }
    const JsonValue* vocab = model_.find("vocab");
    const JsonValue* merges = model_.find("merges");
    if (vocab == nullptr || !vocab->is_object() || merges == nullptr || !merges->is_array()) {
      return invalid("a BPE model has a vocabulary and merges");
    }
    if (merges->items().size() > kMaxMerges) return invalid("there are too many merges");
    for (const auto& [spelling, id] : vocab->members()) {
      const auto number = id.as_integer();
      if (!number) return invalid("a token's id is not a number");
      TANDEM_CHECK(set_token(*number, spelling, TokenType::kNormal));
      if (spelling == string_of(model_, "unk_token")) {
        spec_.unknown = static_cast<int32_t>(*number);
      }
    }
    spec_.merges.reserve(merges->items().size());
    for (const JsonValue& merge : merges->items()) {
      if (merge.is_string()) {
        spec_.merges.push_back(merge.as_string());
      } else if (merge.items().size() == 2 && merge.items()[0].is_string() &&
                 merge.items()[1].is_string()) {
        spec_.merges.push_back(merge.items()[0].as_string() + " " + merge.items()[1].as_string());
      } else {
        return invalid("a merge is not a pair");
      }
    }
    spec_.kind = "char_bpe";
    spec_.fuse_unknown = flag_of(model_, "fuse_unk");
    spec_.whole_words = flag_of(model_, "ignore_merges");
    return {};
  }

  Status read_unigram() {
    const JsonValue* vocab = model_.find("vocab");
    if (vocab == nullptr || !vocab->is_array()) return invalid("a unigram model has a vocabulary");
    int64_t id = 0;
    for (const JsonValue& entry : vocab->items()) {
      if (entry.items().size() != 2 || !entry.items()[0].is_string()) {
        return invalid("an entry of the vocabulary is not a spelling and a score");
      }
      const JsonValue& number = entry.items()[1];
      const double score = number.is_number() ? score_of(number.as_string()) : INFINITY;
      if (!std::isfinite(score)) return invalid("a score is not a number");
      TANDEM_CHECK(set_token(id++, entry.items()[0].as_string(), TokenType::kNormal));
      spec_.scores.push_back(score);
    }
    spec_.kind = "unigram";
    spec_.fuse_unknown = true;
    const JsonValue* unknown = model_.find("unk_id");
    if (unknown != nullptr && !unknown->is_null()) {
      const auto number = unknown->as_integer();
      if (!number || *number < 0 || *number >= id) return invalid("unk_id is no token");
      spec_.unknown = static_cast<int32_t>(*number);
    }
    return {};
  }

  void mark_bytes() {
    for (size_t i = 0; i < spec_.tokens.size(); ++i) {
      const std::string& token = spec_.tokens[i];
      if (token.size() == 6 && token.starts_with("<0x") && token.ends_with('>')) {
        spec_.types[i] = static_cast<int32_t>(TokenType::kByte);
      }
    }
  }

  Status read_added() {
    for (const JsonValue& item : member(json_, "added_tokens").items()) {
      const auto id = member(item, "id").as_integer();
      const std::string content = string_of(item, "content");
      if (!id || content.empty()) return invalid("an added token has no id or no content");
      const bool special = flag_of(item, "special");
      TANDEM_CHECK(
          set_token(*id, content, special ? TokenType::kControl : TokenType::kUserDefined));
      AddedToken added{.id = static_cast<int32_t>(*id),
                       .strip_left = flag_of(item, "lstrip"),
                       .strip_right = flag_of(item, "rstrip"),
                       .single_word = flag_of(item, "single_word"),
                       .normalized = !special && flag_of(item, "normalized", true)};
      if (added.strip_left || added.strip_right || added.single_word || added.normalized) {
        spec_.added.push_back(added);
      }
    }
    if (!spec_.scores.empty()) spec_.scores.resize(spec_.tokens.size(), 0);
    return {};
  }

  static bool has_byte_level(const JsonValue& json, const char* list) {
    if (string_of(json, "type") == "ByteLevel") return true;
    const JsonValue& inner = member(json, list);
    return std::ranges::any_of(inner.items(),
                               [&](const JsonValue& item) { return has_byte_level(item, list); });
  }

  void read_pipeline() {
    spec_.normalizer = member(json_, "normalizer");
    spec_.pre_tokenizer = member(json_, "pre_tokenizer");
    if (spec_.kind == "char_bpe" && has_byte_level(spec_.pre_tokenizer, "pretokenizers")) {
      spec_.kind = "bpe";
    }
  }

  void read_decoder(const JsonValue& decoder, int depth) {
    const std::string type = string_of(decoder, "type");
    if (type == "Sequence" && depth < 8) {
      for (const JsonValue& item : member(decoder, "decoders").items()) {
        read_decoder(item, depth + 1);
      }
    } else if (type == "Metaspace") {
      spec_.metaspace = true;
      const std::string scheme = string_of(decoder, "prepend_scheme");
      spec_.strip_leading_space =
          scheme.empty() ? flag_of(decoder, "add_prefix_space", true) : scheme != "never";
    } else if (type == "Replace") {
      if (string_of(member(decoder, "pattern"), "String") == "\u2581" &&
          string_of(decoder, "content") == " ") {
        spec_.metaspace = true;
      }
    } else if (type == "Strip" && string_of(decoder, "content") == " ") {
      const auto start = member(decoder, "start").as_integer();
      spec_.strip_leading_space = start && *start > 0;
    }
  }

  // Begin- and end-of-sequence tokens of the template for one text.
  void read_post_processor(const JsonValue& post, int depth) {
    const std::string type = string_of(post, "type");
    if (type == "Sequence" && depth < 8) {
      for (const JsonValue& item : member(post, "processors").items()) {
        read_post_processor(item, depth + 1);
      }
      return;
    }
    if (type != "TemplateProcessing") return;
    const JsonValue& single = member(post, "single");
    bool before = true;
    for (const JsonValue& item : single.items()) {
      if (item.find("Sequence") != nullptr) before = false;
      const JsonValue* special = item.find("SpecialToken");
      if (special == nullptr) continue;
      const int32_t id = id_of(string_of(*special, "id"));
      if (id < 0) continue;
      if (before) {
        spec_.bos = id;
        spec_.add_bos = true;
      } else {
        spec_.eos = id;
        spec_.add_eos = true;
      }
    }
  }

  int32_t id_of(std::string_view spelling) const {
    const auto found = std::ranges::find(spec_.tokens, spelling);
    return found == spec_.tokens.end() ? -1 : static_cast<int32_t>(found - spec_.tokens.begin());
  }

  const JsonValue& json_;
  const JsonValue& model_;
  TokenizerSpec spec_;
};

}  // namespace

Result<TokenizerSpec> tokenizer_spec_of_tokenizer_json(const JsonValue& json) {
  if (!json.is_object()) return invalid("it is not an object");
  return Reader(json).read();
}

}  // namespace tandem::text
