#include "events/zmq_socket.h"

#include <array>
#include <atomic>
#include <cstring>

#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

namespace tandem::events {

namespace {

tl::unexpected<Error> zmq_error(const std::string& what) {
  return make_error(500, "zeromq", what + ": " + zmq_strerror(zmq_errno()));
}

int type_of(SocketKind kind) {
  switch (kind) {
    case SocketKind::kPub:
      return ZMQ_PUB;
    case SocketKind::kSub:
      return ZMQ_SUB;
    case SocketKind::kRouter:
      return ZMQ_ROUTER;
    default:
      return ZMQ_DEALER;
  }
}

}  // namespace

ZmqContext::ZmqContext() : context_(zmq_ctx_new()) {}

ZmqContext::~ZmqContext() { zmq_ctx_term(context_); }

Result<std::unique_ptr<ZmqSocket>> ZmqSocket::open(const ZmqContext& context, SocketKind kind) {
  void* const socket = zmq_socket(context.get(), type_of(kind));
  if (socket == nullptr) return zmq_error("a socket cannot be made");
  std::unique_ptr<ZmqSocket> made(new ZmqSocket(context, socket));
  const int none = 0;
  TANDEM_CHECK(made->set(ZMQ_LINGER, &none, sizeof none));
  // Dead peers are noticed, and connections are tried again, within seconds.
  const int beat = 2000;
  const int patience = 6000;
  TANDEM_CHECK(made->set(ZMQ_HEARTBEAT_IVL, &beat, sizeof beat));
  TANDEM_CHECK(made->set(ZMQ_HEARTBEAT_TIMEOUT, &patience, sizeof patience));
  const int first_try = 50;
  const int last_try = 2000;
  TANDEM_CHECK(made->set(ZMQ_RECONNECT_IVL, &first_try, sizeof first_try));
  TANDEM_CHECK(made->set(ZMQ_RECONNECT_IVL_MAX, &last_try, sizeof last_try));
  return made;
}

ZmqSocket::~ZmqSocket() {
  if (monitor_ != nullptr) {
    zmq_socket_monitor(socket_, nullptr, 0);
    zmq_close(monitor_);
  }
  zmq_close(socket_);
}

Status ZmqSocket::set(int option, const void* value, size_t size) {
  if (zmq_setsockopt(socket_, option, value, size) != 0) return zmq_error("a socket's option");
  return {};
}

Status ZmqSocket::bound(int messages, int64_t message_bytes) {
  TANDEM_CHECK(set(ZMQ_SNDHWM, &messages, sizeof messages));
  TANDEM_CHECK(set(ZMQ_RCVHWM, &messages, sizeof messages));
  return set(ZMQ_MAXMSGSIZE, &message_bytes, sizeof message_bytes);
}

Status ZmqSocket::bind(const std::string& endpoint) {
  if (zmq_bind(socket_, endpoint.c_str()) != 0)
    return zmq_error("the endpoint '" + endpoint + "' cannot be bound");
  return {};
}

Status ZmqSocket::connect(const std::string& endpoint) {
  if (zmq_connect(socket_, endpoint.c_str()) != 0)
    return zmq_error("the endpoint '" + endpoint + "' cannot be connected to");
  return {};
}

Status ZmqSocket::subscribe(std::string_view topic) {
  return set(ZMQ_SUBSCRIBE, topic.data(), topic.size());
}

std::string ZmqSocket::bound_endpoint() const {
  std::array<char, 256> text{};
  size_t size = text.size();
  if (zmq_getsockopt(socket_, ZMQ_LAST_ENDPOINT, text.data(), &size) != 0) return "";
  return text.data();
}

bool ZmqSocket::send(std::span<const std::string_view> frames) {
  for (size_t i = 0; i < frames.size(); ++i) {
    const int more = i + 1 < frames.size() ? ZMQ_SNDMORE : 0;
    if (zmq_send(socket_, frames[i].data(), frames[i].size(), ZMQ_DONTWAIT | more) < 0)
      return false;
  }
  return true;
}

bool ZmqSocket::receive(Frames& frames, size_t most) {
  frames.clear();
  size_t seen = 0;
  while (true) {
    zmq_msg_t message;
    zmq_msg_init(&message);
    if (zmq_msg_recv(&message, socket_, ZMQ_DONTWAIT) < 0) {
      zmq_msg_close(&message);
      return false;
    }
    if (++seen <= most)
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
    const bool more = zmq_msg_more(&message) != 0;
    zmq_msg_close(&message);
    if (!more) return seen <= most;
  }
}

Status ZmqSocket::watch() {
  static std::atomic<uint64_t> next{0};
  const std::string name = "inproc://watch-" + std::to_string(next.fetch_add(1));
  if (zmq_socket_monitor(socket_, name.c_str(), ZMQ_EVENT_HANDSHAKE_SUCCEEDED) != 0)
    return zmq_error("a socket cannot be watched");
  monitor_ = zmq_socket(context_.get(), ZMQ_PAIR);
  if (monitor_ == nullptr || zmq_connect(monitor_, name.c_str()) != 0)
    return zmq_error("a socket cannot be watched");
  return {};
}

int ZmqSocket::new_connections() {
  int count = 0;
  while (monitor_ != nullptr) {
    std::array<char, 512> bytes{};
    if (zmq_recv(monitor_, bytes.data(), bytes.size(), ZMQ_DONTWAIT) < 0) break;
    uint16_t event = 0;
    std::memcpy(&event, bytes.data(), sizeof event);
    if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) ++count;
    (void)zmq_recv(monitor_, bytes.data(), bytes.size(), ZMQ_DONTWAIT);  // the address
  }
  return count;
}

WakeFd::WakeFd() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

WakeFd::~WakeFd() { close(fd_); }

void WakeFd::signal() {
  const uint64_t one = 1;
  (void)!write(fd_, &one, sizeof one);  // full means signalled
}

void WakeFd::drain() {
  uint64_t count = 0;
  (void)!read(fd_, &count, sizeof count);
}

void wait_readable(std::span<void* const> sockets, const WakeFd& wake, int milliseconds) {
  std::vector<zmq_pollitem_t> items;
  items.reserve(sockets.size() + 1);
  for (void* const socket : sockets) items.push_back({socket, 0, ZMQ_POLLIN, 0});
  items.push_back({nullptr, wake.get(), ZMQ_POLLIN, 0});
  (void)zmq_poll(items.data(), static_cast<int>(items.size()), milliseconds);
}

std::string sequence_bytes(uint64_t sequence) {
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) out[7 - i] = static_cast<char>(sequence >> (8 * i));
  return out;
}

bool read_sequence(std::string_view bytes, uint64_t& sequence) {
  if (bytes.size() != 8) return false;
  sequence = 0;
  for (const char c : bytes) sequence = sequence << 8 | static_cast<unsigned char>(c);
  return true;
}

}  // namespace tandem::events
