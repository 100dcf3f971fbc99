// HandoffDigests: what a handoff proves about bytes (DESIGN I4). The sender describes every layer
// of every block with its PUSH; the receiver compares what arrived, and keeps the digests of whole
// pages for its own cache.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>

#include "engine/cache_guard.h"
#include "kv/handoff/receive_handoff.h"
#include "kv/integrity/integrity.h"
#include "kv/integrity/page_digest.h"

namespace tandem::worker {

// One layer of one block.
struct BlockPart {
  int32_t layer = 0;
  int64_t block = 0;
  int32_t length = 0;  // tokens
};

class HandoffDigests {
 public:
  HandoffDigests(kv::DigestShape shape, kv::IntegrityLevel level, kv::KvFaults faults)
      : shape_(std::move(shape)), level_(level), faults_(faults) {}

  bool on() const { return level_ == kv::IntegrityLevel::kFull; }
  // Whether arrived() does anything.
  bool looks() const { return on() || faults_.kind != kv::KvFault::kNone; }
  // Tokens of a block of a prompt of `tokens`.
  int32_t length(int64_t block, size_t tokens) const;
  uint64_t of(const BlockPart& part, std::span<const std::byte> bytes) const;
  // The bytes of a part as they came, in the sender's form; `described`: the sender's digest, when
  // it sent one. Level full: `found` is set to what the bytes have.
  kv::CopyResult arrived(const kv::DigestShape& sender, const BlockPart& part,
                         std::span<std::byte> bytes, std::optional<uint64_t> described,
                         uint64_t& found);

 private:
  void plant(std::span<std::byte> bytes);

  kv::DigestShape shape_;
  kv::IntegrityLevel level_;
  std::mutex mutex_;  // faults_
  kv::KvFaults faults_;
};

}  // namespace tandem::worker
