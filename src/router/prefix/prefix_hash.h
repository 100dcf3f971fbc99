// Keys of blocks: what the router calls a run of tokens that follows certain other tokens. Chained,
// so that a key stands for everything before it too. The router makes them from token ids itself,
// whatever the engines call their blocks. 56 bits, from XXH3 with a secret of this process: two
// blocks of ten million have one key with probability 1e-3, and then cost a wrong guess.
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace tandem::router {

using BlockKey = uint64_t;  // below 2^56, never zero

class PrefixHasher {
 public:
  explicit PrefixHasher(uint64_t secret) : secret_(secret) {}

  // What the first block follows.
  BlockKey root(std::string_view model, std::string_view adapter, int32_t block_tokens) const;
  // `extra`: what else this block's identity depends on (kv_events.h), usually nothing.
  static BlockKey next(BlockKey parent, std::span<const int32_t> tokens,
                       std::string_view extra = {});
  // Of every full block; `extra` is the first block's.
  static std::vector<BlockKey> of_tokens(BlockKey root, std::span<const int32_t> tokens,
                                         int32_t block_tokens, std::string_view extra = {});
  // Of every full run of `chunk` bytes, where there are no tokens.
  static std::vector<BlockKey> of_bytes(BlockKey root, std::string_view bytes, size_t chunk);

 private:
  uint64_t secret_;
};

}  // namespace tandem::router
