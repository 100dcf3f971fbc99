#include "kv/transfer/file_passing.h"

#include <cerrno>
#include <cstring>
#include <string>

#include <sys/socket.h>

namespace tandem::kv {
namespace {

tl::unexpected<Error> lost(std::string message) {
  return make_error(502, "connect_failed", std::move(message));
}

}  // namespace

Status send_file(int socket, int file) {
  char byte = 'A';
  iovec piece{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &file, sizeof file);
  if (sendmsg(socket, &message, MSG_NOSIGNAL) != 1)
    return lost(std::string("The arena cannot be passed: ") + std::strerror(errno));
  return {};
}

Result<int> receive_file(int socket) {
  char byte = 0;
  iovec piece{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1)
    return lost("The peer closed instead of passing its arena.");
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS ||
      header->cmsg_len != CMSG_LEN(sizeof(int))) {
    return make_error(502, "handoff_protocol", "The peer passed no arena.");
  }
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
  return descriptor;
}

}  // namespace tandem::kv
