// HMAC-SHA256 (RFC 2104), for proofs of a shared secret; comparison in constant time.
#pragma once

#include <string>
#include <string_view>

namespace tandem::numerics {

std::string hmac_sha256(std::string_view key, std::string_view message);  // 32 bytes
bool equal_constant_time(std::string_view a, std::string_view b);
std::string random_bytes(size_t count);  // from the operating system
std::string random_hex(size_t digits);

}  // namespace tandem::numerics
