// The loops of json_skip.h over blocks of 64 bytes, for one instruction set; each includes this
// once. A Block says for which of its bytes something holds, as the bits of a word:
//   explicit Block(const char*);  uint64_t equals(char);  uint64_t below(char) (unsigned);
//   uint64_t simple() (may follow a backslash alone, but for the quote);  Block lower() (bit 5 set)
//
// A string costs three masks a block, one with escapes some ten more, however many they are; only
// surrogate pairs are looked at one by one. The integers cost five masks; text that is not plain
// lists of them is left to the scanner, which knows what to say.
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

// What the backslashes of a block do.
struct Escapes {
  uint64_t targets = 0;         // bytes behind an odd run of backslashes: an escape's second
  std::ptrdiff_t cut = kBlock;  // what begins here is for the next block, where it lies whole
};

inline Escapes find_escapes(uint64_t slashes) {
  constexpr uint64_t kEven = 0x5555555555555555ULL;
  constexpr std::ptrdiff_t kLast = kBlock - 5;  // the last target whose four digits are here too
  Escapes found;
  const uint64_t starts = slashes & ~(slashes << 1);
  // A carry runs through each run of backslashes and comes out behind it.
  const uint64_t behind_even = (slashes + (starts & kEven)) & ~slashes;
  const uint64_t behind_odd = (slashes + (starts & ~kEven)) & ~slashes;
  found.targets = (behind_even & ~kEven) | (behind_odd & kEven);
  if (const uint64_t late = found.targets >> (kLast + 1); late != 0)
    found.cut = kLast + __builtin_ctzll(late);
  // A run that reaches the end is cut off whole; if it is the whole block, it is pairs.
  if (slashes >> 63 != 0 && ~slashes != 0) {
    const std::ptrdiff_t run = kBlock - __builtin_clzll(~slashes);
    if (run < found.cut) found.cut = run;
  }
  return found;
}

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
    const uint64_t slashes = block.equals('\\');
    const uint64_t control = block.below(0x20);
    if (slashes == 0 || (quotes & before(slashes)) != 0) {
      if ((control & before(quotes)) != 0) return nullptr;
      if (quotes != 0) return at + __builtin_ctzll(quotes) + 1;
      at += kBlock;
      continue;
    }
    const Escapes escapes = find_escapes(slashes);
    const uint64_t keep = escapes.cut == kBlock ? ~uint64_t{0} : (uint64_t{1} << escapes.cut) - 1;
    const uint64_t ends = quotes & ~escapes.targets & keep;
    const uint64_t inside = before(ends) & keep;
    const uint64_t targets = escapes.targets & inside;
    if ((control & inside) != 0) return nullptr;
    if (const uint64_t units = targets & ~(block.simple() | quotes); units != 0) {
      if ((units & ~block.equals('u')) != 0) return nullptr;
      const Block lower = block.lower();
      const uint64_t hex =
          (block.below('9' + 1) & ~block.below('0')) | (lower.below('f' + 1) & ~lower.below('a'));
      const uint64_t digits = units << 1 | units << 2 | units << 3 | units << 4;
      if ((digits & ~hex) != 0) return nullptr;
      const uint64_t halves = (units << 1 & lower.equals('d')) << 1 & ~block.below('8');
      if (halves != 0) {
        at = skip_json_escape(at + __builtin_ctzll(halves) - 3, end);
        if (at == nullptr) return nullptr;
        continue;
      }
    }
    if (ends != 0) return at + __builtin_ctzll(ends) + 1;
    at += escapes.cut;
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
