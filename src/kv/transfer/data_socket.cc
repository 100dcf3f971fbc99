#include "kv/transfer/data_socket.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

namespace tandem::kv {
namespace {

TimePoint now() { return std::chrono::steady_clock::now(); }

DataSocket::Io of_system(ssize_t result) {
  if (result > 0) return {DataSocket::Io::kBytes, static_cast<size_t>(result)};
  if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
    return {DataSocket::Io::kLater, 0};
  return {};
}

}  // namespace

DataSocket::DataSocket(int file) : file_(file) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(kTick).count();
  const timeval tick{0, us};
  const int one = 1;
  setsockopt(file_, SOL_SOCKET, SO_RCVTIMEO, &tick, sizeof tick);
  setsockopt(file_, SOL_SOCKET, SO_SNDTIMEO, &tick, sizeof tick);
  setsockopt(file_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

DataSocket::~DataSocket() {
  SSL_free(ssl_);
  close(file_);
}

bool DataSocket::start_tls(const TlsContext& tls, const std::string& host, TimePoint until) {
  ssl_ = SSL_new(tls.get());
  if (ssl_ == nullptr || SSL_set_fd(ssl_, file_) != 1) return false;
  if (!host.empty()) require_host(ssl_, host);
  while (now() < until) {
    ERR_clear_error();
    const int result = host.empty() ? SSL_accept(ssl_) : SSL_connect(ssl_);
    if (result == 1) return true;
    if (of_tls(result).kind == Io::kEnd) return false;
  }
  return false;
}

DataSocket::Io DataSocket::of_tls(int result) {
  if (result > 0) return {Io::kBytes, static_cast<size_t>(result)};
  const int error = SSL_get_error(ssl_, result);
  return {error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? Io::kLater : Io::kEnd, 0};
}

DataSocket::Io DataSocket::read_some(const iovec* pieces, int count) {
  if (ssl_ != nullptr) {
    ERR_clear_error();
    const size_t most = std::min<size_t>(pieces->iov_len, size_t{1} << 30);
    return of_tls(SSL_read(ssl_, pieces->iov_base, static_cast<int>(most)));
  }
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces);
  message.msg_iovlen = static_cast<size_t>(count);
  return of_system(recvmsg(file_, &message, MSG_WAITALL));
}

DataSocket::Io DataSocket::write_some(const iovec* pieces, int count, bool more) {
  if (ssl_ != nullptr) {
    ERR_clear_error();
    const size_t most = std::min<size_t>(pieces->iov_len, size_t{1} << 30);
    return of_tls(SSL_write(ssl_, pieces->iov_base, static_cast<int>(most)));
  }
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces);
  message.msg_iovlen = static_cast<size_t>(count);
  return of_system(sendmsg(file_, &message, MSG_NOSIGNAL | (more ? MSG_MORE : 0)));
}

DataSocket::Io DataSocket::send_file(int file, uint64_t offset, size_t bytes) {
  auto at = static_cast<off_t>(offset);
  return of_system(sendfile(file_, file, &at, bytes));
}

bool DataSocket::read_all(void* into, size_t bytes, TimePoint until) {
  auto* at = static_cast<char*>(into);
  while (bytes > 0) {
    const iovec piece{at, bytes};
    const Io io = read_some(&piece, 1);
    if (io.kind == Io::kEnd || (io.kind == Io::kLater && now() >= until)) return false;
    at += io.bytes;
    bytes -= io.bytes;
  }
  return true;
}

bool DataSocket::write_all(const void* from, size_t bytes, TimePoint until, bool more) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const iovec piece{const_cast<char*>(at), bytes};
    const Io io = write_some(&piece, 1, more);
    if (io.kind == Io::kEnd || (io.kind == Io::kLater && now() >= until)) return false;
    at += io.bytes;
    bytes -= io.bytes;
  }
  return true;
}

bool DataSocket::send_file_all(int file, uint64_t offset, size_t bytes, TimePoint until) {
  while (bytes > 0) {
    const Io io = send_file(file, offset, bytes);
    if (io.kind == Io::kEnd || (io.kind == Io::kLater && now() >= until)) return false;
    offset += io.bytes;
    bytes -= io.bytes;
  }
  return true;
}

void DataSocket::shut_down() { shutdown(file_, SHUT_RDWR); }

}  // namespace tandem::kv
