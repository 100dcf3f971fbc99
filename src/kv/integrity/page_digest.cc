#include "kv/integrity/page_digest.h"

#include <cassert>

#include "numerics/digest.h"

namespace tandem::kv {
namespace {

// A bijection that spreads every bit (the finalizer of SplitMix64).
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

// The first `length` tokens of a plane: K is [dim][token], V is [token][dim].
uint64_t part_of_plane(const DigestShape& shape, std::span<const std::byte> plane, bool transposed,
                       size_t length) {
  const auto tokens = static_cast<size_t>(shape.block_tokens);
  const auto dims = static_cast<size_t>(shape.head_dim);
  const size_t used = length * shape.element_bytes;
  uint64_t digest = 0;
  if (transposed) {
    for (size_t dim = 0; dim < dims; ++dim) {
      digest =
          mix(digest ^ numerics::xxh3(plane.subspan(dim * tokens * shape.element_bytes, used)));
    }
  } else {
    digest = numerics::xxh3(plane.first(used * dims));
  }
  if (shape.scale_bytes == 0) return digest;
  return mix(digest ^
             numerics::xxh3(plane.subspan(shape.value_bytes(), length * shape.scale_bytes)));
}

uint64_t head_bytes(const DigestShape& shape, std::span<const std::byte> head, int32_t length) {
  if (length == shape.block_tokens) return numerics::xxh3(head);
  const size_t plane = shape.plane_bytes();
  const auto tokens = static_cast<size_t>(length);
  return mix(part_of_plane(shape, head.first(plane), true, tokens)) +
         part_of_plane(shape, head.subspan(plane), false, tokens);
}

}  // namespace

uint64_t layer_digest(const DigestShape& shape, std::span<const std::byte> bytes, int32_t layer,
                      int64_t block, int32_t length, int32_t first_head, int32_t last_head) {
  const size_t stride = 2 * shape.plane_bytes();
  assert(length > 0 && length <= shape.block_tokens);
  assert(bytes.size() == stride * static_cast<size_t>(last_head - first_head));
  const uint64_t place = mix(mix(static_cast<uint64_t>(block)) ^ static_cast<uint64_t>(layer));
  uint64_t sum = 0;
  for (int32_t head = first_head; head < last_head; ++head) {
    const auto at = static_cast<size_t>(head - first_head) * stride;
    const uint64_t where =
        mix(place ^ static_cast<uint64_t>(head) << 32 ^ static_cast<uint64_t>(length));
    sum += mix(where ^ head_bytes(shape, bytes.subspan(at, stride), length));
  }
  return sum;
}

uint64_t layer_digest(const DigestShape& shape, std::span<const std::byte> bytes, int32_t layer,
                      int64_t block, int32_t length) {
  return layer_digest(shape, bytes, layer, block, length, 0, shape.kv_heads);
}

std::vector<uint64_t> page_digests(const DigestShape& shape, const std::byte* page, int32_t group,
                                   int64_t block) {
  const auto& layers = shape.layers[static_cast<size_t>(group)];
  std::vector<uint64_t> digests;
  digests.reserve(layers.size());
  for (size_t slot = 0; slot < layers.size(); ++slot) {
    digests.push_back(layer_digest(shape, {page + slot * shape.layer_bytes(), shape.layer_bytes()},
                                   layers[slot], block, shape.block_tokens));
  }
  return digests;
}

}  // namespace tandem::kv
