// floor PREFILL_PORT DECODE_PORT: a forwarder that does nothing but move bytes: each request goes
// as it came to both ports, the second one's answer goes back as it came, the first one's is
// dropped. What it costs is what any router in front of a pair must cost. One thread, epoll,
// keep-alive both ways. It edits, checks and decides nothing, so it is no router.
#include <algorithm>
#include <array>
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "http_wire.h"
#include "sockets.h"

namespace tandem::bench {
namespace {

struct Client;

// One socket: of a client, or to one of the two servers for it.
struct Socket {
  int fd = -1;
  Client* client = nullptr;
  int leg = -1;     // 0 prefill, 1 decode; negative: the client's own
  std::string out;  // what the kernel did not take
  size_t sent = 0;
  bool wants_out = false;
  MessageScanner scanner;
};

struct Client {
  Socket self;
  std::array<std::unique_ptr<Socket>, 2> legs;
  std::string request;
  bool closed = false;
};

class Floor {
 public:
  Floor(uint16_t prefill, uint16_t decode) : ports_{prefill, decode} {}

  void run() {
    uint16_t port = 0;
    const int listener = listen_on(port);
    epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    watch(epoll_, listener, EPOLLIN, nullptr, true);
    std::printf("listening on http://127.0.0.1:%u\n", port);
    std::fflush(stdout);
    std::array<epoll_event, 256> events;
    while (true) {
      const int count = ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), -1);
      for (int i = 0; i < count; ++i) {
        const epoll_event& event = events[static_cast<size_t>(i)];
        if (event.data.ptr == nullptr) {
          accept_all(listener);
        } else {
          auto& socket = *static_cast<Socket*>(event.data.ptr);
          if (socket.fd < 0) continue;
          if ((event.events & EPOLLOUT) != 0) flush(socket);
          if ((event.events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) read(socket);
        }
      }
      dead_clients_.clear();
      dead_sockets_.clear();
    }
  }

 private:
  void accept_all(int listener) {
    while (true) {
      const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) return;
      prepare(fd);
      auto client = std::make_unique<Client>();
      client->self.fd = fd;
      client->self.client = client.get();
      watch(epoll_, fd, EPOLLIN, &client->self, true);
      (void)client.release();  // its own until the connection ends
    }
  }

  void read(Socket& socket) {
    while (socket.fd >= 0) {
      const ssize_t got = ::read(socket.fd, buffer_.data(), buffer_.size());
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) return socket.client == nullptr ? forget(socket) : close_client(*socket.client);
      const std::string_view bytes(buffer_.data(), static_cast<size_t>(got));
      if (socket.leg < 0) {
        from_client(*socket.client, bytes);
      } else {
        from_leg(socket, bytes);
      }
      if (bytes.size() < buffer_.size()) return;
    }
  }

  void from_client(Client& client, std::string_view bytes) {
    client.request.append(bytes);
    client.self.scanner.feed(bytes, [](std::string_view) {});
    if (client.self.scanner.head_done() &&
        client.request.capacity() < client.self.scanner.content_length())
      client.request.reserve(client.self.scanner.content_length() + 4096);
    forward(client);
  }

  // Once the request is whole and the last one's legs have ended.
  void forward(Client& client) {
    if (!client.self.scanner.done() || client.legs[0] || client.legs[1]) return;
    for (int leg = 0; leg < 2; ++leg) {
      auto& socket = client.legs[static_cast<size_t>(leg)];
      socket = take(leg);
      socket->client = &client;
      send(*socket, client.request);
    }
    client.request.clear();
    client.self.scanner.reset();
  }

  std::unique_ptr<Socket> take(int leg) {
    auto& pool = pools_[static_cast<size_t>(leg)];
    if (!pool.empty()) {
      auto socket = std::move(pool.back());
      pool.pop_back();
      socket->scanner.reset();
      return socket;
    }
    auto socket = std::make_unique<Socket>();
    socket->fd = connect_to(ports_[static_cast<size_t>(leg)]);
    if (socket->fd < 0) fail("connect");
    socket->leg = leg;
    watch(epoll_, socket->fd, EPOLLIN, socket.get(), true);
    return socket;
  }

  // A pooled connection that its server closed.
  void forget(Socket& socket) {
    auto& pool = pools_[static_cast<size_t>(socket.leg)];
    const auto found = std::find_if(pool.begin(), pool.end(),
                                    [&](const auto& each) { return each.get() == &socket; });
    if (found == pool.end()) return;
    close_socket(socket);
    dead_sockets_.push_back(std::move(*found));
    pool.erase(found);
  }

  void from_leg(Socket& socket, std::string_view bytes) {
    if (socket.client == nullptr) return;
    Client& client = *socket.client;
    socket.scanner.feed(bytes, [](std::string_view) {});
    if (socket.leg == 1) send(client.self, bytes);
    if (socket.scanner.done() && !client.closed) {
      const auto leg = static_cast<size_t>(socket.leg);
      socket.client = nullptr;
      pools_[leg].push_back(std::move(client.legs[leg]));
      forward(client);
    }
  }

  void send(Socket& socket, std::string_view bytes) {
    if (socket.fd < 0) return;
    if (socket.out.empty()) {
      const ssize_t sent = ::write(socket.fd, bytes.data(), bytes.size());
      if (sent > 0) bytes.remove_prefix(static_cast<size_t>(sent));
    }
    if (bytes.empty()) return;
    socket.out.append(bytes);
    if (!socket.wants_out) {
      socket.wants_out = true;
      watch(epoll_, socket.fd, EPOLLIN | EPOLLOUT, &socket, false);
    }
  }

  void flush(Socket& socket) {
    const ssize_t sent =
        ::write(socket.fd, socket.out.data() + socket.sent, socket.out.size() - socket.sent);
    if (sent > 0) socket.sent += static_cast<size_t>(sent);
    if (socket.sent < socket.out.size()) return;
    socket.out.clear();
    socket.sent = 0;
    socket.wants_out = false;
    watch(epoll_, socket.fd, EPOLLIN, &socket, false);
  }

  void close_client(Client& client) {
    if (client.closed) return;
    client.closed = true;
    close_socket(client.self);
    for (auto& leg : client.legs) {
      if (!leg) continue;
      close_socket(*leg);
      dead_sockets_.push_back(std::move(leg));
    }
    dead_clients_.emplace_back(&client);  // other events of this round may name it
  }

  static void close_socket(Socket& socket) {
    ::close(socket.fd);
    socket.fd = -1;
  }

  std::array<uint16_t, 2> ports_;
  std::array<std::vector<std::unique_ptr<Socket>>, 2> pools_;
  std::vector<std::unique_ptr<Client>> dead_clients_;
  std::vector<std::unique_ptr<Socket>> dead_sockets_;
  std::array<char, 64 << 10> buffer_;
  int epoll_ = -1;
};

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "floor PREFILL_PORT DECODE_PORT\n");
    return 2;
  }
  std::signal(SIGPIPE, SIG_IGN);
  tandem::bench::raise_descriptor_limit();
  static tandem::bench::Floor floor(static_cast<uint16_t>(std::atoi(argv[1])),
                                    static_cast<uint16_t>(std::atoi(argv[2])));
  floor.run();
}
