// The loops of json_skip.h over blocks of 64 bytes, for one instruction set; each includes this
// once. A Block says for which of its bytes something holds, as the bits of a word:
//   explicit Block(const char*);  uint64_t equals(char);  uint64_t below(char) (unsigned);
//
// A string costs three masks a block and about two nanoseconds an escape. The integers cost five
// masks; text that is not plain lists of them is left to the scanner, which knows what to say.
// Builtins instead of <bit>: an inline function of the library, compiled here for a wide
// instruction set, could be the copy that the linker keeps for everybody.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/json_skip.h"

namespace tandem {
namespace {

constexpr std::ptrdiff_t kBlock = 64;

// Bits below the lowest one of `mask`; all of them when there is none.
inline uint64_t before(uint64_t mask) { return mask == 0 ? ~uint64_t{0} : (mask & (0 - mask)) - 1; }

template <typename Block>
const char* skip_string_blocks(const char* at, const char* end) {
  while (true) {
    alignas(kBlock) char tail[kBlock];
    const char* bytes = at;
    if (end - at < kBlock) {
      if (at >= end) return nullptr;
      // What is behind the end reads as a control character: no string ends there.
      std::memset(tail, 0, sizeof tail);
      std::memcpy(tail, at, static_cast<size_t>(end - at));
      bytes = tail;
    }
    const Block block(bytes);
    const uint64_t quotes = block.equals('"');
    uint64_t slashes = block.equals('\\');
    const uint64_t control = block.below(0x20);
    uint64_t escaped = 0;
    std::ptrdiff_t next = kBlock;  // where the following block begins: an escape may reach over
    while (slashes != 0) {
      const uint64_t slash = slashes & (0 - slashes);
      if (((quotes & ~escaped) & (slash - 1)) != 0) break;  // the string ends before it
      const char* const begin = at + __builtin_ctzll(slash);
      const char* const past = skip_json_escape(begin, end);
      if (past == nullptr) return nullptr;
      // From the backslash to the escape's last byte.
      const std::ptrdiff_t stop = past - at;
      const uint64_t covered =
          (stop >= kBlock ? ~uint64_t{0} : (uint64_t{1} << stop) - 1) & ~(slash - 1);
      escaped |= covered;
      slashes &= ~covered;
      if (stop > kBlock) next = stop;
    }
    const uint64_t ends = quotes & ~escaped;
    if ((control & before(ends)) != 0) return nullptr;
    if (ends != 0) return at + __builtin_ctzll(ends) + 1;
    at += next;
  }
}

template <typename Block>
const char* skip_integer_blocks(const char* at, const char* end, size_t* skipped) {
  const char* resume = at;
  // About the byte before the block: it was a comma, a blank behind one, a digit, a number's
  // leading zero.
  uint64_t comma = 1;
  uint64_t blank = 0;
  uint64_t digit = 0;
  uint64_t lone_zero = 0;
  while (end - at >= kBlock) {
    const Block block(at);
    const uint64_t commas = block.equals(',');
    const uint64_t blanks = block.equals(' ');
    const uint64_t zeros = block.equals('0');
    const uint64_t digits = block.below('9' + 1) & ~block.below('0');
    const uint64_t starts = digits & ~((digits << 1) | digit);
    const uint64_t lone_zeros = zeros & starts;
    const uint64_t wrong = ~(commas | blanks | digits) |          // anything else
                           (blanks & ~((commas << 1) | comma)) |  // a blank elsewhere
                           (commas & ~((digits << 1) | digit)) |  // a missing number
                           (starts & ~((commas << 1) | (blanks << 1) | comma | blank)) |
                           (digits & ((lone_zeros << 1) | lone_zero));  // 01
    if (wrong != 0) break;
    *skipped += static_cast<size_t>(__builtin_popcountll(commas));
    if (commas != 0) resume = at + kBlock - __builtin_clzll(commas);
    comma = commas >> 63;
    blank = blanks >> 63;
    digit = digits >> 63;
    lone_zero = lone_zeros >> 63;
    at += kBlock;
  }
  return resume;
}

}  // namespace
}  // namespace tandem
