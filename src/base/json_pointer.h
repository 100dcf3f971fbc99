// JSON pointers (RFC 6901), as errors name a place in a body.
#pragma once

#include <string>
#include <string_view>

namespace tandem {

// The member `key` of what `base` points to.
std::string pointer_to(std::string_view base, std::string_view key);
std::string pointer_to(std::string_view base, size_t index);

}  // namespace tandem
