#include "text/unicode.h"

#include <cstdlib>
#include <cstring>
#include <memory>

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

uint8_t compute_class(uint32_t code_point) {
  if (is_white_space(code_point)) return kSpace;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return kLetter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return kNumber;
    default:
      return kOther;
  }
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
  if (code_point >= 0x110000) return code_point;
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

}  // namespace tandem::text
