// ContentId: the identity of a block of tokens (DESIGN I5). SHA-256 chained over parent, tokens and
// typed, length-prefixed extras, from a root that digests the KV lineage, the block size and the
// tenant salt.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::protocol {

struct ContentId {
  std::array<std::byte, 32> bytes{};
  auto operator<=>(const ContentId&) const = default;
  std::string hex() const;
};

struct ContentIdHash {
  size_t operator()(const ContentId& id) const {
    size_t value;
    std::memcpy(&value, id.bytes.data(), sizeof value);
    return value;
  }
};

// `lineage` names architecture, tokenizer and weights revision (for a GGUF: the file's digest,
// hex).
ContentId root_content_id(std::string_view lineage, int32_t block_tokens, std::string_view salt);

enum class ExtraKind : uint8_t { kAdapter = 1, kMediaDigest = 2 };
struct Extra {
  ExtraKind kind;
  std::string value;
};

// Identity of the block that follows `parent` and holds exactly these tokens.
ContentId next_content_id(const ContentId& parent, std::span<const int32_t> tokens,
                          std::span<const Extra> extras = {});

// Ids of every full block of `tokens`, in order; `extras` are part of each.
std::vector<ContentId> content_ids(const ContentId& root, std::span<const int32_t> tokens,
                                   int32_t block_tokens, std::span<const Extra> extras = {});

}  // namespace tandem::protocol
