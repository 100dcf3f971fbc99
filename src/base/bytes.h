// Byte counts for people.
#pragma once

#include <cstddef>
#include <string>

namespace tandem {

// "12.3 MiB"; exact below 1 KiB.
std::string format_bytes(size_t bytes);

}  // namespace tandem
