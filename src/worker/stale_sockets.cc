#include "worker/stale_sockets.h"

#include <cerrno>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <string_view>

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace tandem::worker {

namespace {

// The process that a socket's name tells; 0 when the name is another's.
pid_t owner_of(std::string_view name) {
  constexpr std::string_view kPrefix = "tandem-";
  if (!name.starts_with(kPrefix) || !name.ends_with(".sock")) return 0;
  name.remove_prefix(kPrefix.size());
  pid_t pid = 0;
  const auto parsed = std::from_chars(name.data(), name.data() + name.size(), pid);
  if (parsed.ec != std::errc() || *parsed.ptr != '-' || pid <= 1) return 0;
  return pid;
}

bool is_our_socket(const std::string& path) {
  struct stat facts{};
  return ::lstat(path.c_str(), &facts) == 0 && S_ISSOCK(facts.st_mode) &&
         facts.st_uid == ::geteuid();
}

// Containers that share the folder do not see each other's processes: only the socket itself tells
// that nobody listens.
bool is_deserted(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return false;
  path.copy(address.sun_path, path.size());
  const int descriptor = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return false;
  const bool refused =
      ::connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 &&
      errno == ECONNREFUSED;
  ::close(descriptor);
  return refused;
}

}  // namespace

int remove_stale_sockets(const std::string& folder) {
  int removed = 0;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const pid_t pid = owner_of(entry->path().filename().string());
    if (pid == 0 || ::kill(pid, 0) == 0 || errno != ESRCH) continue;
    const std::string path = entry->path().string();
    if (is_our_socket(path) && is_deserted(path) && ::unlink(path.c_str()) == 0) ++removed;
  }
  return removed;
}

}  // namespace tandem::worker
