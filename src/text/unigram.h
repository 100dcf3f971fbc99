// Unigram model (SentencePiece's and `tokenizers`'): the segmentation of highest total score, found
// by Viterbi over a byte trie of the vocabulary. O(n times the longest token). Immutable after
// build().
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/flat_tables.h"

namespace tandem::text {

// Working memory of one encoder.
struct UnigramScratch {
  struct Node {
    double score;
    uint32_t start;  // kNone: not reached
    int32_t token;   // -1: a character outside the vocabulary
  };
  std::vector<Node> nodes;
  std::vector<uint32_t> cuts;
  // While text is guarded: the whole of it, and where in it guarded tokens may begin (ascending).
  std::string_view guarded;
  std::vector<uint32_t> permitted;
};

class Unigram {
 public:
  // Sums of scores in float, as SentencePiece has them, instead of double. It decides ties.
  bool single_precision = false;
  int32_t unknown = -1;
  std::array<int32_t, 256> byte_tokens{};  // -1: no such token; used when none is -1

  // A score of the vocabulary that counts for the lowest, from which that of unknown characters
  // follows, though text cannot spell its token.
  void count_score(double score);
  // Adds a token; `counts` as count_score; `guarded`: see UnigramScratch. 400 when the trie would
  // pass 8 million nodes.
  Status add(std::string_view spelling, int32_t token, double score, bool counts = true,
             bool guarded = false);

  void encode(std::string_view text, UnigramScratch& scratch, std::vector<int32_t>& out) const;

 private:
  template <typename Real>
  void fill(std::string_view text, UnigramScratch& scratch) const;
  void emit(std::string_view character, std::vector<int32_t>& out) const;

  struct Entry {
    int32_t token = -1;
    bool guarded = false;
    double score = 0;
  };
  struct Edge {
    uint64_t key = ~uint64_t{0};  // node << 8 | byte
    uint32_t node = 0;
  };
  uint32_t step(uint32_t node, uint8_t byte) const;
  void grow();

  std::vector<Edge> edges_;  // open addressing, load <= 1/2
  std::vector<Entry> nodes_ = std::vector<Entry>(1);
  double min_score_ = 0;
  bool any_ = false;
};

}  // namespace tandem::text
