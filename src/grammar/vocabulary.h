// Vocabulary: a model's tokens as a grammar sees them: a trie of their bytes, the special tokens by
// name, and sets that are known beforehand (text inside JSON strings by its length). Built once for
// a model; immutable but for the caches, which have their own locks; any thread.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/regex_store.h"
#include "grammar/token_mask.h"

namespace tandem::grammar {

// The plain table that a vocabulary is made of.
struct VocabularyTable {
  struct Special {
    std::string name;  // as a grammar spells it, with its brackets: "<|im_end|>"
    int32_t token = 0;
  };
  // By id: the bytes that the token adds to a text; empty for those that add none (control tokens,
  // gaps).
  std::vector<std::string> bytes;
  std::vector<Special> special;            // what a grammar may name
  std::vector<int32_t> end_of_generation;  // may come where the grammar is complete, and only there
};

// Tokens in order of their bytes; a node's children follow it.
struct TokenTrie {
  std::vector<uint8_t> byte;
  std::vector<uint16_t> depth;  // 1: the first byte of a token
  std::vector<uint32_t> end;    // behind the node's subtree
  std::vector<int32_t>
      token;  // that ends here; kNone; or of several: kSeveral - index into `several`
  std::vector<std::vector<int32_t>> several;
  uint16_t deepest = 0;
  static constexpr int32_t kNone = -1;
  static constexpr int32_t kSeveral = -2;
  size_t size() const { return byte.size(); }
};

// The tokens that lie within a lexical state, and where tokens go on behind it.
struct LexicalMask {
  std::optional<TokenMask> many;  // or, when they are few:
  std::vector<int32_t> few;
  struct Border {
    std::vector<uint16_t> members;  // which of the state's lexemes end there
    std::vector<uint32_t> nodes;    // those of the trie with children
  };
  std::vector<Border> borders;
  bool rest_only = false;  // the nodes are of the trie of tokens that are no plain text
  size_t bytes() const;
};

class Vocabulary {
 public:
  explicit Vocabulary(VocabularyTable table, size_t cache_bytes = size_t{64} << 20);

  size_t size() const { return table_.bytes.size(); }
  std::string_view bytes(int32_t token) const { return table_.bytes[static_cast<size_t>(token)]; }
  const std::vector<int32_t>& end_of_generation() const { return table_.end_of_generation; }
  bool ends_generation(int32_t token) const { return ends_.has(token); }
  std::optional<int32_t> find_special(std::string_view name) const;
  const TokenTrie& trie() const { return trie_; }
  // Plain text: characters that a JSON string holds as they are. The trie of all other tokens, and
  // the plain tokens of at most `characters`.
  const TokenTrie& rest() const { return rest_; }
  const TokenMask& plain(uint32_t characters) const;
  // Whether a token begins with `text` and goes on.
  bool extends(std::string_view text, const TokenMask& among) const;

  // Masks of lexical states by what they may read: shared by all grammars. The oldest go when they
  // take too much.
  std::shared_ptr<const LexicalMask> find_mask(const Hash128& key) const;
  void keep_mask(const Hash128& key, std::shared_ptr<const LexicalMask> mask) const;

 private:
  struct KeyHash {
    size_t operator()(const Hash128& key) const { return key.low; }
  };
  struct Kept {
    Hash128 key;
    std::shared_ptr<const LexicalMask> mask;
  };
  VocabularyTable table_;
  TokenMask ends_;
  TokenTrie trie_;
  TokenTrie rest_;
  std::vector<TokenMask> plain_;  // by characters; the last: any number
  std::unordered_map<std::string, int32_t> special_;
  size_t cache_limit_;
  mutable std::mutex mutex_;      // of what follows
  mutable std::list<Kept> kept_;  // newest first
  mutable std::unordered_map<Hash128, std::list<Kept>::iterator, KeyHash> index_;
  mutable size_t kept_bytes_ = 0;
};

}  // namespace tandem::grammar
