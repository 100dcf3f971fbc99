#include "text/normalizer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <utf8proc.h>

#include "text/base64.h"
#include "text/charsmap.h"
#include "text/regex.h"
#include "text/special_matcher.h"
#include "text/unicode.h"

namespace tandem::text {

namespace {

constexpr std::string_view kBlock = "\xE2\x96\x81";  // U+2581
constexpr int kMaxDepth = 16;
constexpr size_t kMaxSteps = 64;
constexpr size_t kMaxGrowth = 64;
constexpr size_t kMaxPrefix = 256;

tl::unexpected<Error> invalid(std::string message) {
  return make_error(400, "invalid_tokenizer", std::move(message));
}

std::string string_of(const JsonValue& json, std::string_view key) {
  const JsonValue* value = json.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : std::string();
}

bool flag_of(const JsonValue& json, std::string_view key) {
  const JsonValue* value = json.find(key);
  return value != nullptr && value->as_bool();
}

class FormStep final : public Normalizer::Step {
 public:
  explicit FormStep(UnicodeForm form) : form_(form) {}
  void apply(std::string_view text, std::string& out) const override {
    append_normalized(out, text, form_);
  }

 private:
  UnicodeForm form_;
};

// Calls edit(code_point, bytes) for each character; invalid bytes are copied.
template <typename Edit>
void each_character(std::string_view text, std::string& out, const Edit& edit) {
  for (size_t i = 0; i < text.size();) {
    const Decoded decoded = decode_utf8(text, i);
    const std::string_view bytes = text.substr(i, decoded.size);
    if (decoded.code_point == kInvalidCodePoint) {
      out += bytes;
    } else {
      edit(decoded.code_point, bytes);
    }
    i += decoded.size;
  }
}

class LowercaseStep final : public Normalizer::Step {
 public:
  void apply(std::string_view text, std::string& out) const override {
    each_character(text, out, [&](uint32_t c, std::string_view) {
      if (c == 0x130) {  // the one capital whose small form is two characters
        out += "i\xCC\x87";
      } else {
        append_utf8(out, to_lower(c));
      }
    });
  }
};

class StripAccentsStep final : public Normalizer::Step {
 public:
  void apply(std::string_view text, std::string& out) const override {
    each_character(text, out, [&](uint32_t c, std::string_view bytes) {
      if (!is_accent(c)) out += bytes;
    });
  }

 private:
  // Marks of Unicode 9; two of them are letters now.
  static bool is_accent(uint32_t c) {
    if (c == 0x1CF2 || c == 0x1CF3) return true;
    return (char_bits(c) & kMark) != 0 && !is_beyond_normalization(c);
  }
};

class StripStep final : public Normalizer::Step {
 public:
  StripStep(bool left, bool right) : left_(left), right_(right) {}
  void apply(std::string_view text, std::string& out) const override {
    size_t begin = 0;
    while (left_ && begin < text.size()) {
      const Decoded decoded = decode_utf8(text, begin);
      if (char_class(decoded.code_point) != kSpace) break;
      begin += decoded.size;
    }
    size_t end = begin;  // behind the last character that stays
    for (size_t i = begin; i < text.size();) {
      const Decoded decoded = decode_utf8(text, i);
      i += decoded.size;
      if (!right_ || char_class(decoded.code_point) != kSpace) end = i;
    }
    out += text.substr(begin, end - begin);
  }

 private:
  bool left_;
  bool right_;
};

class PrependStep final : public Normalizer::Step {
 public:
  explicit PrependStep(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(std::string_view text, std::string& out) const override {
    if (!text.empty()) out += prefix_;
    out += text;
  }

 private:
  std::string prefix_;
};

class ReplaceStringStep final : public Normalizer::Step {
 public:
  ReplaceStringStep(std::string from, std::string to)
      : from_(std::move(from)), to_(std::move(to)) {}
  void apply(std::string_view text, std::string& out) const override {
    for (size_t from = 0; from < text.size();) {
      const size_t at = std::min(text.find(from_, from), text.size());
      out += text.substr(from, at - from);
      if (at == text.size()) break;
      out += to_;
      from = at + from_.size();
    }
  }

 private:
  std::string from_;
  std::string to_;
};

class ReplaceRegexStep final : public Normalizer::Step {
 public:
  ReplaceRegexStep(Regex regex, std::string to) : regex_(std::move(regex)), to_(std::move(to)) {}
  void apply(std::string_view text, std::string& out) const override {
    regex_.split(text, [&](std::string_view part, bool matched) { out += matched ? to_ : part; });
  }

 private:
  Regex regex_;
  std::string to_;
};

// The `tokenizers` library's reading of a precompiled map: whole grapheme clusters of under six
// bytes, else character by character, each by the shortest prefix the map knows.
class PrecompiledStep final : public Normalizer::Step {
 public:
  explicit PrecompiledStep(CharsMap map) : map_(std::move(map)) {}
  void apply(std::string_view text, std::string& out) const override {
    for (size_t i = 0; i < text.size();) {
      const size_t end = cluster_end(text, i);
      const std::string_view cluster = text.substr(i, end - i);
      i = end;
      if (cluster.size() < 6) {
        if (const auto match = map_.shortest(cluster)) {
          out += match->replacement;
          continue;
        }
      }
      each_character(cluster, out, [&](uint32_t, std::string_view bytes) {
        const auto match = map_.shortest(bytes);
        out += match ? match->replacement : bytes;
      });
    }
  }

 private:
  static size_t cluster_end(std::string_view text, size_t position) {
    Decoded last = decode_utf8(text, position);
    utf8proc_int32_t state = 0;
    for (position += last.size; position < text.size(); position += last.size) {
      const Decoded next = decode_utf8(text, position);
      if (last.code_point == kInvalidCodePoint || next.code_point == kInvalidCodePoint) break;
      if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(last.code_point),
                                           static_cast<utf8proc_int32_t>(next.code_point),
                                           &state)) {
        break;
      }
      last = next;
    }
    return position;
  }
  CharsMap map_;
};

// SentencePiece's own normalizer, spaces escaped as U+2581.
class SentencePieceStep final : public Normalizer::Step {
 public:
  SentencePieceStep(std::optional<CharsMap> map, SpecialMatcher user_defined, bool dummy_prefix,
                    bool remove_extra)
      : map_(std::move(map)),
        user_defined_(std::move(user_defined)),
        dummy_prefix_(dummy_prefix),
        remove_extra_(remove_extra) {}

  void apply(std::string_view text, std::string& out) const override {
    while (remove_extra_ && !text.empty()) {
      const auto [size, replacement] = prefix(text);
      if (replacement != " ") break;
      text.remove_prefix(size);
    }
    if (text.empty()) return;
    const size_t begin = out.size();
    if (dummy_prefix_) out += kBlock;
    bool after_space = remove_extra_;
    while (!text.empty()) {
      auto [size, replacement] = prefix(text);
      text.remove_prefix(size);
      while (after_space && replacement.starts_with(' ')) replacement.remove_prefix(1);
      for (const char c : replacement) {
        if (c == ' ') {
          out += kBlock;
        } else {
          out += c;
        }
      }
      if (!replacement.empty()) after_space = remove_extra_ && replacement.back() == ' ';
    }
    while (remove_extra_ && out.size() >= begin + kBlock.size() && out.ends_with(kBlock)) {
      out.resize(out.size() - kBlock.size());
    }
  }

 private:
  CharsMap::Match prefix(std::string_view text) const {
    if (map_) {
      if (const auto kept = user_defined_.match_at(text, 0, false); kept.token >= 0) {
        return {kept.end, text.substr(0, kept.end)};
      }
      if (const auto match = map_->longest(text)) return *match;
    }
    const size_t size = decode_utf8(text, 0).size;
    return {size, text.substr(0, size)};
  }
  std::optional<CharsMap> map_;
  SpecialMatcher user_defined_;
  bool dummy_prefix_;
  bool remove_extra_;
};

using StepPtr = std::unique_ptr<const Normalizer::Step>;

Result<std::optional<CharsMap>> charsmap_of(const JsonValue& json, std::string_view key) {
  const std::string text = string_of(json, key);
  if (text.empty()) return std::nullopt;
  const auto blob = decode_base64(text);
  if (!blob) return invalid("the precompiled character map is not base64");
  TANDEM_TRY(map, CharsMap::parse(*blob));
  return std::optional<CharsMap>(std::move(map));
}

Result<StepPtr> replace_step(const JsonValue& json) {
  const JsonValue* pattern = json.find("pattern");
  const std::string content = string_of(json, "content");
  if (pattern == nullptr) return invalid("a Replace normalizer has no pattern");
  if (const JsonValue* regex = pattern->find("Regex"); regex != nullptr && regex->is_string()) {
    TANDEM_TRY(compiled, Regex::compile(regex->as_string()));
    return std::make_unique<const ReplaceRegexStep>(std::move(compiled), content);
  }
  std::string from = pattern->is_string() ? pattern->as_string() : string_of(*pattern, "String");
  if (from.empty()) return invalid("a Replace normalizer has an empty pattern");
  return std::make_unique<const ReplaceStringStep>(std::move(from), content);
}

Result<StepPtr> make_step(const std::string& type, const JsonValue& json) {
  using Form = UnicodeForm;
  if (type == "NFC") return std::make_unique<const FormStep>(Form::kNfc);
  if (type == "NFD") return std::make_unique<const FormStep>(Form::kNfd);
  if (type == "NFKC") return std::make_unique<const FormStep>(Form::kNfkc);
  if (type == "NFKD") return std::make_unique<const FormStep>(Form::kNfkd);
  if (type == "Lowercase") return std::make_unique<const LowercaseStep>();
  if (type == "StripAccents") return std::make_unique<const StripAccentsStep>();
  if (type == "Strip") {
    return std::make_unique<const StripStep>(flag_of(json, "strip_left"),
                                             flag_of(json, "strip_right"));
  }
  if (type == "Prepend") return std::make_unique<const PrependStep>(string_of(json, "prepend"));
  if (type == "Replace") return replace_step(json);
  if (type == "Precompiled") {
    TANDEM_TRY(map, charsmap_of(json, "precompiled_charsmap"));
    if (!map) return invalid("a Precompiled normalizer has no map");
    return std::make_unique<const PrecompiledStep>(std::move(*map));
  }
  if (type == "SentencePiece") {
    TANDEM_TRY(map, charsmap_of(json, "charsmap"));
    SpecialMatcher user_defined;
    if (const JsonValue* list = json.find("user_defined")) {
      for (const JsonValue& item : list->items()) user_defined.add(item.as_string(), 0, {});
    }
    return std::make_unique<const SentencePieceStep>(std::move(map), std::move(user_defined),
                                                     flag_of(json, "add_dummy_prefix"),
                                                     flag_of(json, "remove_extra_whitespaces"));
  }
  return make_error(400, "unsupported_tokenizer", "normalizer \"" + type + "\" is not supported");
}

}  // namespace

Status add_normalizer_steps(const JsonValue& json, int depth, Normalizer& out) {
  if (json.is_null()) return {};
  const std::string type = string_of(json, "type");
  if (type == "Sequence") {
    const JsonValue* list = json.find("normalizers");
    if (list == nullptr || !list->is_array() || depth >= kMaxDepth) {
      return invalid("a sequence of normalizers is malformed");
    }
    for (const JsonValue& item : list->items()) {
      TANDEM_CHECK(add_normalizer_steps(item, depth + 1, out));
    }
    return {};
  }
  if (out.steps_.size() >= kMaxSteps) return invalid("there are more than 64 normalizers");
  TANDEM_TRY(step, make_step(type, json));
  if (type == "Replace") {
    const JsonValue* pattern = json.find("pattern");
    const size_t from =
        pattern->is_string() ? pattern->as_string().size() : string_of(*pattern, "String").size();
    const size_t to = string_of(json, "content").size();
    // A regular expression may match single bytes.
    out.growth_ *=
        std::max<size_t>(1, (to + std::max<size_t>(from, 1) - 1) / std::max<size_t>(from, 1));
    if (to > kMaxGrowth * std::max<size_t>(from, 1) || out.growth_ > kMaxGrowth) {
      return invalid("its normalizer makes text more than 64 times longer");
    }
  }
  if (type == "Prepend" && string_of(json, "prepend").size() > kMaxPrefix) {
    return invalid("its normalizer prepends more than 256 bytes");
  }
  out.steps_.push_back(std::move(step));
  return {};
}

Result<Normalizer> Normalizer::create(const JsonValue& json) {
  Normalizer made;
  TANDEM_CHECK(add_normalizer_steps(json, 0, made));
  return made;
}

std::string_view Normalizer::apply(std::string_view text, std::string& buffer) const {
  if (steps_.empty()) return text;
  std::string other;
  for (const auto& step : steps_) {
    other.clear();
    other.reserve(text.size() + text.size() / 8);
    step->apply(text, other);
    buffer.swap(other);
    text = buffer;
  }
  return text;
}

}  // namespace tandem::text
