// mix64: spreads the bits of a word over a word, one to one; for hash tables and stable choices.
// The finalizer of MurmurHash3 (Appleby). Not keyed: not for anything that a client may aim at.
#pragma once

#include <cstdint>

namespace tandem {

constexpr uint64_t mix64(uint64_t value) {
  value ^= value >> 33;
  value *= 0xff51afd7ed558ccdULL;
  value ^= value >> 33;
  value *= 0xc4ceb9fe1a85ec53ULL;
  return value ^ (value >> 33);
}

}  // namespace tandem
