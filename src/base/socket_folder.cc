#include "base/socket_folder.h"

#include <cstdlib>

#include <sys/un.h>

namespace tandem {

std::string socket_folder(size_t name_bytes) {
  constexpr size_t kMost = sizeof(sockaddr_un::sun_path) - 1;
  const char* const told = std::getenv("TMPDIR");
  const std::string folder = told != nullptr && *told != '\0' ? told : "/tmp";
  return folder.size() + 1 + name_bytes <= kMost ? folder : "/tmp";
}

}  // namespace tandem
