#include "text/scanner.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "text/unicode.h"

namespace tandem::text {

namespace {

// Classes of ASCII, so that common text never decodes UTF-8.
struct AsciiBits {
  uint8_t of[128];
  constexpr AsciiBits() : of() {
    for (int c = 0; c < 128; ++c) {
      const bool upper = c >= 'A' && c <= 'Z';
      const bool lower = c >= 'a' && c <= 'z';
      const bool space = c == ' ' || (c >= 9 && c <= 13);
      const bool digit = c >= '0' && c <= '9';
      const bool mark = c > ' ' && c < 127 && !upper && !lower && !digit;
      of[c] = static_cast<uint8_t>(upper   ? kLetter | kUpper
                                   : lower ? kLetter | kLower
                                   : digit ? kNumber
                                   : space ? kSpace
                                   : mark  ? kPunctuation
                                           : kOther);
    }
  }
};
constexpr AsciiBits kAscii;
constexpr uint8_t kClass = kLetter | kNumber | kSpace;

struct Seen {
  uint8_t bits;
  uint32_t size;
  uint8_t cls() const { return bits & kClass; }
  // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and [\p{Ll}\p{Lm}\p{Lo}\p{M}]
  bool heads() const { return ((bits & kLetter) != 0 && (bits & kLower) == 0) || marks(); }
  bool tails() const { return ((bits & kLetter) != 0 && (bits & kUpper) == 0) || marks(); }
  bool marks() const { return (bits & kMark) != 0; }
};

Seen see(std::string_view text, size_t position) {
  const auto byte = static_cast<uint8_t>(text[position]);
  if (byte < 0x80) return {kAscii.of[byte], 1};
  const Decoded decoded = decode_utf8(text, position);
  return {char_bits(decoded.code_point), decoded.size};
}

template <typename Wanted>
size_t run_end(std::string_view text, size_t position, const Wanted& wanted) {
  while (position < text.size()) {
    const Seen next = see(text, position);
    if (!wanted(next)) break;
    position += next.size;
  }
  return position;
}

size_t class_run_end(std::string_view text, size_t position, uint8_t cls) {
  return run_end(text, position, [cls](Seen s) { return s.cls() == cls; });
}

bool is_newline(char c) { return c == '\r' || c == '\n'; }

// Length of a contraction ('s 't 're 've 'm 'll 'd) at `position`, or 0.
size_t contraction(std::string_view text, size_t position, bool fold) {
  if (position >= text.size() || text[position] != '\'') return 0;
  const auto at = [&](size_t i) -> char {
    if (position + i >= text.size()) return 0;
    const char c = text[position + i];
    return fold && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  switch (at(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return at(2) == 'e' ? 3 : 0;
    case 'l':
      return at(2) == 'l' ? 3 : 0;
    default:
      // The long s folds to s.
      return fold && text.substr(position + 1, 2) == "\xC5\xBF" ? 3 : 0;
  }
}

size_t next_spaced(const ScanRules& rules, std::string_view text, size_t position) {
  if (rules.contractions == ScanRules::Contractions::kExact) {
    if (const size_t length = contraction(text, position, false)) return position + length;
  }
  const Seen first = see(text, position);
  size_t start = position;
  uint8_t cls = first.cls();
  if (text[position] == ' ' && position + 1 < text.size()) {
    const Seen second = see(text, position + 1);
    if (second.cls() != kSpace && !(rules.digits_alone && second.cls() == kNumber)) {
      start = position + 1;
      cls = second.cls();
    }
  }
  if (cls == kNumber && rules.digits_alone) return position + first.size;
  if (cls != kSpace) return class_run_end(text, start, cls);

  // White space: all of it before a border, else all but its last character, which joins what
  // follows.
  size_t last = position;
  size_t end = position;
  bool border = true;
  while (end < text.size()) {
    const Seen next = see(text, end);
    if (next.cls() != kSpace) {
      border = rules.digits_alone && next.cls() == kNumber;
      break;
    }
    last = end;
    end += next.size;
  }
  return border || last == position ? end : last;
}

// `\s*[\r\n]+|\s+(?!\S)|\s+`, after `\s++$` when whole_tail. The character at `position` is white
// space.
size_t space_end(const ScanRules& rules, std::string_view text, size_t position) {
  size_t end = position;
  size_t last = position;
  size_t newline = 0;  // end of the last newline
  while (end < text.size()) {
    const Seen next = see(text, end);
    if (next.cls() != kSpace) break;
    last = end;
    if (is_newline(text[end])) newline = end + 1;
    end += next.size;
  }
  if (rules.whole_tail && end == text.size()) return end;
  if (newline != 0) return newline;
  return end == text.size() || last == position ? end : last;
}

size_t tail_end(const ScanRules& rules, std::string_view text, size_t position) {
  while (position < text.size() &&
         (is_newline(text[position]) || (rules.slash_tail && text[position] == '/'))) {
    ++position;
  }
  return position;
}

size_t digits_end(const ScanRules& rules, std::string_view text, size_t position) {
  if (rules.digits == 0) return class_run_end(text, position, kNumber);
  for (int i = 0; i < rules.digits && position < text.size(); ++i) {
    const Seen next = see(text, position);
    if (next.cls() != kNumber) break;
    position += next.size;
  }
  return position;
}

// What follows words and digits in kPrefixed and kCased.
size_t rest_end(const ScanRules& rules, std::string_view text, size_t position, Seen first) {
  const auto other = [&](Seen s) { return s.cls() == kOther && !(rules.marks && s.marks()); };
  size_t start = position;
  if (text[position] == ' ') ++start;
  if (start < text.size() && other(start == position ? first : see(text, start))) {
    return tail_end(rules, text, run_end(text, start, other));
  }
  if (first.cls() == kSpace) return space_end(rules, text, position);
  return position + first.size;
}

size_t next_prefixed(const ScanRules& rules, std::string_view text, size_t position) {
  if (rules.contractions == ScanRules::Contractions::kFolded) {
    if (const size_t length = contraction(text, position, true)) return position + length;
  }
  const auto word = [&](Seen s) { return (s.bits & kLetter) != 0 || (rules.marks && s.marks()); };
  const Seen first = see(text, position);
  if (word(first)) return run_end(text, position, word);
  if (first.cls() == kNumber) return digits_end(rules, text, position);
  const size_t next = position + first.size;
  if (!is_newline(text[position]) && next < text.size() && word(see(text, next))) {
    return run_end(text, next, word);
  }
  return rest_end(rules, text, position, first);
}

// `H*T+|H+T*` from `start`, where H are the characters that may head a word (upper case) and T
// those that may end one (lower case); letters without case and marks are both. 0: no match.
size_t cased_word(const ScanRules& rules, std::string_view text, size_t start) {
  const auto word_part = [&](Seen s) { return !rules.han || (s.bits & kHan) == 0; };
  size_t end = start;
  size_t after_both = 0;
  while (end < text.size()) {
    const Seen next = see(text, end);
    if (!next.heads() || !word_part(next)) break;
    end += next.size;
    if (next.tails()) after_both = end;
  }
  if (end < text.size()) {
    const Seen next = see(text, end);
    if (next.tails() && word_part(next)) {
      return run_end(text, end, [&](Seen s) { return s.tails() && word_part(s); });
    }
  }
  if (after_both != 0) return after_both;
  return end > start ? end : 0;
}

size_t next_cased(const ScanRules& rules, std::string_view text, size_t position) {
  const Seen first = see(text, position);
  if (rules.han && (first.bits & kHan) != 0) {
    return run_end(text, position, [](Seen s) { return (s.bits & kHan) != 0; });
  }
  size_t end = 0;
  const bool prefix =
      first.cls() != kLetter && first.cls() != kNumber && !is_newline(text[position]);
  if (prefix && position + first.size < text.size()) {
    end = cased_word(rules, text, position + first.size);
  }
  if (end == 0) end = cased_word(rules, text, position);
  if (end != 0) {
    return rules.contractions == ScanRules::Contractions::kSuffix
               ? end + contraction(text, end, true)
               : end;
  }
  if (first.cls() == kNumber) return digits_end(rules, text, position);
  return rest_end(rules, text, position, first);
}

bool is_ascii_letter(std::string_view text, size_t position) {
  return position < text.size() && static_cast<uint8_t>(text[position]) < 0x80 &&
         (kAscii.of[static_cast<uint8_t>(text[position])] & kLetter) != 0;
}

// End of a match of
// `[ASCII punctuation][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|SPACES`
// that starts at `position`, or 0.
size_t deepseek_match(const ScanRules& rules, std::string_view text, size_t position) {
  const Seen first = see(text, position);
  const auto word = [](Seen s) { return (s.bits & (kLetter | kMark)) != 0; };
  const auto marks = [](Seen s) { return (s.bits & kPunctuation) != 0; };
  const bool ascii_mark = static_cast<uint8_t>(text[position]) < 0x80 && marks(first);
  if (ascii_mark && is_ascii_letter(text, position + 1)) {
    size_t end = position + 1;
    while (is_ascii_letter(text, end)) ++end;
    return end;
  }
  if (word(first)) return run_end(text, position, word);
  const size_t next = position + first.size;
  if (!marks(first) && !is_newline(text[position]) && next < text.size() && word(see(text, next))) {
    return run_end(text, next, word);
  }
  const size_t start = text[position] == ' ' ? position + 1 : position;
  if (start < text.size() && marks(see(text, start))) {
    return tail_end(rules, text, run_end(text, start, marks));
  }
  return first.cls() == kSpace ? space_end(rules, text, position) : 0;
}

// What matches nothing is a piece up to the next match.
size_t next_deepseek(const ScanRules& rules, std::string_view text, size_t position) {
  if (const size_t end = deepseek_match(rules, text, position)) return end;
  while (position < text.size()) {
    position += see(text, position).size;
    if (position < text.size() && deepseek_match(rules, text, position) != 0) break;
  }
  return position;
}

using Words = ScanRules::Words;
using Contractions = ScanRules::Contractions;

constexpr ScanRules kGpt2;
constexpr ScanRules kSmollm = {.digits_alone = true};
constexpr ScanRules kLlama3 = {
    .words = Words::kPrefixed, .contractions = Contractions::kFolded, .digits = 3};
constexpr ScanRules kCl100k = {.words = Words::kPrefixed,
                               .contractions = Contractions::kFolded,
                               .digits = 3,
                               .whole_tail = true};
constexpr ScanRules kQwen2 = {
    .words = Words::kPrefixed, .contractions = Contractions::kFolded, .digits = 1};
constexpr ScanRules kQwen35 = {
    .words = Words::kPrefixed, .contractions = Contractions::kFolded, .digits = 1, .marks = true};
constexpr ScanRules kO200k = {
    .words = Words::kCased, .contractions = Contractions::kSuffix, .digits = 3, .slash_tail = true};
constexpr ScanRules kTekken = {
    .words = Words::kCased, .contractions = Contractions::kNone, .digits = 1, .slash_tail = true};
constexpr ScanRules kKimi = {
    .words = Words::kCased, .contractions = Contractions::kSuffix, .digits = 3, .han = true};
constexpr ScanRules kDeepseek3 = {.words = Words::kDeepseek3, .contractions = Contractions::kNone};

struct Named {
  std::string_view name;
  ScanRules rules;
};
constexpr Named kNames[] = {
    {"", kGpt2},
    {"default", kGpt2},
    {"gpt-2", kGpt2},
    {"gpt2", kGpt2},
    {"phi-2", kGpt2},
    {"olmo", kGpt2},
    {"mpt", kGpt2},
    {"jais", kGpt2},
    {"trillion", kGpt2},
    {"granite-docling", kGpt2},
    {"smollm", kSmollm},
    {"starcoder", kSmollm},
    {"refact", kSmollm},
    {"command-r", kSmollm},
    {"codeshell", kSmollm},
    {"exaone", kSmollm},
    {"llama-bpe", kLlama3},
    {"llama3", kLlama3},
    {"llama-v3", kLlama3},
    {"smaug-bpe", kLlama3},
    {"dbrx", kLlama3},
    {"glm4", kLlama3},
    {"chatglm-bpe", kLlama3},
    {"falcon3", kLlama3},
    {"pixtral", kTekken},
    {"tekken", kTekken},
    {"qwen2", kQwen2},
    {"stablelm2", kQwen2},
    {"hunyuan", kQwen2},
    {"deepseek-r1-qwen", kQwen2},
    {"megrez", kQwen2},
    {"qwen35", kQwen35},
    {"gpt-4o", kO200k},
    {"llama4", kO200k},
    {"kimi-k2", kKimi},
};

// `pattern` with possessive quantifiers made plain (they only forbid backtracking that cannot
// succeed in the patterns known here), newlines escaped, and equal spellings made one.
std::string canonical(std::string_view pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const char before = out.empty() ? 0 : out.back();
    const bool escaped = out.size() > 1 && out[out.size() - 2] == '\\';
    if (c == '+' && !escaped && (before == '+' || before == '*' || before == '?' || before == '}'))
      continue;
    if (c == '\r') {
      out += "\\r";
    } else if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  const auto swap = [&out](std::string_view from, std::string_view to) {
    for (size_t at = out.find(from); at != std::string::npos; at = out.find(from, at + to.size())) {
      out.replace(at, from.size(), to);
    }
  };
  swap("'(?i:[sdmt]|ll|ve|re)", "(?i:'s|'t|'re|'ve|'m|'ll|'d)");
  swap("'(?:[sdmt]|ll|ve|re)", "'s|'t|'re|'ve|'m|'ll|'d");
  return out;
}

std::vector<std::pair<std::string, ScanRules>> make_patterns() {
  const std::string exact = "'s|'t|'re|'ve|'m|'ll|'d";
  const std::string folded = "(?i:" + exact + ")";
  const std::string spaces = R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
  const std::string words = R"(|[^\r\n\p{L}\p{N}]?\p{L}+)";
  const std::string others = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|)";
  const std::string slashed = R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|)";
  const std::string three = R"(|\p{N}{1,3})";
  const std::string one = R"(|\p{N})";
  const auto cased = [](const std::string& without, const std::string& suffix) {
    const std::string head = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M})" + without + "]";
    const std::string tail = R"([\p{Ll}\p{Lm}\p{Lo}\p{M})" + without + "]";
    const std::string prefix = R"([^\r\n\p{L}\p{N}]?)";
    return prefix + head + "*" + tail + "+" + suffix + "|" + prefix + head + "+" + tail + "*" +
           suffix;
  };
  return {
      {exact + R"(| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", kGpt2},
      {exact + R"(| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+$|\s+(?!\S)|\s)", kGpt2},
      {folded + words + three + others + spaces, kLlama3},
      {folded + words + three + others + R"(\s+$|\s*[\r\n]|\s+(?!\S)|\s)", kCl100k},
      {folded + words + three + others + R"(\s*[\r\n]|\s+(?!\S)|\s+)", kLlama3},
      {folded + words + one + others + spaces, kQwen2},
      {folded + R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+)" + one +
           R"(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)" + spaces,
       kQwen35},
      {cased("", folded + "?") + three + slashed + spaces, kO200k},
      {cased("", "") + one + slashed + spaces, kTekken},
      {R"([\p{Han}]+|)" + cased(R"(&&[^\p{Han}])", folded + "?") + three + others + spaces, kKimi},
      {R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
       R"(| ?[\p{P}\p{S}]+[\r\n]*|)" +
           spaces,
       kDeepseek3},
  };
}

}  // namespace

std::optional<ScanRules> find_scan_rules(std::string_view name) {
  for (const Named& known : kNames) {
    if (known.name == name) return known.rules;
  }
  return std::nullopt;
}

std::optional<ScanRules> scan_rules_of(std::string_view pattern) {
  static const auto kPatterns = make_patterns();
  const std::string wanted = canonical(pattern);
  for (const auto& [known, rules] : kPatterns) {
    if (known == wanted) return rules;
  }
  return std::nullopt;
}

size_t next_piece(const ScanRules& rules, std::string_view text, size_t position) {
  switch (rules.words) {
    case Words::kSpaced:
      return next_spaced(rules, text, position);
    case Words::kPrefixed:
      return next_prefixed(rules, text, position);
    case Words::kCased:
      return next_cased(rules, text, position);
    case Words::kDeepseek3:
      return next_deepseek(rules, text, position);
  }
  return text.size();
}

}  // namespace tandem::text
