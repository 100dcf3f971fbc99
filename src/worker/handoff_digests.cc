#include "worker/handoff_digests.h"

#include <algorithm>
#include <cstring>

namespace tandem::worker {

int32_t HandoffDigests::length(int64_t block, size_t tokens) const {
  const int64_t left = static_cast<int64_t>(tokens) - block * shape_.block_tokens;
  return static_cast<int32_t>(std::clamp<int64_t>(left, 1, shape_.block_tokens));
}

uint64_t HandoffDigests::of(const BlockPart& part, std::span<const std::byte> bytes) const {
  return kv::layer_digest(shape_, bytes, part.layer, part.block, part.length);
}

kv::CopyResult HandoffDigests::arrived(const kv::DigestShape& sender, const BlockPart& part,
                                       std::span<std::byte> bytes,
                                       std::optional<uint64_t> described, uint64_t& found) {
  if (faults_.kind != kv::KvFault::kNone) plant(bytes);
  if (!on()) return kv::CopyResult::kIntact;
  found = kv::layer_digest(sender, bytes, part.layer, part.block, part.length);
  return described && *described != found ? kv::CopyResult::kCorrupt : kv::CopyResult::kIntact;
}

void HandoffDigests::plant(std::span<std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  if (faults_.due(kv::KvFault::kFlipBitInCopy)) bytes[shape_.element_bytes - 1] ^= std::byte{0x40};
  if (faults_.due(kv::KvFault::kLostLayerInCopy)) std::memset(bytes.data(), 0, bytes.size());
}

}  // namespace tandem::worker
