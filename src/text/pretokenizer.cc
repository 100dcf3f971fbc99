#include "text/pretokenizer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "text/regex.h"
#include "text/unicode.h"

namespace tandem::text {

namespace {

constexpr int kMaxDepth = 16;
constexpr size_t kMaxSteps = 16;  // also the depth of run()

using Sink = PreTokenizer::Sink;
using StepPtr = std::unique_ptr<const PreTokenizer::Step>;

tl::unexpected<Error> invalid(std::string message) {
  return make_error(400, "invalid_tokenizer", std::move(message));
}

std::string string_of(const JsonValue& json, std::string_view key, std::string_view fallback = {}) {
  const JsonValue* value = json.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : std::string(fallback);
}

bool flag_of(const JsonValue& json, std::string_view key, bool fallback) {
  const JsonValue* value = json.find(key);
  return value != nullptr && value->is_bool() ? value->as_bool() : fallback;
}

class ScanStep final : public PreTokenizer::Step {
 public:
  explicit ScanStep(const ScanRules& rules) : rules_(rules) {}
  void split(std::string_view piece, bool, Sink sink) const override {
    for (size_t at = 0; at < piece.size();) {
      const size_t end = next_piece(rules_, piece, at);
      sink(piece.substr(at, end - at));
      at = end;
    }
  }

 private:
  ScanRules rules_;
};

// What becomes of a match.
enum class Behavior { kIsolated, kRemoved, kWithPrevious, kWithNext, kContiguous };

// Parts from a finder that calls back (part, matched), arranged as the behavior says.
class Arranger {
 public:
  Arranger(Behavior behavior, Sink sink) : behavior_(behavior), sink_(sink) {}

  void add(std::string_view part, bool matched) {
    switch (behavior_) {
      case Behavior::kIsolated:
        sink_(part);
        break;
      case Behavior::kRemoved:
        if (!matched) sink_(part);
        break;
      case Behavior::kContiguous:
        hold(part, matched == held_match_);
        held_match_ = matched;
        break;
      case Behavior::kWithPrevious:
        hold(part, matched && !held_match_);
        held_match_ = matched;
        break;
      case Behavior::kWithNext:
        hold(part, !matched && held_match_);
        held_match_ = matched;
        break;
    }
  }
  void finish() {
    if (!held_.empty()) sink_(held_);
    held_ = {};
  }

 private:
  // Parts of one piece follow one another in memory, so joining them is widening a view.
  void hold(std::string_view part, bool join) {
    if (join && !held_.empty()) {
      held_ = {held_.data(), held_.size() + part.size()};
    } else {
      finish();
      held_ = part;
    }
  }
  Behavior behavior_;
  Sink sink_;
  std::string_view held_;
  bool held_match_ = false;
};

class RegexStep final : public PreTokenizer::Step {
 public:
  RegexStep(Regex regex, Behavior behavior, bool invert)
      : regex_(std::move(regex)), behavior_(behavior), invert_(invert) {}
  void split(std::string_view piece, bool, Sink sink) const override {
    Arranger arranger(behavior_, sink);
    regex_.split(piece, [&](std::string_view part, bool matched) {
      arranger.add(part, matched != invert_);
    });
    arranger.finish();
  }

 private:
  Regex regex_;
  Behavior behavior_;
  bool invert_;
};

class LiteralStep final : public PreTokenizer::Step {
 public:
  LiteralStep(std::string literal, Behavior behavior, bool invert)
      : literal_(std::move(literal)), behavior_(behavior), invert_(invert) {}
  void split(std::string_view piece, bool, Sink sink) const override {
    Arranger arranger(behavior_, sink);
    for (size_t from = 0; from < piece.size();) {
      const size_t at = std::min(piece.find(literal_, from), piece.size());
      if (at > from) arranger.add(piece.substr(from, at - from), invert_);
      if (at == piece.size()) break;
      arranger.add(piece.substr(at, literal_.size()), !invert_);
      from = at + literal_.size();
    }
    arranger.finish();
  }

 private:
  std::string literal_;
  Behavior behavior_;
  bool invert_;
};

// Runs, or single characters, that a predicate knows.
class ClassStep final : public PreTokenizer::Step {
 public:
  using Predicate = bool (*)(uint32_t);
  // `most`: characters in one match; 0: any number.
  ClassStep(Predicate wanted, size_t most, Behavior behavior)
      : wanted_(wanted), most_(most), behavior_(behavior) {}
  void split(std::string_view piece, bool, Sink sink) const override {
    Arranger arranger(behavior_, sink);
    size_t start = 0;
    size_t count = 0;
    bool inside = false;
    for (size_t i = 0; i < piece.size();) {
      const Decoded decoded = decode_utf8(piece, i);
      const bool wanted = wanted_(decoded.code_point);
      if (i > start && (wanted != inside || (wanted && most_ != 0 && count == most_))) {
        arranger.add(piece.substr(start, i - start), inside);
        start = i;
        count = 0;
      }
      inside = wanted;
      ++count;
      i += decoded.size;
    }
    if (start < piece.size()) arranger.add(piece.substr(start), inside);
    arranger.finish();
  }

 private:
  Predicate wanted_;
  size_t most_;
  Behavior behavior_;
};

bool is_number(uint32_t c) { return char_class(c) == kNumber; }
bool is_space(uint32_t c) { return char_class(c) == kSpace; }
// ASCII punctuation and \p{P}.
bool is_punctuation(uint32_t c) {
  if (c < 0x80) return (char_bits(c) & kPunctuation) != 0;
  return is_unicode_punctuation(c);
}
bool is_deepseek_cjk(uint32_t c) {
  return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF);
}

// `\w+|[^\w\s]+`, the rest removed.
class WhitespaceStep final : public PreTokenizer::Step {
 public:
  void split(std::string_view piece, bool, Sink sink) const override {
    const auto kind = [](uint32_t c) { return is_regex_word(c) ? 1 : is_space(c) ? 0 : 2; };
    size_t start = 0;
    int inside = 0;
    for (size_t i = 0; i < piece.size();) {
      const Decoded decoded = decode_utf8(piece, i);
      const int next = kind(decoded.code_point);
      if (next != inside) {
        if (inside != 0) sink(piece.substr(start, i - start));
        start = i;
        inside = next;
      }
      i += decoded.size;
    }
    if (inside != 0 && start < piece.size()) sink(piece.substr(start));
  }
};

class ByteLevelPrefixStep final : public PreTokenizer::Step {
 public:
  void split(std::string_view piece, bool, Sink sink) const override {
    if (piece.empty() || piece[0] == ' ') {
      sink(piece);
      return;
    }
    std::string prefixed(" ");
    prefixed += piece;
    sink(prefixed);
  }
};

class MetaspaceStep final : public PreTokenizer::Step {
 public:
  enum class Prepend { kAlways, kFirst, kNever };
  MetaspaceStep(std::string replacement, Prepend prepend, bool split)
      : replacement_(std::move(replacement)), prepend_(prepend), split_(split) {}
  void split(std::string_view piece, bool first, Sink sink) const override {
    std::string text;
    text.reserve(piece.size() + piece.size() / 2);
    const bool prefix = prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && first);
    if (prefix && !piece.starts_with(' ') && !piece.starts_with(replacement_)) {
      text += replacement_;
    }
    for (const char c : piece) {
      if (c == ' ') {
        text += replacement_;
      } else {
        text += c;
      }
    }
    if (!split_) {
      sink(text);
      return;
    }
    const std::string_view whole = text;
    for (size_t from = 0; from < whole.size();) {
      const size_t next = std::min(whole.find(replacement_, from + 1), whole.size());
      sink(whole.substr(from, next - from));
      from = next;
    }
  }

 private:
  std::string replacement_;
  Prepend prepend_;
  bool split_;
};

Result<Behavior> behavior_of(const JsonValue& json) {
  const std::string name = string_of(json, "behavior", "Isolated");
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "MergedWithPrevious") return Behavior::kWithPrevious;
  if (name == "MergedWithNext") return Behavior::kWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  return invalid("a pre-tokenizer has the unknown behavior \"" + name + "\"");
}

Result<StepPtr> pattern_step(std::string_view pattern, Behavior behavior, bool invert) {
  if (behavior == Behavior::kIsolated) {
    if (pattern == R"(\p{N}{1,3})") {
      return std::make_unique<const ClassStep>(is_number, 3, behavior);
    }
    if (pattern == "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+") {
      return std::make_unique<const ClassStep>(is_deepseek_cjk, 0, behavior);
    }
  }
  // The usual way to say "the words of this pattern, and nothing between them".
  if (behavior == Behavior::kRemoved && invert) {
    const auto rules = scan_rules_of(pattern);
    if (rules && rules->words != ScanRules::Words::kDeepseek3) {
      return std::make_unique<const ScanStep>(*rules);
    }
  }
  TANDEM_TRY(regex, Regex::compile(pattern));
  return std::make_unique<const RegexStep>(std::move(regex), behavior, invert);
}

Result<StepPtr> split_step(const JsonValue& json) {
  const JsonValue* pattern = json.find("pattern");
  if (pattern == nullptr) return invalid("a Split pre-tokenizer has no pattern");
  TANDEM_TRY(behavior, behavior_of(json));
  const bool invert = flag_of(json, "invert", false);
  if (const JsonValue* regex = pattern->find("Regex"); regex != nullptr && regex->is_string()) {
    return pattern_step(regex->as_string(), behavior, invert);
  }
  std::string literal = pattern->is_string() ? pattern->as_string() : string_of(*pattern, "String");
  if (literal.empty()) return invalid("a Split pre-tokenizer has an empty pattern");
  return std::make_unique<const LiteralStep>(std::move(literal), behavior, invert);
}

Result<StepPtr> metaspace_step(const JsonValue& json) {
  using Prepend = MetaspaceStep::Prepend;
  const std::string scheme = string_of(
      json, "prepend_scheme", flag_of(json, "add_prefix_space", true) ? "always" : "never");
  const Prepend prepend = scheme == "never"   ? Prepend::kNever
                          : scheme == "first" ? Prepend::kFirst
                                              : Prepend::kAlways;
  std::string replacement = string_of(json, "replacement", "\u2581");
  if (replacement.empty()) return invalid("a Metaspace pre-tokenizer has no replacement");
  return std::make_unique<const MetaspaceStep>(std::move(replacement), prepend,
                                               flag_of(json, "split", true));
}

}  // namespace

class PreTokenizerBuilder {
 public:
  Status add(const JsonValue& json, int depth) {
    if (json.is_null()) return {};
    const std::string type = string_of(json, "type");
    if (type == "Sequence") {
      const JsonValue* list = json.find("pretokenizers");
      if (list == nullptr || !list->is_array() || depth >= kMaxDepth) {
        return invalid("a sequence of pre-tokenizers is malformed");
      }
      for (const JsonValue& item : list->items()) TANDEM_CHECK(add(item, depth + 1));
      return {};
    }
    if (type == "ByteLevel") {
      made_.byte_level_ = true;
      if (flag_of(json, "add_prefix_space", true)) {
        TANDEM_CHECK(push(std::make_unique<const ByteLevelPrefixStep>()));
      }
      return flag_of(json, "use_regex", true) ? scan(ScanRules{}) : Status{};
    }
    if (type == "Split") return split(json);
    if (type == "Metaspace") return push_result(metaspace_step(json));
    if (type == "Digits") {
      return push(std::make_unique<const ClassStep>(
          is_number, flag_of(json, "individual_digits", false) ? 1 : 0, Behavior::kIsolated));
    }
    if (type == "Punctuation") {
      TANDEM_TRY(behavior, behavior_of(json));
      return push(std::make_unique<const ClassStep>(is_punctuation, 1, behavior));
    }
    if (type == "Whitespace") return push(std::make_unique<const WhitespaceStep>());
    if (type == "WhitespaceSplit") {
      return push(std::make_unique<const ClassStep>(is_space, 0, Behavior::kRemoved));
    }
    if (type == "CharDelimiterSplit") {
      std::string delimiter = string_of(json, "delimiter");
      if (delimiter.empty()) return invalid("a CharDelimiterSplit has no delimiter");
      return push(
          std::make_unique<const LiteralStep>(std::move(delimiter), Behavior::kRemoved, false));
    }
    return make_error(400, "unsupported_tokenizer",
                      "pre-tokenizer \"" + type + "\" is not supported");
  }

  Status scan(const ScanRules& rules) {
    const bool only = made_.steps_.empty();
    TANDEM_CHECK(push(std::make_unique<const ScanStep>(rules)));
    if (only) made_.scanner_ = rules;
    return {};
  }
  Status pattern(std::string_view text) {
    if (const auto rules = scan_rules_of(text)) return scan(*rules);
    return push_result(pattern_step(text, Behavior::kIsolated, false));
  }
  Status digits_alone() {
    return push(std::make_unique<const ClassStep>(is_number, 1, Behavior::kIsolated));
  }
  Status split(const JsonValue& json) {
    const JsonValue* pattern = json.find("pattern");
    const JsonValue* regex = pattern == nullptr ? nullptr : pattern->find("Regex");
    if (regex != nullptr && regex->is_string() && string_of(json, "behavior") == "Isolated") {
      if (const auto rules = scan_rules_of(regex->as_string())) return scan(*rules);
    }
    return push_result(split_step(json));
  }
  PreTokenizer take() { return std::move(made_); }
  void byte_level() { made_.byte_level_ = true; }

 private:
  Status push(StepPtr step) {
    if (made_.steps_.size() >= kMaxSteps) return invalid("there are more than 16 pre-tokenizers");
    made_.steps_.push_back(std::move(step));
    made_.scanner_.reset();
    return {};
  }
  Status push_result(Result<StepPtr> step) {
    if (!step) return tl::unexpected(std::move(step).error());
    return push(std::move(*step));
  }
  PreTokenizer made_;
};

Result<PreTokenizer> PreTokenizer::named(std::string_view name) {
  PreTokenizerBuilder builder;
  builder.byte_level();
  if (const auto rules = find_scan_rules(name)) {
    TANDEM_CHECK(builder.scan(*rules));
  } else if (name == "deepseek-v3") {
    TANDEM_CHECK(builder.pattern(R"(\p{N}{1,3})"));
    TANDEM_CHECK(builder.pattern("[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+"));
    TANDEM_CHECK(builder.scan(
        {.words = ScanRules::Words::kDeepseek3, .contractions = ScanRules::Contractions::kNone}));
  } else if (name == "deepseek-coder") {
    for (const char* pattern : {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)",
                                "[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+"}) {
      TANDEM_CHECK(builder.pattern(pattern));
    }
    TANDEM_CHECK(builder.digits_alone());
  } else if (name == "falcon") {
    for (const char* pattern : {R"([\p{P}\$\+<=>\^~\|`]+)",
                                R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|)"
                                R"(\s+(?!\S)|\s+)",
                                "[0-9][0-9][0-9]"}) {
      TANDEM_CHECK(builder.pattern(pattern));
    }
  } else {
    return make_error(400, "unsupported_tokenizer",
                      "pre-tokenizer \"" + std::string(name) + "\" is not supported");
  }
  return builder.take();
}

Result<PreTokenizer> PreTokenizer::create(const JsonValue& json) {
  PreTokenizerBuilder builder;
  TANDEM_CHECK(builder.add(json, 0));
  PreTokenizer made = builder.take();
  return made;
}

void PreTokenizer::run(size_t step, std::string_view piece, bool first, Sink sink) const {
  if (step == steps_.size()) {
    sink(piece);
    return;
  }
  steps_[step]->split(piece, first, [&](std::string_view part) {
    if (part.empty()) return;
    run(step + 1, part, first, sink);
    first = false;
  });
}

}  // namespace tandem::text
