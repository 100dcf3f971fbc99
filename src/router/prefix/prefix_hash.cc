#include "router/prefix/prefix_hash.h"

#include <xxhash.h>

namespace tandem::router {

namespace {

BlockKey key_of(uint64_t hash) {
  const BlockKey key = hash >> 8;
  return key == 0 ? 1 : key;
}

uint64_t digest(std::string_view bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace

BlockKey PrefixHasher::root(std::string_view model, std::string_view adapter,
                            int32_t block_tokens) const {
  const uint64_t of_model = digest(model, secret_);
  const uint64_t of_adapter = digest(adapter, of_model + 1);
  return key_of(XXH3_64bits_withSeed(&block_tokens, sizeof block_tokens, of_adapter));
}

BlockKey PrefixHasher::next(BlockKey parent, std::span<const int32_t> tokens,
                            std::string_view extra) {
  const uint64_t seed = extra.empty() ? parent : digest(extra, parent);
  return key_of(XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), seed));
}

std::vector<BlockKey> PrefixHasher::of_tokens(BlockKey root, std::span<const int32_t> tokens,
                                              int32_t block_tokens, std::string_view extra) {
  std::vector<BlockKey> keys;
  if (block_tokens <= 0) return keys;
  const auto block = static_cast<size_t>(block_tokens);
  keys.reserve(tokens.size() / block);
  BlockKey parent = root;
  for (size_t at = 0; at + block <= tokens.size(); at += block) {
    parent = next(parent, tokens.subspan(at, block), at == 0 ? extra : std::string_view());
    keys.push_back(parent);
  }
  return keys;
}

std::vector<BlockKey> PrefixHasher::of_bytes(BlockKey root, std::string_view bytes, size_t chunk) {
  std::vector<BlockKey> keys;
  keys.reserve(bytes.size() / chunk);
  BlockKey parent = root;
  for (size_t at = 0; at + chunk <= bytes.size(); at += chunk) {
    parent = key_of(digest(bytes.substr(at, chunk), parent));
    keys.push_back(parent);
  }
  return keys;
}

}  // namespace tandem::router
