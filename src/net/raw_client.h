// RawClient: a blocking loopback socket for tests that must see and send exact bytes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/reactor.h"

namespace tandem::net {

class RawClient {
 public:
  explicit RawClient(uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~RawClient() { close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool connected() const { return connected_; }

  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t put = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (put <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(put));
    }
    return true;
  }

  // Reads until `text()` holds `pattern`, the peer closes, or the limit passes.
  bool read_until(std::string_view pattern, int limit_ms = 5000) {
    return read_while([&] { return text_.find(pattern) == std::string::npos; }, limit_ms);
  }
  // Reads until the peer closes; false when it does not in time.
  bool read_to_end(int limit_ms = 5000) {
    read_while([] { return true; }, limit_ms);
    return ended_ || reset_;
  }

  const std::string& text() const { return text_; }
  std::string take() { return std::exchange(text_, std::string()); }
  bool ended() const { return ended_; }
  bool was_reset() const { return reset_; }
  int fd() const { return fd_; }

  void shutdown_send() { ::shutdown(fd_, SHUT_WR); }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  void reset() {
    const linger hard{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close();
  }

 private:
  template <typename More>
  bool read_while(More more, int limit_ms) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(limit_ms);
    while (more()) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          until - std::chrono::steady_clock::now());
      if (left.count() <= 0 || ended_ || reset_) return false;
      pollfd watch{fd_, POLLIN, 0};
      if (::poll(&watch, 1, static_cast<int>(left.count())) <= 0) continue;
      char bytes[65536];
      const ssize_t got = ::recv(fd_, bytes, sizeof bytes, 0);
      if (got > 0) {
        text_.append(bytes, static_cast<size_t>(got));
      } else {
        (got == 0 ? ended_ : reset_) = true;
      }
    }
    return true;
  }

  int fd_;
  bool connected_ = false;
  bool ended_ = false;
  bool reset_ = false;
  std::string text_;
};

// A reactor on its own thread; stops and joins at the end. Objects that live on the reactor are
// made and destroyed through on_reactor().
class ReactorThread {
 public:
  ReactorThread() : thread_([this] { reactor_.run(); }) {}
  ~ReactorThread() { stop(); }
  Reactor& reactor() { return reactor_; }

  void stop() {
    if (!thread_.joinable()) return;
    reactor_.post([this] { reactor_.stop(); });
    thread_.join();
  }

  // Runs `function` on the reactor's thread and waits for it.
  template <typename Function>
  void on_reactor(Function function) {
    std::atomic<bool> done = false;
    reactor_.post([&] {
      function();
      done = true;
      done.notify_all();
    });
    done.wait(false);
  }

 private:
  Reactor reactor_;
  std::thread thread_;
};

}  // namespace tandem::net
