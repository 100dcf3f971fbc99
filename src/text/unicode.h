// Unicode facts the tokenizers and templates need: UTF-8 decoding that never fails and character
// classes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::text {

inline constexpr uint32_t kInvalidCodePoint = 0xFFFFFFFF;

struct Decoded {
  uint32_t code_point;  // kInvalidCodePoint for a byte that starts no valid sequence
  uint32_t size;        // bytes consumed, at least 1 (1 when invalid)
};

// Decodes the character at `position` (< text.size()). Overlong forms, surrogates and values above
// U+10FFFF are invalid.
Decoded decode_utf8(std::string_view text, size_t position);
void append_utf8(std::string& out, uint32_t code_point);

// How a sequence of bytes that begins like a character continues: used by the streaming decoder.
enum class Utf8Prefix { kComplete, kIncomplete, kInvalid };
struct Utf8Scan {
  Utf8Prefix state;
  size_t
      size;  // complete: the character; incomplete: all that is left; invalid: the maximal subpart
};
// `text` must not be empty.
Utf8Scan scan_utf8(std::string_view text);

// Bits of a character's class. \p{L}, \p{N} and White_Space exclude one another.
enum CharClass : uint8_t {
  kOther = 0,
  kLetter = 1,
  kNumber = 2,
  kSpace = 4,
  // Details, of char_bits() only. A letter that is neither upper nor lower is Lm or Lo.
  kUpper = 8,         // Lu, Lt
  kLower = 16,        // Ll
  kMark = 32,         // \p{M}
  kHan = 64,          // \p{Han}
  kPunctuation = 128  // \p{P}, \p{S}
};

namespace unicode_internal {
struct ClassTable {
  uint8_t page[0x1100];       // page number by code point >> 8
  uint8_t classes[256][256];  // distinct pages
};
const ClassTable& class_table();
}  // namespace unicode_internal

// All bits of a code point; 0 for kInvalidCodePoint. Built once from utf8proc's
// categories.
inline uint8_t char_bits(uint32_t code_point) {
  static const unicode_internal::ClassTable& table = unicode_internal::class_table();
  if (code_point >= 0x110000) return kOther;
  return table.classes[table.page[code_point >> 8]][code_point & 0xFF];
}
// The class without details.
inline uint8_t char_class(uint32_t code_point) {
  return char_bits(code_point) & (kLetter | kNumber | kSpace);
}

// What Python's str.strip() removes by default (White_Space and U+001C..U+001F).
bool is_python_space(uint32_t code_point);
uint32_t to_upper(uint32_t code_point);
uint32_t to_lower(uint32_t code_point);
bool is_upper(uint32_t code_point);
bool is_lower(uint32_t code_point);
bool is_decimal(uint32_t code_point);
// \p{P}
bool is_unicode_punctuation(uint32_t code_point);
// \w as Unicode regular expressions have it.
bool is_regex_word(uint32_t code_point);
// False for what Python's repr() escapes: controls, separators other than space, unassigned,
// surrogates.
bool is_printable(uint32_t code_point);

size_t count_code_points(std::string_view text);

// Characters that are newer than Unicode 9, whose tables the `tokenizers` library has for its forms
// and for accents: models were trained with these characters as they are.
bool is_beyond_normalization(uint32_t code_point);

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };
// Appends `text` in a normalization form of Unicode 9; bytes that are not UTF-8 and newer
// characters stay as they are. O(n log n).
void append_normalized(std::string& out, std::string_view text, UnicodeForm form);

}  // namespace tandem::text
