#include "kv/transfer/exposer_process.h"

#include <csignal>
#include <cstdlib>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kv/transfer/file_passing.h"

extern char** environ;

namespace tandem::kv {
namespace {

constexpr const char* kSubject = "TANDEM_TEST_EXPOSER";
constexpr int kSocket = 3;

// Not a test: what the child process does, until its socket closes.
TEST(ExposerProcess, DISABLED_Serve) {
  const char* name = std::getenv(kSubject);
  ASSERT_NE(name, nullptr);
  const TransportSubject* subject = find_subject(name);
  ASSERT_NE(subject, nullptr);
  const auto exposer = Exposer::start(*subject);
  ASSERT_TRUE(exposer);
  const Descriptor& descriptor = exposer->descriptor;
  const auto size = static_cast<uint32_t>(descriptor.bytes.size());
  ASSERT_EQ(write(kSocket, &size, sizeof size), ssize_t{sizeof size});
  ASSERT_EQ(write(kSocket, descriptor.bytes.data(), size), ssize_t{size});
  const char has_file = descriptor.file >= 0 ? 1 : 0;
  ASSERT_EQ(write(kSocket, &has_file, 1), 1);
  if (has_file != 0) {
    ASSERT_TRUE(send_file(kSocket, descriptor.file));
  }
  char end = 0;
  EXPECT_LE(read(kSocket, &end, 1), 0);
}

bool read_fully(int socket, void* into, size_t bytes) {
  auto* at = static_cast<char*>(into);
  while (bytes > 0) {
    pollfd waits{socket, POLLIN, 0};
    if (poll(&waits, 1, 20000) != 1) return false;
    const ssize_t got = read(socket, at, bytes);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

}  // namespace

std::unique_ptr<ExposerProcess> ExposerProcess::start(const TransportSubject& subject) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) return nullptr;
  std::unique_ptr<ExposerProcess> made(new ExposerProcess);
  made->socket_ = sockets[0];
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, sockets[1], kSocket);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  setenv(kSubject, subject.name.c_str(), 1);
  std::string program = "/proc/self/exe";
  std::string filter = "--gtest_filter=ExposerProcess.DISABLED_Serve";
  std::string disabled = "--gtest_also_run_disabled_tests";
  char* arguments[] = {program.data(), filter.data(), disabled.data(), nullptr};
  const int spawned =
      posix_spawn(&made->pid_, program.c_str(), &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(sockets[1]);
  uint32_t size = 0;
  char has_file = 0;
  if (spawned != 0 || !read_fully(made->socket_, &size, sizeof size) ||
      size > kMaxDescriptorBytes) {
    ADD_FAILURE() << "the exposing process did not start";
    return nullptr;
  }
  made->descriptor_.bytes.resize(size);
  if (!read_fully(made->socket_, made->descriptor_.bytes.data(), size) ||
      !read_fully(made->socket_, &has_file, 1)) {
    ADD_FAILURE() << "the exposing process did not say where it is";
    return nullptr;
  }
  if (has_file != 0) {
    auto file = receive_file(made->socket_);
    if (!file) {
      ADD_FAILURE() << file.error().message;
      return nullptr;
    }
    made->descriptor_.file = *file;
  }
  return made;
}

ExposerProcess::~ExposerProcess() {
  kill();
  if (socket_ >= 0) close(socket_);
  if (descriptor_.file >= 0) close(descriptor_.file);
}

void ExposerProcess::signal(int number) const {
  if (pid_ > 0) ::kill(pid_, number);
}

void ExposerProcess::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

}  // namespace tandem::kv
