// BPE within one piece of text: repeatedly merges the pair of lowest rank, leftmost first. The
// smallest symbols are bytes (byte-level BPE, tiktoken) or characters (SentencePiece), where a
// character that the vocabulary lacks becomes its bytes' tokens or the unknown token. O(n log n)
// in the piece's length; short pieces take a quadratic scan over a few cache lines, which is
// faster.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/flat_tables.h"

namespace tandem::text {

// Working memory of one encoder, and its bounded cache of recent words (direct mapped, last one
// wins).
class BpeScratch {
 public:
  BpeScratch();

 private:
  friend class Bpe;
  static constexpr size_t kCacheEntries = 4096;
  static constexpr size_t kCacheWordBytes = 31;
  static constexpr size_t kCacheTokens = 8;
  struct CacheEntry {
    uint64_t hash = 0;
    uint8_t word_size = 0;  // 0: empty
    uint8_t token_count = 0;
    std::array<char, kCacheWordBytes> word;
    std::array<int32_t, kCacheTokens> tokens;
  };
  struct Node {
    int32_t token;
    uint32_t previous;
    uint32_t next;
  };
  std::vector<CacheEntry> cache_;
  std::vector<Node> nodes_;
  std::vector<uint64_t> heap_;  // rank << 32 | position: the smallest is the next merge
};

class Bpe {
 public:
  // `byte_tokens[b]` is the token of byte b, or -1: such bytes become `unknown`, or vanish when
  // there is none, as in the reference implementation.
  std::array<int32_t, 256> byte_tokens{};
  bool by_character = false;
  int32_t unknown = -1;
  CharacterTable characters;  // by_character only
  // Characters that are no token but part of one: symbol first_virtual + i spells virtuals[i].
  // Those left after merging become bytes or unknown.
  int32_t first_virtual = INT32_MAX;
  std::vector<std::string> virtuals;
  PairTable merges;
  // Words that are one token without any merging.
  WordTable words;

  // `bytes_of(token)` gives a token's bytes. Appends the piece's tokens to `out`.
  template <typename BytesOf>
  void encode(std::string_view piece, const BytesOf& bytes_of, BpeScratch& scratch,
              std::vector<int32_t>& out) const {
    const uint64_t hash = hash_bytes(piece);
    if (const int32_t token = words.find(hash, piece, bytes_of); token >= 0) {
      out.push_back(token);
      return;
    }
    if (piece.size() <= BpeScratch::kCacheWordBytes) {
      encode_cached(hash, piece, scratch, out);
    } else {
      merge(piece, scratch, out);
    }
  }

  // No tables of words, no cache.
  void merge(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& out) const;

 private:
  void encode_cached(uint64_t hash, std::string_view piece, BpeScratch& scratch,
                     std::vector<int32_t>& out) const;
  // Calls emit(token) for each smallest symbol; at most as many as the piece has bytes.
  template <typename Emit>
  void each_symbol(std::string_view piece, const Emit& emit) const;
  template <typename Emit>
  void each_fallback(std::string_view character, const Emit& emit) const;
  void finish(int32_t token, std::vector<int32_t>& out) const;
  void merge_short(std::string_view piece, std::vector<int32_t>& out) const;
  void merge_long(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& out) const;
};

}  // namespace tandem::text
