// Digests: SHA-256 where identity matters (tenants may be hostile), XXH3 where only accidents do.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tandem::numerics {

using Digest = std::array<std::byte, 32>;

// Incremental SHA-256. Not thread-safe; movable. After finish() the object starts a new message.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void update(std::span<const std::byte> bytes);
  Digest finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

Digest sha256(std::span<const std::byte> bytes);

// 64-bit XXH3 with the default seed. Fast, not collision-resistant against an adversary.
uint64_t xxh3(std::span<const std::byte> bytes);

// Lower-case hexadecimal, 64 characters.
std::string to_hex(const Digest& digest);
// Out of that; nothing when the text is another.
std::optional<Digest> from_hex(std::string_view text);

}  // namespace tandem::numerics
