#include "text/unicode.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include <utf8proc.h>

namespace tandem::text {

Utf8Scan scan_utf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return {Utf8Prefix::kComplete, 1};
  size_t length = 0;
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (first >= 0xC2 && first <= 0xDF) {
    length = 2;
  } else if (first >= 0xE0 && first <= 0xEF) {
    length = 3;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
  } else if (first >= 0xF0 && first <= 0xF4) {
    length = 4;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
  } else {
    return {Utf8Prefix::kInvalid, 1};
  }
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Utf8Prefix::kIncomplete, i};
    if (byte(i) < low || byte(i) > high) return {Utf8Prefix::kInvalid, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Prefix::kComplete, length};
}

Decoded decode_utf8(std::string_view text, size_t position) {
  const std::string_view rest = text.substr(position, 4);
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(rest[i])); };
  if (byte(0) < 0x80) return {byte(0), 1};
  const Utf8Scan scan = scan_utf8(rest);
  if (scan.state != Utf8Prefix::kComplete) return {kInvalidCodePoint, 1};
  switch (scan.size) {
    case 2:
      return {(byte(0) & 0x1F) << 6 | (byte(1) & 0x3F), 2};
    case 3:
      return {(byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
    default:
      return {(byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 |
                  (byte(3) & 0x3F),
              4};
  }
}

void append_utf8(std::string& out, uint32_t code_point) {
  const auto push = [&](uint32_t value) { out.push_back(static_cast<char>(value)); };
  if (code_point < 0x80) {
    push(code_point);
  } else if (code_point < 0x800) {
    push(0xC0 | code_point >> 6);
    push(0x80 | (code_point & 0x3F));
  } else if (code_point >= 0x110000 || (code_point >= 0xD800 && code_point < 0xE000)) {
    out += "\xEF\xBF\xBD";
  } else if (code_point < 0x10000) {
    push(0xE0 | code_point >> 12);
    push(0x80 | (code_point >> 6 & 0x3F));
    push(0x80 | (code_point & 0x3F));
  } else {
    push(0xF0 | code_point >> 18);
    push(0x80 | (code_point >> 12 & 0x3F));
    push(0x80 | (code_point >> 6 & 0x3F));
    push(0x80 | (code_point & 0x3F));
  }
}

namespace {

bool is_white_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// \p{Script=Han} of Unicode 15.1, which utf8proc does not know.
bool is_han(uint32_t c) {
  static constexpr uint32_t kRanges[][2] = {
      {0x2E80, 0x2E99},   {0x2E9B, 0x2EF3},   {0x2F00, 0x2FD5},   {0x3005, 0x3005},
      {0x3007, 0x3007},   {0x3021, 0x3029},   {0x3038, 0x303B},   {0x3400, 0x4DBF},
      {0x4E00, 0x9FFF},   {0xF900, 0xFA6D},   {0xFA70, 0xFAD9},   {0x16FE2, 0x16FE3},
      {0x16FF0, 0x16FF1}, {0x20000, 0x2A6DF}, {0x2A700, 0x2B739}, {0x2B740, 0x2B81D},
      {0x2B820, 0x2CEA1}, {0x2CEB0, 0x2EBE0}, {0x2EBF0, 0x2EE5D}, {0x2F800, 0x2FA1D},
      {0x30000, 0x3134A}, {0x31350, 0x323AF}};
  return std::any_of(std::begin(kRanges), std::end(kRanges),
                     [c](const auto& range) { return c >= range[0] && c <= range[1]; });
}

// What Unicode 15.1 and 16.0 assigned, for a utf8proc that is older.
uint8_t newer_bits(uint32_t c) {
  struct Range {
    uint32_t first;
    uint32_t last;
    int bits;
  };
  static constexpr Range kRanges[] = {
#include "text/unicode_patch.inc"
  };
  for (const Range& range : kRanges) {
    if (c >= range.first && c <= range.last) return static_cast<uint8_t>(range.bits);
  }
  return kOther;
}

uint8_t category_bits(uint32_t code_point) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
      return kLetter | kUpper;
    case UTF8PROC_CATEGORY_LL:
      return kLetter | kLower;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return kLetter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return kNumber;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return kMark;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
      return kPunctuation;
    case UTF8PROC_CATEGORY_CN:
      return newer_bits(code_point);
    default:
      return kOther;
  }
}

uint8_t compute_class(uint32_t code_point) {
  if (is_white_space(code_point)) return kSpace;
  return category_bits(code_point) | (is_han(code_point) ? kHan : 0);
}

std::unique_ptr<unicode_internal::ClassTable> build_class_table() {
  auto table = std::make_unique<unicode_internal::ClassTable>();
  std::memset(table.get(), 0, sizeof *table);  // page 0 of `classes` is replaced below
  uint32_t used = 0;
  for (uint32_t page = 0; page < 0x1100; ++page) {
    uint8_t classes[256];
    for (uint32_t i = 0; i < 256; ++i) classes[i] = compute_class(page << 8 | i);
    uint32_t same = 0;
    while (same < used && std::memcmp(table->classes[same], classes, 256) != 0) ++same;
    if (same == used) {
      if (used == 256) std::abort();  // a future Unicode needs a wider page number
      std::memcpy(table->classes[used++], classes, 256);
    }
    table->page[page] = static_cast<uint8_t>(same);
  }
  return table;
}

}  // namespace

const unicode_internal::ClassTable& unicode_internal::class_table() {
  static const std::unique_ptr<ClassTable> kTable = build_class_table();
  return *kTable;
}

bool is_python_space(uint32_t code_point) {
  return is_white_space(code_point) || (code_point >= 0x1C && code_point <= 0x1F);
}

uint32_t to_upper(uint32_t code_point) {
  if (code_point >= 0x110000) return code_point;
  return static_cast<uint32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code_point)));
}

uint32_t to_lower(uint32_t code_point) {
  // Capitals of Unicode 16 and 17, for a utf8proc that is older.
  struct Range {
    uint32_t first;
    uint32_t last;
    int32_t difference;
  };
  static constexpr Range kNewer[] = {
#include "text/lower_patch.inc"
  };
  if (code_point >= 0x110000) return code_point;
  if (code_point >= kNewer[0].first) {
    for (const Range& range : kNewer) {
      if (code_point >= range.first && code_point <= range.last)
        return code_point + static_cast<uint32_t>(range.difference);
    }
  }
  return static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code_point)));
}

bool is_upper(uint32_t code_point) {
  return code_point < 0x110000 &&
         utf8proc_category(static_cast<utf8proc_int32_t>(code_point)) == UTF8PROC_CATEGORY_LU;
}

bool is_lower(uint32_t code_point) {
  return code_point < 0x110000 &&
         utf8proc_category(static_cast<utf8proc_int32_t>(code_point)) == UTF8PROC_CATEGORY_LL;
}

bool is_decimal(uint32_t code_point) {
  return code_point < 0x110000 &&
         utf8proc_category(static_cast<utf8proc_int32_t>(code_point)) == UTF8PROC_CATEGORY_ND;
}

bool is_unicode_punctuation(uint32_t code_point) {
  if ((char_bits(code_point) & kPunctuation) == 0) return false;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
    case UTF8PROC_CATEGORY_CN:
      return false;
    default:
      return true;
  }
}

bool is_beyond_normalization(uint32_t code_point) {
  struct Range {
    uint32_t first;
    uint32_t last;
  };
  static constexpr Range kRanges[] = {
#include "text/normalization_patch.inc"
  };
  if (code_point < kRanges[0].first) return false;
  const auto* const range = std::ranges::lower_bound(kRanges, code_point, {}, &Range::last);
  return range != std::end(kRanges) && code_point >= range->first;
}

bool is_regex_word(uint32_t c) {
  if (c >= 0x110000) return false;
  if ((char_bits(c) & (kLetter | kMark)) != 0 || c == 0x200C || c == 0x200D) return true;
  // Other_Alphabetic symbols: letters in circles and squares.
  if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
      (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189)) {
    return true;
  }
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_PC;
}

bool is_printable(uint32_t code_point) {
  if (code_point == ' ') return true;
  if (code_point >= 0x110000) return false;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

size_t count_code_points(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<uint8_t>(c) & 0xC0) != 0x80;
  return count;
}

namespace {

// Canonical ordering and composition of decomposed characters, then UTF-8. Marks are sorted here:
// utf8proc's own ordering is quadratic in a run of marks.
void append_composed(std::string& out, std::vector<utf8proc_int32_t>& text, bool compose) {
  const auto combining = [](utf8proc_int32_t c) {
    return utf8proc_get_property(c)->combining_class;
  };
  std::vector<uint64_t> keys;  // combining class, place in the run, character
  for (size_t i = 0; i < text.size();) {
    if (combining(text[i]) == 0) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < text.size() && combining(text[end]) != 0) ++end;
    keys.clear();
    for (size_t k = i; k < end; ++k) {
      keys.push_back(static_cast<uint64_t>(combining(text[k])) << 56 |
                     static_cast<uint64_t>(k - i) << 24 | static_cast<uint64_t>(text[k]));
    }
    std::ranges::sort(keys);
    for (size_t k = i; k < end; ++k) {
      text[k] = static_cast<utf8proc_int32_t>(keys[k - i] & 0xFFFFFF);
    }
    i = end;
  }
  auto size = static_cast<utf8proc_ssize_t>(text.size());
  if (compose) {
    size = utf8proc_normalize_utf32(
        text.data(), size, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  }
  for (utf8proc_ssize_t i = 0; i < size; ++i) {
    append_utf8(out, static_cast<uint32_t>(text[static_cast<size_t>(i)]));
  }
  text.clear();
}

}  // namespace

void append_normalized(std::string& out, std::string_view text, UnicodeForm form) {
  const bool compose = form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
  const bool compatibility = form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd;
  // Below this a character never changes, nor composes with one before it.
  const uint32_t plain = compatibility ? 0xA0 : compose ? 0x300 : 0xC0;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                      (compatibility ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> stretch;  // decomposed, from the last plain character on
  size_t copied = 0;                      // text before this is in `out` or in `stretch`
  size_t last_plain = 0;                  // where the last plain character begins
  bool have_plain = false;
  for (size_t i = 0; i < text.size();) {
    const Decoded decoded = decode_utf8(text, i);
    const bool foreign =
        decoded.code_point == kInvalidCodePoint || is_beyond_normalization(decoded.code_point);
    if (foreign || decoded.code_point < plain) {
      append_composed(out, stretch, compose);
      have_plain = !foreign;
      last_plain = i;
      i += decoded.size;
      continue;
    }
    if (stretch.empty()) {  // what is plain goes out, but for the character that may compose
      const size_t upto = have_plain ? last_plain : i;
      if (upto > copied) out.append(text.substr(copied, upto - copied));
      if (have_plain && last_plain >= copied) {
        stretch.push_back(static_cast<utf8proc_int32_t>(decode_utf8(text, last_plain).code_point));
        // A plain character of NFC may itself be composed: take it apart like any other.
        utf8proc_int32_t parts[4];
        int boundary = 0;
        const auto count = utf8proc_decompose_char(stretch[0], parts, 4, options, &boundary);
        if (count > 0 && count <= 4) stretch.assign(parts, parts + count);
      }
      have_plain = false;
    }
    utf8proc_int32_t parts[32];
    int boundary = 0;
    const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(decoded.code_point),
                                               parts, 32, options, &boundary);
    if (count > 0 && count <= 32) {
      stretch.insert(stretch.end(), parts, parts + count);
    } else {
      stretch.push_back(static_cast<utf8proc_int32_t>(decoded.code_point));
    }
    i += decoded.size;
    copied = i;
  }
  append_composed(out, stretch, compose);
  if (copied < text.size()) out.append(text.substr(copied));
}

}  // namespace tandem::text
