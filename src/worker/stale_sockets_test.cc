#include "worker/stale_sockets.h"

#include <cstring>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tandem::worker {
namespace {

int bound_socket(const std::string& path) {
  const int descriptor = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  EXPECT_EQ(::bind(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return descriptor;
}

void make_socket(const std::string& path) { ::close(bound_socket(path)); }

TEST(StaleSockets, OnlyThoseOfDeadProcessesGo) {
  char pattern[] = "/tmp/stale-XXXXXX";
  const std::string folder = ::mkdtemp(pattern);
  const pid_t dead = ::fork();
  if (dead == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(dead, nullptr, 0), dead);
  const std::string gone = folder + "/tandem-" + std::to_string(dead) + "-abcd.sock";
  const std::string alive = folder + "/tandem-" + std::to_string(::getpid()) + "-abcd.sock";
  const std::string other = folder + "/other-" + std::to_string(dead) + "-abcd.sock";
  const std::string file = folder + "/tandem-" + std::to_string(dead) + "-file.sock";
  make_socket(gone);
  make_socket(alive);
  make_socket(other);
  std::ofstream(file) << "not a socket";
  // Of a process in another container, whose number is nobody's here.
  const std::string elsewhere = folder + "/tandem-" + std::to_string(dead) + "-live.sock";
  const int listening = bound_socket(elsewhere);
  ASSERT_EQ(::listen(listening, 1), 0);
  EXPECT_EQ(remove_stale_sockets(folder), 1);
  EXPECT_FALSE(std::filesystem::exists(gone));
  for (const auto& kept : {alive, other, file, elsewhere})
    EXPECT_TRUE(std::filesystem::exists(kept)) << kept;
  ::close(listening);
  EXPECT_EQ(remove_stale_sockets(folder), 1);
  EXPECT_EQ(remove_stale_sockets(folder + "/nothing"), 0);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tandem::worker
