#include "grammar/code_points.h"

#include <algorithm>
#include <map>
#include <mutex>

#include <utf8proc.h>

#include "base/json_value.h"

namespace tandem::grammar {
namespace {

struct Category {
  std::string_view name;
  std::string_view codes;  // two letters each
};
constexpr Category kCategories[] = {
    {"L", "LuLlLtLmLo"},
    {"Letter", "LuLlLtLmLo"},
    {"Lu", "Lu"},
    {"Uppercase_Letter", "Lu"},
    {"Ll", "Ll"},
    {"Lowercase_Letter", "Ll"},
    {"Lt", "Lt"},
    {"Titlecase_Letter", "Lt"},
    {"Lm", "Lm"},
    {"Modifier_Letter", "Lm"},
    {"Lo", "Lo"},
    {"Other_Letter", "Lo"},
    {"LC", "LuLlLt"},
    {"Cased_Letter", "LuLlLt"},
    {"M", "MnMcMe"},
    {"Mark", "MnMcMe"},
    {"Mn", "Mn"},
    {"Nonspacing_Mark", "Mn"},
    {"Mc", "Mc"},
    {"Spacing_Mark", "Mc"},
    {"Me", "Me"},
    {"Enclosing_Mark", "Me"},
    {"N", "NdNlNo"},
    {"Number", "NdNlNo"},
    {"Nd", "Nd"},
    {"Decimal_Number", "Nd"},
    {"digit", "Nd"},
    {"Nl", "Nl"},
    {"Letter_Number", "Nl"},
    {"No", "No"},
    {"Other_Number", "No"},
    {"P", "PcPdPsPePiPfPo"},
    {"Punctuation", "PcPdPsPePiPfPo"},
    {"punct", "PcPdPsPePiPfPo"},
    {"Pc", "Pc"},
    {"Pd", "Pd"},
    {"Ps", "Ps"},
    {"Pe", "Pe"},
    {"Pi", "Pi"},
    {"Pf", "Pf"},
    {"Po", "Po"},
    {"S", "SmScSkSo"},
    {"Symbol", "SmScSkSo"},
    {"Sm", "Sm"},
    {"Sc", "Sc"},
    {"Sk", "Sk"},
    {"So", "So"},
    {"Z", "ZsZlZp"},
    {"Separator", "ZsZlZp"},
    {"Zs", "Zs"},
    {"Space_Separator", "Zs"},
    {"Zl", "Zl"},
    {"Zp", "Zp"},
    {"C", "CcCfCsCoCn"},
    {"Other", "CcCfCsCoCn"},
    {"Cc", "Cc"},
    {"Control", "Cc"},
    {"cntrl", "Cc"},
    {"Cf", "Cf"},
    {"Co", "Co"},
    {"Cn", "Cn"},
    {"Alphabetic", "LuLlLtLmLoNl"},
};

CodePoints of_categories(std::string_view codes) {
  std::vector<CodePoints::Range> out;
  for (uint32_t code_point = 0; code_point <= kLastCodePoint; ++code_point) {
    const std::string_view category = utf8proc_category_string(static_cast<int32_t>(code_point));
    bool inside = false;
    for (size_t i = 0; i < codes.size(); i += 2) inside = inside || codes.substr(i, 2) == category;
    if (!inside) continue;
    if (!out.empty() && out.back().second + 1 == code_point) {
      out.back().second = code_point;
    } else {
      out.emplace_back(code_point, code_point);
    }
  }
  return CodePoints(std::move(out));
}

}  // namespace

bool CodePoints::find_property(std::string_view name, CodePoints& out) {
  for (const std::string_view prefix : {"gc=", "General_Category="}) {
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  if (name == "Any") {
    out = all();
    return true;
  }
  if (name == "ASCII") {
    out = {{0, 0x7F}};
    return true;
  }
  const auto* const at = std::ranges::find(kCategories, name, &Category::name);
  if (at == std::end(kCategories)) return false;
  static std::mutex mutex;
  static std::map<std::string_view, CodePoints> known;  // by codes; bounded by the table
  const std::lock_guard lock(mutex);
  auto& set = known[at->codes];
  if (set.ranges().empty()) set = of_categories(at->codes);
  out = set;
  return true;
}

void CodePoints::tidy() {
  std::sort(ranges_.begin(), ranges_.end());
  std::vector<Range> out;
  for (const Range& range : ranges_) {
    if (range.second < range.first) continue;
    if (!out.empty() && range.first <= out.back().second + 1) {
      out.back().second = std::max(out.back().second, range.second);
    } else {
      out.push_back(range);
    }
  }
  ranges_ = std::move(out);
}

void CodePoints::add(const CodePoints& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  tidy();
}

CodePoints CodePoints::inverted() const {
  CodePoints out;
  uint32_t next = 0;
  for (const Range& range : ranges_) {
    if (range.first > next) out.ranges_.emplace_back(next, range.first - 1);
    next = range.second + 1;
  }
  if (next <= kLastCodePoint) out.ranges_.emplace_back(next, kLastCodePoint);
  return out;
}

CodePoints CodePoints::without(const CodePoints& other) const {
  CodePoints rest = inverted();
  rest.add(other);
  return rest.inverted();
}

CodePoints CodePoints::any_case() const {
  CodePoints out = *this;
  std::vector<Range> more;
  for (const Range& range : ranges_) {
    for (uint32_t c = range.first; c <= std::min(range.second, 0x24FFU); ++c) {
      const auto lower = static_cast<uint32_t>(utf8proc_tolower(static_cast<int32_t>(c)));
      const auto upper = static_cast<uint32_t>(utf8proc_toupper(static_cast<int32_t>(c)));
      if (lower != c) more.emplace_back(lower, lower);
      if (upper != c) more.emplace_back(upper, upper);
    }
  }
  out.add(CodePoints(std::move(more)));
  return out;
}

bool CodePoints::has(uint32_t code_point) const {
  return std::ranges::any_of(ranges_, [&](const Range& range) {
    return code_point >= range.first && code_point <= range.second;
  });
}

namespace {

struct Utf8 {
  uint8_t bytes[4];
  int size;
};
Utf8 encode(uint32_t c) {
  const auto tail = [&](int shift) { return static_cast<uint8_t>(0x80 | ((c >> shift) & 0x3F)); };
  if (c < 0x80) return {{static_cast<uint8_t>(c)}, 1};
  if (c < 0x800) return {{static_cast<uint8_t>(0xC0 | c >> 6), tail(0)}, 2};
  if (c < 0x10000) return {{static_cast<uint8_t>(0xE0 | c >> 12), tail(6), tail(0)}, 3};
  return {{static_cast<uint8_t>(0xF0 | c >> 18), tail(12), tail(6), tail(0)}, 4};
}

// A range whose ends are spelled with equally many bytes: cut until every byte runs over a range of
// its own.
void add_range(RegexStore& store, uint32_t first, uint32_t last, std::vector<RegexId>& out) {
  const int size = encode(first).size;
  for (int i = 1; i < size; ++i) {
    const uint32_t low_bits = (1U << (6 * i)) - 1;
    if ((first & ~low_bits) == (last & ~low_bits)) continue;
    if ((first & low_bits) != 0) {
      add_range(store, first, first | low_bits, out);
      add_range(store, (first | low_bits) + 1, last, out);
      return;
    }
    if ((last & low_bits) != low_bits) {
      add_range(store, first, (last & ~low_bits) - 1, out);
      add_range(store, last & ~low_bits, last, out);
      return;
    }
  }
  const Utf8 low = encode(first);
  const Utf8 high = encode(last);
  RegexId id = kEpsilon;
  for (int i = size; i-- > 0;)
    id = store.concat(store.bytes(ByteSet::range(low.bytes[i], high.bytes[i])), id);
  out.push_back(id);
}

RegexId spell_utf8(RegexStore& store, const CodePoints& set) {
  static constexpr CodePoints::Range kSizes[] = {
      {0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, kLastCodePoint}};
  std::vector<RegexId> parts;
  ByteSet ascii;
  for (const CodePoints::Range& range : set.ranges()) {
    for (const CodePoints::Range& part : kSizes) {
      const uint32_t first = std::max(range.first, part.first);
      const uint32_t last = std::min(range.second, part.second);
      if (first > last) continue;
      if (last < 0x80) {
        ascii.add_range(static_cast<uint8_t>(first), static_cast<uint8_t>(last));
      } else {
        add_range(store, first, last, parts);
      }
    }
  }
  if (!ascii.empty()) parts.push_back(store.bytes(ascii));
  return store.either(parts);
}

bool is_escaped(uint32_t c) { return c < 0x20 || c == '"' || c == '\\'; }

}  // namespace

std::string spell(std::string_view text, Spelling spelling) {
  if (spelling == Spelling::kUtf8) return std::string(text);
  std::string out;
  append_json_string(out, text);
  return out.substr(1, out.size() - 2);
}

RegexId spell(RegexStore& store, const CodePoints& set, Spelling spelling) {
  if (spelling == Spelling::kUtf8) return spell_utf8(store, set);
  std::vector<std::string> escapes;
  for (uint32_t c = 0; c <= '\\'; ++c) {
    if (is_escaped(c) && set.has(c))
      escapes.push_back(spell(std::string(1, static_cast<char>(c)), spelling));
  }
  const CodePoints plain = set.without({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}});
  return store.either({spell_utf8(store, plain), store.literals(std::move(escapes))});
}

RegexId any_character(RegexStore& store, Spelling spelling) {
  return spell(store, CodePoints::all(), spelling);
}

void append_code_point(std::string& out, uint32_t code_point) {
  const Utf8 utf8 = encode(code_point);
  out.append(reinterpret_cast<const char*>(utf8.bytes), static_cast<size_t>(utf8.size));
}

uint32_t next_code_point(std::string_view text, size_t& at) {
  int32_t out = 0;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at;
  const utf8proc_ssize_t size =
      utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(text.size() - at), &out);
  if (size <= 0) {
    ++at;
    return 0xFFFD;
  }
  at += static_cast<size_t>(size);
  return static_cast<uint32_t>(out);
}

}  // namespace tandem::grammar
