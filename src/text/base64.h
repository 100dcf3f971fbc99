// Base64 (RFC 4648), as tokenizer files use it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tandem::text {

std::string encode_base64(std::string_view bytes);
// Nothing when a character is outside the alphabet or padding is misplaced.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace tandem::text
