// Where Unix sockets of this user's processes lie.
#pragma once

#include <cstddef>
#include <string>

namespace tandem {

// $TMPDIR; /tmp where there is none, or where its name leaves no room in a socket's address (107
// bytes on Linux) for a slash and `name_bytes` more.
std::string socket_folder(size_t name_bytes);

}  // namespace tandem
