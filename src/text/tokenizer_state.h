// The parts of a built Tokenizer; private to tokenizer.cc and tokenizer_build.cc.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pretokenizer.h"
#include "text/special_matcher.h"
#include "text/tokenizer.h"
#include "text/unigram.h"

namespace tandem::text {

// Encoders' working memory.
struct EncodeScratch {
  BpeScratch bpe;
  UnigramScratch unigram;
  std::string normalized;
  std::string guarded;
};

// How a conversation is encoded; empty: text of one author, without either.
struct Guard {
  std::string_view sentinel;  // dropped before encoding
  std::string_view permit;    // precedes each guarded token that the text spells
};

struct Tokenizer::State {
  TokenizerSpec spec;
  Normalizer normalizer;
  PreTokenizer pre;
  std::string arena;              // what every token stands for, one after the other
  std::vector<uint32_t> offsets;  // of token i in the arena; one more at the end
  std::vector<bool> control;
  std::vector<bool> ends;
  std::vector<int32_t> special;
  std::set<int32_t> single_words;  // of them, found only where no word touches them
  SpecialMatcher in_raw;           // matched in text as written
  SpecialMatcher in_normalized;    // matched in normalized text
  SpecialMatcher guarded;          // spellings, as written, of what only the author may spell there
  bool unigram_model = false;
  bool fuse_across_pieces = false;
  Bpe bpe;
  Unigram unigram;
  AdjacencyTable adjacency;  // of character models: where a long piece may be cut

  std::unique_ptr<SegmentCache> segments;  // null: none
  std::mutex mutex;  // guards idle: working memory, lent to one caller at a time
  std::vector<std::unique_ptr<EncodeScratch>> idle;

  std::string_view bytes_of(int32_t token) const {
    const auto i = static_cast<size_t>(token);
    return std::string_view(arena).substr(offsets[i], offsets[i + 1] - offsets[i]);
  }
  TokenType type_of(size_t token) const {
    return spec.types.empty() ? TokenType::kNormal : static_cast<TokenType>(spec.types[token]);
  }
  // A token that text can spell: not control, user-defined, unknown, unused or a byte.
  bool is_piece(size_t token) const { return type_of(token) == TokenType::kNormal; }
  bool by_character() const {
    return spec.kind == "spm" || spec.kind == "char_bpe" || spec.kind == "unigram";
  }

  Status check() const;
  Status build();

  void encode_segment(std::string_view text, bool first, const Guard& guard, EncodeScratch& scratch,
                      std::vector<int32_t>& out) const;
  std::unique_ptr<EncodeScratch> borrow();
  void give_back(std::unique_ptr<EncodeScratch> scratch);

 private:
  Status build_vocabulary();
  Status build_special();
  Status build_merges();
  Status build_implied_merges();
  Status build_unigram();
  bool found_as_written(size_t token) const;
  void build_characters();
  void build_adjacency();
  void build_words();

  void encode_plain(std::string_view text, bool first, EncodeScratch& scratch,
                    std::vector<int32_t>& out) const;
  void encode_guarded(std::string_view text, bool first, const Guard& guard, EncodeScratch& scratch,
                      std::vector<int32_t>& out) const;
  void encode_piece(std::string_view piece, EncodeScratch& scratch,
                    std::vector<int32_t>& out) const;
  void encode_bpe(std::string_view piece, EncodeScratch& scratch, std::vector<int32_t>& out) const;
  void fuse_unknown(size_t from, std::vector<int32_t>& out) const;
  // Spelling of a token as pieces of normalized text have it.
  std::string_view piece_of(size_t token) const {
    return by_character() ? std::string_view(spec.tokens[token])
                          : bytes_of(static_cast<int32_t>(token));
  }
};

}  // namespace tandem::text
