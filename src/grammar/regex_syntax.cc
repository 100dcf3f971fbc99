#include "grammar/regex_syntax.h"

#include <algorithm>

namespace tandem::grammar {
namespace {

using Kind = Pattern::Kind;

Pattern of_set(CodePoints set) {
  Pattern out;
  out.kind = Kind::kSet;
  out.set = std::move(set);
  return out;
}

const CodePoints& space_set() {
  static const CodePoints kSet = {
      {9, 13},          {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
      {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
  return kSet;
}
const CodePoints& word_set() {
  static const CodePoints kSet = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  return kSet;
}
const CodePoints& line_ends() {
  static const CodePoints kSet = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
  return kSet;
}

class Parser {
 public:
  Parser(std::string_view text, const PatternOptions& options) : text_(text), options_(options) {}

  Result<Pattern> parse() {
    if (text_.starts_with("(?i)") || text_.starts_with("(?s)") || text_.starts_with("(?is)")) {
      const size_t end = text_.find(')');
      options_.any_case =
          options_.any_case || text_.substr(0, end).find('i') != std::string_view::npos;
      if (text_.substr(0, end).find('s') != std::string_view::npos) options_.dot = Dot::kAll;
      at_ = end + 1;
    }
    TANDEM_TRY(out, choice(0));
    if (at_ < text_.size()) return wrong("an unmatched )");
    return std::move(out);
  }

 private:
  tl::unexpected<Error> wrong(const std::string& what) const {
    return make_error(
        400, "invalid_grammar",
        "The regular expression has " + what + " at position " + std::to_string(at_) + ".");
  }
  static tl::unexpected<Error> refused(const std::string& what) {
    return make_error(400, "unsupported_grammar",
                      "Regular expressions with " + what + " are not supported.");
  }
  bool at_end() const { return at_ >= text_.size(); }
  char peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool take(char wanted) {
    if (at_end() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  bool take(std::string_view wanted) {
    if (!text_.substr(at_).starts_with(wanted)) return false;
    at_ += wanted.size();
    return true;
  }

  Result<Pattern> choice(int depth) {
    if (depth > kPatternDepth) return wrong("too many nested groups");
    Pattern out;
    out.kind = Kind::kChoice;
    do {
      TANDEM_TRY(part, sequence(depth));
      out.parts.push_back(std::move(part));
    } while (take('|'));
    if (out.parts.size() == 1) return std::move(out.parts.front());
    return out;
  }

  Result<Pattern> sequence(int depth) {
    Pattern out;
    while (!at_end() && peek() != '|' && peek() != ')') {
      if (++count_ > kPatternParts) return wrong("too many parts");
      TANDEM_TRY(part, atom(depth));
      TANDEM_TRY(repeated, quantified(std::move(part)));
      out.parts.push_back(std::move(repeated));
    }
    if (out.parts.size() == 1) return std::move(out.parts.front());
    return out;
  }

  // A number, at most a million.
  std::optional<uint32_t> number() {
    if (peek() < '0' || peek() > '9') return std::nullopt;
    uint64_t out = 0;
    while (peek() >= '0' && peek() <= '9')
      out = std::min<uint64_t>(out * 10 + static_cast<uint64_t>(text_[at_++] - '0'), 1'000'001);
    return static_cast<uint32_t>(out);
  }

  // {n}, {n,}, {n,m}; anything else stands for itself.
  Result<bool> braces(uint32_t& min, uint32_t& max) {
    const size_t start = at_;
    ++at_;
    const auto low = number();
    if (!low) {
      at_ = start;
      return false;
    }
    min = max = *low;
    if (take(',')) {
      const auto high = number();
      max = high.value_or(kUnbounded);
    }
    if (!take('}')) {
      at_ = start;
      return false;
    }
    if (min > max) return wrong("a repetition whose bounds are in the wrong order");
    if (min > 1'000'000 || (max != kUnbounded && max > 1'000'000))
      return wrong("a repetition of more than a million");
    return true;
  }

  Result<Pattern> quantified(Pattern inner) {
    uint32_t min = 0;
    uint32_t max = kUnbounded;
    if (take('*')) {
    } else if (take('+')) {
      min = 1;
    } else if (take('?')) {
      max = 1;
    } else if (peek() == '{') {
      TANDEM_TRY(is, braces(min, max));
      if (!is) return inner;
    } else {
      return inner;
    }
    take('?');  // lazy: the same texts
    if (peek() == '*' || peek() == '+' || peek() == '?')
      return wrong("a repetition of a repetition");
    if (inner.kind == Kind::kBegin || inner.kind == Kind::kEnd) return wrong("a repeated anchor");
    Pattern out;
    out.kind = Kind::kRepeat;
    out.min = min;
    out.max = max;
    out.parts.push_back(std::move(inner));
    return out;
  }

  CodePoints dot() const {
    if (options_.dot == Dot::kAll) return CodePoints::all();
    return (options_.dot == Dot::kLine ? CodePoints::of('\n') : line_ends()).inverted();
  }

  Pattern of(CodePoints set) { return of_set(options_.any_case ? set.any_case() : std::move(set)); }

  Result<Pattern> atom(int depth) {
    const char c = peek();
    if (c == '(') return group(depth);
    if (c == '[') {
      ++at_;
      return bracket();
    }
    if (c == '*' || c == '+' || c == '?') return wrong("a repetition of nothing");
    if (take('.')) return of_set(dot());
    if (take('^')) return anchor(Kind::kBegin);
    if (take('$')) return anchor(Kind::kEnd);
    if (take('\\')) {
      if (peek() == 'b' || peek() == 'B') return refused("word boundaries (\\b)");
      if (peek() == 'A') {
        ++at_;
        return anchor(Kind::kBegin);
      }
      if (peek() == 'z' || peek() == 'Z') {
        ++at_;
        return anchor(Kind::kEnd);
      }
      if ((peek() >= '1' && peek() <= '9') || peek() == 'k') return refused("back references");
      TANDEM_TRY(set, escape());
      return of(std::move(set));
    }
    return of(CodePoints::of(next_code_point(text_, at_)));
  }

  static Pattern anchor(Kind kind) {
    Pattern out;
    out.kind = kind;
    return out;
  }

  Result<Pattern> group(int depth) {
    ++at_;
    if (take("?")) {
      if (peek() == '=' || peek() == '!' || (peek() == '<' && (peek(1) == '=' || peek(1) == '!')))
        return refused("lookaround");
      const bool named = take("<") || take("P<");
      if (named) {
        const size_t end = text_.find('>', at_);
        if (end == std::string_view::npos) return wrong("a group name without an end");
        at_ = end + 1;
      } else if (!take(":")) {
        return refused("this kind of group (?" + std::string(1, peek()) + ")");
      }
    }
    TANDEM_TRY(inner, choice(depth + 1));
    if (!take(')')) return wrong("a group without an end");
    return std::move(inner);
  }

  Result<uint32_t> hex(size_t digits) {
    uint32_t out = 0;
    for (size_t i = 0; i < digits; ++i) {
      const char c = peek();
      const int value = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (value < 0) return wrong("an escape with too few digits");
      out = out * 16 + static_cast<uint32_t>(value);
      ++at_;
    }
    return out;
  }

  Result<uint32_t> unicode_escape() {
    if (take('{')) {
      uint32_t out = 0;
      size_t digits = 0;
      while (!at_end() && peek() != '}') {
        TANDEM_TRY(digit, hex(1));
        out = out * 16 + digit;
        if (++digits > 6 || out > kLastCodePoint)
          return wrong("an escape past the last code point");
      }
      if (digits == 0 || !take('}')) return wrong("an escape without an end");
      return out;
    }
    TANDEM_TRY(high, hex(4));
    if (high >= 0xD800 && high < 0xDC00 && take("\\u")) {
      TANDEM_TRY(low, hex(4));
      if (low < 0xDC00 || low > 0xDFFF) return wrong("half of a surrogate pair");
      return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
    }
    return high;
  }

  Result<CodePoints> property(bool inverted) {
    std::string_view name = text_.substr(at_, 1);
    if (take('{')) {
      const size_t end = text_.find('}', at_);
      if (end == std::string_view::npos) return wrong("a property without an end");
      name = text_.substr(at_, end - at_);
      at_ = end + 1;
    } else {
      ++at_;
    }
    CodePoints set;
    if (!CodePoints::find_property(name, set))
      return refused("the property \\p{" + std::string(name) + "}");
    return inverted ? set.inverted() : set;
  }

  // After the backslash.
  Result<CodePoints> escape() {
    if (at_end()) return wrong("a backslash at the end");
    const char c = text_[at_++];
    switch (c) {
      case 'd':
        return CodePoints{{'0', '9'}};
      case 'D':
        return CodePoints{{'0', '9'}}.inverted();
      case 'w':
        return word_set();
      case 'W':
        return word_set().inverted();
      case 's':
        return space_set();
      case 'S':
        return space_set().inverted();
      case 'p':
        return property(false);
      case 'P':
        return property(true);
      case 'n':
        return CodePoints::of('\n');
      case 'r':
        return CodePoints::of('\r');
      case 't':
        return CodePoints::of('\t');
      case 'f':
        return CodePoints::of('\f');
      case 'v':
        return CodePoints::of('\v');
      case 'a':
        return CodePoints::of(7);
      case 'e':
        return CodePoints::of(0x1B);
      case '0':
        return CodePoints::of(0);
      case 'x': {
        TANDEM_TRY(value, peek() == '{' ? unicode_escape() : hex(2));
        return CodePoints::of(value);
      }
      case 'u': {
        TANDEM_TRY(value, unicode_escape());
        return CodePoints::of(value);
      }
      case 'c': {
        const char letter = peek();
        const bool is = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z');
        if (!is) return wrong("a control escape without its letter");
        ++at_;
        return CodePoints::of(static_cast<uint32_t>(letter) % 32);
      }
      default:
        break;
    }
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (letter) {
      --at_;
      return wrong("an unknown escape");
    }
    --at_;
    return CodePoints::of(next_code_point(text_, at_));
  }

  Result<CodePoints> bracket_item() {
    if (!take('\\')) return CodePoints::of(next_code_point(text_, at_));
    if (take('b')) return CodePoints::of(8);
    return escape();
  }

  static bool is_single(const CodePoints& set) {
    return set.ranges().size() == 1 && set.ranges().front().first == set.ranges().front().second;
  }

  Result<Pattern> bracket() {
    const bool inverted = take('^');
    CodePoints set;

    while (true) {
      if (at_end()) return wrong("a character class without an end");
      if (peek() == ']') break;

      TANDEM_TRY(low, bracket_item());
      if (peek() == '-' && peek(1) != ']' && at_ + 1 < text_.size() && is_single(low)) {
        const size_t dash = at_++;
        TANDEM_TRY(high, bracket_item());
        if (is_single(high)) {
          const uint32_t from = low.ranges().front().first;
          const uint32_t to = high.ranges().front().first;
          if (from > to) return wrong("a range in the wrong order");
          set.add({{from, to}});
          continue;
        }
        at_ = dash;  // a dash before a class stands for itself
      }
      set.add(low);
    }
    ++at_;
    if (options_.any_case) set = set.any_case();
    return of_set(inverted ? set.inverted() : std::move(set));
  }

  std::string_view text_;
  PatternOptions options_;
  size_t at_ = 0;
  size_t count_ = 0;
};

// Bytes that no text has stand for its two ends.
constexpr uint8_t kBeginByte = 0xFE;
constexpr uint8_t kEndByte = 0xFF;

RegexId lower(RegexStore& store, const Pattern& pattern, Spelling spelling) {
  switch (pattern.kind) {
    case Kind::kSet:
      return spell(store, pattern.set, spelling);
    case Kind::kBegin:
      return store.bytes(ByteSet::of(kBeginByte));
    case Kind::kEnd:
      return store.bytes(ByteSet::of(kEndByte));
    case Kind::kRepeat:
      return store.repeat(lower(store, pattern.parts.front(), spelling), pattern.min, pattern.max);
    case Kind::kSequence:
    case Kind::kChoice: {
      std::vector<RegexId> parts;
      parts.reserve(pattern.parts.size());
      for (const Pattern& part : pattern.parts) parts.push_back(lower(store, part, spelling));
      return pattern.kind == Kind::kChoice ? store.either(parts) : store.concat(parts);
    }
  }
  return kNoMatch;
}

bool has_anchor(const Pattern& pattern) {
  if (pattern.kind == Kind::kBegin || pattern.kind == Kind::kEnd) return true;
  return std::ranges::any_of(pattern.parts, has_anchor);
}

// Anchors at the two ends of every alternative, taken off; false when there are others.
struct Edges {
  bool begin = false;
  bool end = false;
  Pattern inner;
};
bool strip(const Pattern& pattern, Edges& out) {
  out.inner = pattern;
  if (pattern.kind == Kind::kBegin || pattern.kind == Kind::kEnd) {
    (pattern.kind == Kind::kBegin ? out.begin : out.end) = true;
    out.inner = Pattern{};
    return true;
  }
  if (pattern.kind == Kind::kSequence) {
    auto& parts = out.inner.parts;
    while (!parts.empty() && parts.front().kind == Kind::kBegin) {
      out.begin = true;
      parts.erase(parts.begin());
    }
    while (!parts.empty() && parts.back().kind == Kind::kEnd) {
      out.end = true;
      parts.pop_back();
    }
  }
  return !has_anchor(out.inner);
}

}  // namespace

Result<Pattern> parse_pattern(std::string_view text, const PatternOptions& options) {
  return Parser(text, options).parse();
}

Result<RegexId> match_whole(RegexStore& store, const Pattern& pattern, Spelling spelling) {
  Edges edges;
  if (strip(pattern, edges)) return lower(store, edges.inner, spelling);
  if (pattern.kind != Kind::kChoice)
    return make_error(400, "unsupported_grammar",
                      "Anchors inside a regular expression are not supported here.");
  std::vector<RegexId> parts;
  for (const Pattern& part : pattern.parts) {
    TANDEM_TRY(matched, match_whole(store, part, spelling));
    parts.push_back(matched);
  }
  return store.either(parts);
}

RegexId match_within(RegexStore& store, const Pattern& pattern, Spelling spelling) {
  const RegexId any = store.star(any_character(store, spelling));
  Edges edges;
  if (strip(pattern, edges)) {
    const RegexId body = lower(store, edges.inner, spelling);
    return store.concat({edges.begin ? kEpsilon : any, body, edges.end ? kEpsilon : any});
  }
  if (pattern.kind == Kind::kChoice) {
    std::vector<RegexId> parts;
    parts.reserve(pattern.parts.size());
    for (const Pattern& part : pattern.parts) parts.push_back(match_within(store, part, spelling));
    return store.either(parts);
  }
  // In general the text stands between two bytes that anchors match, taken off afterwards.
  const RegexId begin = store.bytes(ByteSet::of(kBeginByte));
  const RegexId end = store.bytes(ByteSet::of(kEndByte));
  const RegexId before = store.either({kEpsilon, store.concat(begin, any)});
  const RegexId after = store.either({kEpsilon, store.concat(any, end)});
  const RegexId framed = store.both({store.concat({before, lower(store, pattern, spelling), after}),
                                     store.concat({begin, any, end})});
  return store.without_last(store.derive(framed, kBeginByte), kEndByte);
}

}  // namespace tandem::grammar
