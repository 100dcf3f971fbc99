// Small tables built once and read by every thread: merge pairs and words of the vocabulary (open
// addressing, linear probing at load <= 1/2, no deletion), tokens of single characters, and pairs
// of characters that stand side by side in some token.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "numerics/mix.h"

namespace tandem::text {

// Not keyed: collisions only cost a compare, and the tables' contents are the vocabulary's.
inline uint64_t hash_bytes(std::string_view bytes) {
  uint64_t hash = bytes.size() * 0x9E3779B97F4A7C15ULL;
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    hash = mix64(hash ^ word);
  }
  uint64_t tail = 0;
  if (i < bytes.size()) std::memcpy(&tail, bytes.data() + i, bytes.size() - i);
  return mix64(hash ^ tail ^ 0xA0761D6478BD642FULL);
}

struct Merge {
  uint32_t rank;
  int32_t token;  // what the pair becomes
};

class PairTable {
 public:
  void reserve(size_t count) {
    const size_t capacity = std::bit_ceil(count * 2 + 2);
    slots_.assign(capacity, Slot{kEmpty, {0, 0}});
    mask_ = capacity - 1;
  }
  // A later pair replaces an equal earlier one. At most the reserved count of distinct pairs.
  void insert(int32_t left, int32_t right, Merge merge) {
    const uint64_t key = make_key(left, right);
    size_t i = mix64(key) & mask_;
    while (slots_[i].key != kEmpty && slots_[i].key != key) i = (i + 1) & mask_;
    slots_[i] = {key, merge};
  }
  const Merge* find(int32_t left, int32_t right) const {
    const uint64_t key = make_key(left, right);
    size_t i = mix64(key) & mask_;
    while (slots_[i].key != key) {
      if (slots_[i].key == kEmpty) return nullptr;
      i = (i + 1) & mask_;
    }
    return &slots_[i].merge;
  }

 private:
  struct Slot {
    uint64_t key;
    Merge merge;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  static uint64_t make_key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  std::vector<Slot> slots_;
  size_t mask_ = 0;
};

// Maps a word's bytes to its token; the bytes stay with the owner and are compared through
// `bytes_of(token)`.
class WordTable {
 public:
  void reserve(size_t count) {
    const size_t capacity = std::bit_ceil(count * 2 + 2);
    slots_.assign(capacity, Slot{0, -1});
    mask_ = capacity - 1;
  }
  void insert(uint64_t hash, int32_t token) {
    size_t i = hash & mask_;
    while (slots_[i].token >= 0) i = (i + 1) & mask_;
    slots_[i] = {static_cast<uint32_t>(hash >> 32), token};
  }
  template <typename BytesOf>
  int32_t find(uint64_t hash, std::string_view word, const BytesOf& bytes_of) const {
    const auto tag = static_cast<uint32_t>(hash >> 32);
    for (size_t i = hash & mask_; slots_[i].token >= 0; i = (i + 1) & mask_) {
      if (slots_[i].tag == tag && bytes_of(slots_[i].token) == word) return slots_[i].token;
    }
    return -1;
  }

 private:
  struct Slot {
    uint32_t tag;
    int32_t token;
  };
  std::vector<Slot> slots_;
  size_t mask_ = 0;
};

// Maps a code point to the token of that one character; -1 when there is none.
class CharacterTable {
 public:
  void insert(uint32_t code_point, int32_t token) {
    if (pages_.empty()) {
      page_of_.assign(0x1100, 0);
      pages_.assign(256, -1);  // page 0 stays empty
    }
    uint16_t& page = page_of_[code_point >> 8];
    if (page == 0) {
      page = static_cast<uint16_t>(pages_.size() >> 8);
      pages_.resize(pages_.size() + 256, -1);
    }
    pages_[static_cast<size_t>(page) << 8 | (code_point & 0xFF)] = token;
  }
  int32_t find(uint32_t code_point) const {
    if (code_point >= 0x110000 || pages_.empty()) return -1;
    return pages_[static_cast<size_t>(page_of_[code_point >> 8]) << 8 | (code_point & 0xFF)];
  }

 private:
  std::vector<uint16_t> page_of_;
  std::vector<int32_t> pages_;
};

// Which characters stand side by side within some token. May say yes for a pair that does not
// (non-ASCII pairs are hashed), never no for one that does: a cut between two characters that it
// denies cannot change a tokenization.
class AdjacencyTable {
 public:
  void insert(uint32_t left, uint32_t right) {
    if (bits_.empty()) bits_.assign(kWords, 0);
    const size_t bit = index(left, right);
    bits_[bit >> 6] |= uint64_t{1} << (bit & 63);
  }
  bool adjacent(uint32_t left, uint32_t right) const {
    if (bits_.empty()) return false;
    const size_t bit = index(left, right);
    return (bits_[bit >> 6] >> (bit & 63) & 1) != 0;
  }

 private:
  static constexpr size_t kBits = 1 << 23;
  static constexpr size_t kWords = kBits / 64;
  static size_t index(uint32_t left, uint32_t right) {
    if ((left | right) < 0x80) return left << 7 | right;  // the first 2 KiB: stays in L1
    return (mix64(static_cast<uint64_t>(left) << 32 | right) & (kBits - 1)) | 0x4000;
  }
  std::vector<uint64_t> bits_;
};

}  // namespace tandem::text
