#include "base/environment.h"

#include <cstdlib>

#include <sys/un.h>

namespace tandem {

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string socket_folder(size_t name_bytes) {
  constexpr size_t kMost = sizeof(sockaddr_un::sun_path) - 1;
  const std::string folder = environment("TMPDIR");
  return !folder.empty() && folder.size() + 1 + name_bytes <= kMost ? folder : "/tmp";
}

}  // namespace tandem
