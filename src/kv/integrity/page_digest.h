// Digests of KV over logical coordinates (DESIGN I4): layer, block, KV head, the bytes of K and V
// of that head, and how many of the block's tokens they cover.
//
// A head's digest is XXH3 of its bytes in the canonical order (layout id 1), mixed with its
// coordinates and the length; a layer's is the sum of its heads', so that ranks that hold some of
// the heads each add theirs. Where the page lies does not matter, and bytes of tokens beyond the
// length do not either. Against accidents, not against an adversary.
//
// Cost: one pass over the bytes at the speed of XXH3 (about the memory's).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tandem::kv {

struct DigestShape {
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_tokens = 0;
  size_t element_bytes = 0;
  size_t scale_bytes = 0;  // of each token in each plane, behind the plane's values
  // [group][slot in the page]: the layer of the model.
  std::vector<std::vector<int32_t>> layers;

  size_t value_bytes() const {
    return static_cast<size_t>(head_dim) * static_cast<size_t>(block_tokens) * element_bytes;
  }
  size_t plane_bytes() const {
    return value_bytes() + scale_bytes * static_cast<size_t>(block_tokens);
  }
  size_t layer_bytes() const { return 2 * plane_bytes() * static_cast<size_t>(kv_heads); }
};

// `bytes`: the layer's part of the page. `length`: tokens of the block that are there, 1 ..
// block_tokens. `heads`: [first, last) of the model's, which lie one behind the other in `bytes`.
uint64_t layer_digest(const DigestShape& shape, std::span<const std::byte> bytes, int32_t layer,
                      int64_t block, int32_t length, int32_t first_head, int32_t last_head);
uint64_t layer_digest(const DigestShape& shape, std::span<const std::byte> bytes, int32_t layer,
                      int64_t block, int32_t length);

// One digest for each layer of a whole block's page in `group`.
std::vector<uint64_t> page_digests(const DigestShape& shape, const std::byte* page, int32_t group,
                                   int64_t block);

}  // namespace tandem::kv
