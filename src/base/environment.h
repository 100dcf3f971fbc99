// What the process's environment says.
#pragma once

#include <cstddef>
#include <string>

namespace tandem {

// A variable's value; empty when it is not set.
std::string environment(const char* name);

// Where Unix sockets of this user's processes lie: $TMPDIR; /tmp where there is none, or where its
// name leaves no room in a socket's address (107 bytes on Linux) for a slash and `name_bytes` more.
std::string socket_folder(size_t name_bytes);

}  // namespace tandem
