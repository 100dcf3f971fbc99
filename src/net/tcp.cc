#include <cerrno>
#include <memory>
#include <utility>

#include <boost/asio/ip/tcp.hpp>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/stream.h"

namespace tandem::net {

namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;

// Asio leaves descriptors open across exec: a worker that `tandem up` starts would hold our
// sockets.
void close_on_exec(int descriptor) { ::fcntl(descriptor, F_SETFD, FD_CLOEXEC); }

class TcpStream final : public Stream {
 public:
  explicit TcpStream(tcp::socket socket) : socket_(std::move(socket)) {
    close_on_exec(socket_.native_handle());
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    socket_.non_blocking(true, ignored);
  }

  IoResult try_read(char* into, size_t size) override {
    while (true) {
      const ssize_t got = ::recv(socket_.native_handle(), into, size, 0);
      if (got > 0) return {IoResult::Kind::kDone, static_cast<size_t>(got)};
      if (got == 0) return {IoResult::Kind::kEnd, 0};
      if (errno != EINTR) return blocked_or_failed();
    }
  }

  IoResult try_write(const iovec* pieces, int count) override {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces);
    message.msg_iovlen = static_cast<size_t>(count);
    while (true) {
      const ssize_t put = ::sendmsg(socket_.native_handle(), &message, MSG_NOSIGNAL);
      if (put >= 0) return {IoResult::Kind::kDone, static_cast<size_t>(put)};
      if (errno != EINTR) return blocked_or_failed();
    }
  }

  void wait_readable(std::function<void()> action) override {
    socket_.async_wait(tcp::socket::wait_read,
                       [action = std::move(action)](const error_code&) { action(); });
  }

  void wait_writable(std::function<void()> action) override {
    socket_.async_wait(tcp::socket::wait_write,
                       [action = std::move(action)](const error_code&) { action(); });
  }

  void shutdown_send() override {
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
  }

  void close(bool reset) override {
    error_code ignored;
    if (reset) socket_.set_option(boost::asio::socket_base::linger(true, 0), ignored);
    socket_.close(ignored);
  }

  std::string remote() const override {
    error_code error;
    const auto endpoint = socket_.remote_endpoint(error);
    return error ? std::string()
                 : endpoint.address().to_string() + ":" + std::to_string(endpoint.port());
  }

 private:
  static IoResult blocked_or_failed() {
    const bool blocked = errno == EAGAIN || errno == EWOULDBLOCK;
    return {blocked ? IoResult::Kind::kWouldBlock : IoResult::Kind::kFailed, 0};
  }

  tcp::socket socket_;
};

class TcpListener final : public Listener {
 public:
  explicit TcpListener(Reactor& reactor) : acceptor_(reactor.context()) {}

  Status open(const std::string& host, uint16_t port) {
    error_code error;
    const auto address =
        boost::asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, error);
    if (error)
      return make_error(400, "bad_address", "'" + host + "' is not an IP address to listen on");
    const tcp::endpoint endpoint(address, port);
    acceptor_.open(endpoint.protocol(), error);
    if (!error) close_on_exec(acceptor_.native_handle());
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(4096, error);
    if (error) {
      return make_error(
          500, "listen_failed",
          "cannot listen on " + host + ":" + std::to_string(port) + ": " + error.message());
    }
    return {};
  }

  uint16_t port() const override {
    error_code error;
    return acceptor_.local_endpoint(error).port();
  }

  void accept(std::function<void(std::unique_ptr<Stream>)> action) override {
    acceptor_.async_accept(
        [action = std::move(action)](const error_code& error, tcp::socket socket) {
          action(error ? nullptr : std::make_unique<TcpStream>(std::move(socket)));
        });
  }

  void close() override {
    error_code ignored;
    acceptor_.close(ignored);
  }

 private:
  tcp::acceptor acceptor_;
};

// Waiting for a connection arms its descriptor for writability too, and Asio leaves that armed:
// each wait for bytes, which arms it anew, would be answered at once by an event that nobody asked
// for. Registered anew, it is armed for reading alone until a write has to wait.
// After an error the socket is of no more use; the next attempt closes it.
void register_anew(tcp::socket& socket, const tcp& protocol, error_code& error) {
  const auto descriptor = socket.release(error);
  if (error) return;
  socket.assign(protocol, descriptor, error);
  if (error) ::close(descriptor);
}

// One attempt to connect: resolve (names only), try the addresses in order, stop at the limit.
class Connect final : public std::enable_shared_from_this<Connect> {
 public:
  Connect(Reactor& reactor, ConnectAction action)
      : resolver_(reactor.context()),
        socket_(reactor.context()),
        action_(std::move(action)),
        deadline_(reactor, [this] {
          stop(make_error(504, "connect_timeout", "the connection took too long"));
        }) {}

  void start(const std::string& host, uint16_t port, Duration limit) {
    deadline_.arm(limit);
    error_code error;
    const auto address =
        boost::asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, error);
    if (!error) {
      endpoints_.emplace_back(address, port);
      return try_next(error_code());
    }
    resolver_.async_resolve(host, std::to_string(port),
                            [self = shared_from_this()](const error_code& failed,
                                                        const tcp::resolver::results_type& found) {
                              if (self->done_) return self->finish();
                              for (const auto& entry : found)
                                self->endpoints_.push_back(entry.endpoint());
                              self->try_next(failed);
                            });
  }

  void cancel() { stop(make_error(499, "cancelled", "the call was cancelled")); }

 private:
  void stop(tl::unexpected<Error> error) {
    if (done_) return;
    done_ = true;
    result_ = std::move(error);
    error_code ignored;
    resolver_.cancel();
    socket_.close(ignored);  // the pending operation ends and calls finish()
  }

  void try_next(const error_code& last) {
    if (next_ == endpoints_.size()) {
      done_ = true;
      const bool refused = last == boost::asio::error::connection_refused;
      result_ = make_error(502, refused ? "connect_refused" : "connect_failed",
                           "cannot connect: " + last.message());
      return finish();
    }
    error_code ignored;
    socket_.close(ignored);
    socket_.async_connect(endpoints_[next_++], [self = shared_from_this()](error_code error) {
      if (self->done_) return self->finish();
      if (!error) register_anew(self->socket_, self->endpoints_[self->next_ - 1].protocol(), error);
      if (error) return self->try_next(error);
      self->done_ = true;
      self->result_ = std::make_unique<TcpStream>(std::move(self->socket_));
      self->finish();
    });
  }

  void finish() {
    deadline_.disarm();
    if (action_) std::exchange(action_, nullptr)(std::move(result_));
  }

  tcp::resolver resolver_;
  tcp::socket socket_;
  ConnectAction action_;
  Deadline deadline_;
  std::vector<tcp::endpoint> endpoints_;
  size_t next_ = 0;
  bool done_ = false;
  Result<std::unique_ptr<Stream>> result_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<Listener>> listen_tcp(Reactor& reactor, const std::string& host,
                                             uint16_t port) {
  auto listener = std::make_unique<TcpListener>(reactor);
  TANDEM_CHECK(listener->open(host, port));
  return listener;
}

std::function<void()> connect_tcp(Reactor& reactor, const std::string& host, uint16_t port,
                                  Duration limit, ConnectAction action) {
  auto connect = std::make_shared<Connect>(reactor, std::move(action));
  connect->start(host, port, limit);
  return [weak = std::weak_ptr<Connect>(connect)] {
    if (const auto alive = weak.lock()) alive->cancel();
  };
}

}  // namespace tandem::net
