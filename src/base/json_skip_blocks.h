// The loops of json_skip.h over blocks of 64 bytes, for one instruction set; each includes this
// once. A Block says for which of its bytes something holds, as the bits of a word:
//   explicit Block(const char*);  uint64_t equals(char);  uint64_t below(char) (unsigned);
//   uint64_t simple() (may follow a backslash alone, but for the quote);  Block lower() (bit 5 set)
//   uint64_t hex()
//
// A string costs three masks a block, one with escapes some six more, however many they are; only
// surrogate pairs are looked at one by one. The step is always a whole block, so that the next can
// be read before this one is understood: what runs over its end is carried along. The integers cost
// five masks; text that is not plain lists of them is left to the scanner, which knows what to say.
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

// The bytes behind an odd run of backslashes: an escape's second. `escaped`: the block's first byte
// is one; afterwards, whether the next block's first is. A carry runs through each run of
// backslashes and comes out behind it.
inline uint64_t escape_targets(uint64_t slashes, uint64_t& escaped) {
  constexpr uint64_t kEven = 0x5555555555555555ULL;
  const uint64_t runs = slashes & ~escaped;
  const uint64_t starts = runs & ~(runs << 1);
  unsigned long long odd = 0;
  const bool out = __builtin_uaddll_overflow(runs, starts & ~kEven, &odd);
  const uint64_t behind_even = (runs + (starts & kEven)) & ~runs;
  const uint64_t behind_odd = odd & ~runs;
  const uint64_t targets = (behind_even & ~kEven) | (behind_odd & kEven) | escaped;
  escaped = out ? 1 : 0;
  return targets;
}

// What a \u at a block's end leaves to the next block: which of its bytes are digits, and whether
// the first is the first or the second of them, which say whether it is half a surrogate pair.
struct Unit {
  uint64_t digits = 0;
  uint64_t first = 0;
  uint64_t second = 0;
};

template <typename Block>
const char* skip_string_blocks(const char* at, const char* end) {
  uint64_t escaped = 0;
  Unit unit;
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
    const bool plain = slashes == 0 || (quotes & before(slashes)) != 0;
    if (plain && (escaped | unit.digits) == 0) {
      if ((control & before(quotes)) != 0) return nullptr;
      if (quotes != 0) return at + __builtin_ctzll(quotes) + 1;
      at += kBlock;
      continue;
    }
    uint64_t targets = escape_targets(slashes, escaped);
    const uint64_t ends = quotes & ~targets;
    const uint64_t inside = before(ends);
    targets &= inside;
    if ((control & inside) != 0) return nullptr;
    // (A backslash is a target where a run of them goes on from the block before.)
    const uint64_t units = targets & ~(block.simple() | quotes | slashes);
    if ((units | unit.digits) != 0) {
      if ((units & ~block.equals('u')) != 0) return nullptr;
      const uint64_t digits = units << 1 | units << 2 | units << 3 | units << 4 | unit.digits;
      if ((digits & ~block.hex()) != 0) return nullptr;
      const uint64_t high = (units << 1 | unit.first) & block.lower().equals('d');
      const uint64_t halves = (high << 1 | unit.second) & ~block.below('8');
      unit = {units >> 63 | units >> 62 | units >> 61 | units >> 60, units >> 63, high >> 63};
      if (halves != 0) {
        at = skip_json_escape(at + __builtin_ctzll(halves) - 3, end);
        if (at == nullptr) return nullptr;
        escaped = 0;
        unit = {};
        continue;
      }
    }
    if (ends != 0) return at + __builtin_ctzll(ends) + 1;
    at += kBlock;
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
