// Sets of bytes, and partitions of all bytes into classes that a regular expression cannot tell
// apart.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace tandem::grammar {

struct ByteSet {
  std::array<uint64_t, 4> words{};

  static ByteSet of(uint8_t byte) {
    ByteSet out;
    out.add(byte);
    return out;
  }
  static ByteSet range(uint8_t first, uint8_t last) {
    ByteSet out;
    out.add_range(first, last);
    return out;
  }
  static ByteSet all() { return range(0, 255); }

  bool has(uint8_t byte) const { return ((words[byte >> 6] >> (byte & 63)) & 1) != 0; }
  void add(uint8_t byte) { words[byte >> 6] |= uint64_t{1} << (byte & 63); }
  void add_range(uint8_t first, uint8_t last) {
    for (unsigned byte = first; byte <= last; ++byte) add(static_cast<uint8_t>(byte));
  }
  bool empty() const { return (words[0] | words[1] | words[2] | words[3]) == 0; }
  int count() const {
    int total = 0;
    for (const uint64_t word : words) total += std::popcount(word);
    return total;
  }
  // The lowest member; of a set that is not empty.
  uint8_t first() const {
    unsigned base = 0;
    for (const uint64_t word : words) {
      if (word != 0)
        return static_cast<uint8_t>(base + static_cast<unsigned>(std::countr_zero(word)));
      base += 64;
    }
    return 0;
  }
  ByteSet operator&(const ByteSet& other) const {
    ByteSet out;
    for (size_t i = 0; i < 4; ++i) out.words[i] = words[i] & other.words[i];
    return out;
  }
  ByteSet operator|(const ByteSet& other) const {
    ByteSet out;
    for (size_t i = 0; i < 4; ++i) out.words[i] = words[i] | other.words[i];
    return out;
  }
  ByteSet operator~() const {
    ByteSet out;
    for (size_t i = 0; i < 4; ++i) out.words[i] = ~words[i];
    return out;
  }
  bool operator==(const ByteSet&) const = default;
};

// Classes are numbered in order of their lowest byte, which represents them.
struct Partition {
  std::array<uint8_t, 256> class_of{};
  std::array<uint8_t, 256> representative{};
  uint16_t count = 1;
  bool operator==(const Partition& other) const { return class_of == other.class_of; }
};

}  // namespace tandem::grammar
