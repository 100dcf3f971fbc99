// TokenMask: which tokens may come next, one bit each.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

namespace tandem::grammar {

class TokenMask {
 public:
  TokenMask() = default;
  explicit TokenMask(size_t tokens) : tokens_(tokens), words_((tokens + 63) / 64) {}

  size_t tokens() const { return tokens_; }
  bool has(int32_t token) const {
    const auto at = static_cast<size_t>(token);
    return at < tokens_ && ((words_[at / 64] >> (at % 64)) & 1) != 0;
  }
  void add(int32_t token) {
    words_[static_cast<size_t>(token) / 64] |= uint64_t{1} << (token % 64);
  }
  void clear() { std::fill(words_.begin(), words_.end(), 0); }
  // `other` has as many tokens.
  void add(const TokenMask& other) {
    for (size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
  }
  size_t count() const {
    size_t total = 0;
    for (const uint64_t word : words_) total += static_cast<size_t>(std::popcount(word));
    return total;
  }
  std::span<const uint64_t> words() const { return words_; }  // bit t % 64 of word t / 64
  bool operator==(const TokenMask&) const = default;

 private:
  size_t tokens_ = 0;
  std::vector<uint64_t> words_;
};

}  // namespace tandem::grammar
