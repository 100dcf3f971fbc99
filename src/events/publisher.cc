#include "events/publisher.h"

#include <array>
#include <utility>

namespace tandem::events {

namespace {

// libzmq takes "*" for a port that the system picks.
std::string bindable(std::string endpoint) {
  if (endpoint.ends_with(":0")) endpoint.replace(endpoint.size() - 1, 1, "*");
  return endpoint;
}

constexpr int64_t kRequestBytes = 1024;
constexpr size_t kMostAtOnce = 256;  // messages between two looks at the replay socket

}  // namespace

Publisher::Publisher(PublisherOptions options, Source source)
    : options_(std::move(options)), source_(std::move(source)) {}

Result<std::unique_ptr<Publisher>> Publisher::create(PublisherOptions options, Source source) {
  std::unique_ptr<Publisher> made(new Publisher(std::move(options), std::move(source)));
  TANDEM_CHECK(made->open());
  made->thread_ = std::thread([publisher = made.get()] { publisher->run(); });
  return made;
}

Status Publisher::open() {
  TANDEM_TRY(socket, ZmqSocket::open(context_, SocketKind::kPub));
  socket_ = std::move(socket);
  TANDEM_CHECK(socket_->bound(options_.high_water, kRequestBytes));
  TANDEM_CHECK(socket_->bind(bindable(options_.endpoint)));
  endpoint_ = socket_->bound_endpoint();
  if (options_.replay_endpoint.empty()) return {};
  TANDEM_TRY(replay, ZmqSocket::open(context_, SocketKind::kRouter));
  replay_socket_ = std::move(replay);
  TANDEM_CHECK(replay_socket_->bound(options_.high_water, kRequestBytes));
  TANDEM_CHECK(replay_socket_->bind(bindable(options_.replay_endpoint)));
  replay_endpoint_ = replay_socket_->bound_endpoint();
  return {};
}

Publisher::~Publisher() {
  stopping_ = true;
  wake_.signal();
  if (thread_.joinable()) thread_.join();
}

void Publisher::wake() { wake_.signal(); }

void Publisher::run() {
  std::vector<void*> sockets;
  if (replay_socket_) sockets.push_back(replay_socket_->get());
  while (!stopping_) {
    wait_readable(sockets, wake_, 1000);
    wake_.drain();
    bool more = true;
    while (more && !stopping_) {
      for (size_t i = 0; i < kMostAtOnce && more; ++i) {
        std::string payload = source_.next();
        more = !payload.empty();
        if (more) publish(std::move(payload));
      }
      answer_replays();
    }
  }
}

void Publisher::publish(std::string payload) {
  const std::string sequence = sequence_bytes(next_);
  const std::array<std::string_view, 3> frames{options_.topic, sequence, payload};
  (void)socket_->send(frames);
  ring_bytes_ += payload.size();
  ring_.push_back(std::move(payload));
  ++next_;
  while ((ring_bytes_ > options_.ring_bytes && ring_.size() > 1) ||
         ring_.size() > options_.ring_messages) {
    ring_bytes_ -= ring_.front().size();
    ring_.pop_front();
  }
}

void Publisher::answer_replays() {
  if (!replay_socket_) return;
  Frames frames;
  for (size_t i = 0; i < 16 && replay_socket_->receive(frames, 3); ++i) {
    // [who, nothing, number]; a DEALER may leave the delimiter out.
    uint64_t from = 0;
    if (frames.size() < 2 || !read_sequence(frames.back(), from)) continue;
    ++replays_;
    replay(frames[0], frames.size() == 3 ? frames[1] : std::string(), from);
  }
}

void Publisher::replay(const std::string& asker, const std::string& delimiter, uint64_t from) {
  const auto send = [&](uint64_t sequence, std::string_view payload) {
    const std::string number = sequence_bytes(sequence);
    const std::array<std::string_view, 4> frames{asker, delimiter, number, payload};
    return replay_socket_->send(frames);
  };
  const uint64_t next = next_;
  const uint64_t oldest = next - ring_.size();
  if (from > next || (from < oldest && next > 0)) {
    const std::string snapshot = source_.snapshot ? source_.snapshot() : std::string();
    if (!snapshot.empty()) {
      if (next > 0) (void)send(next - 1, snapshot);
      (void)send(kEndOfReplay, {});
      return;
    }
  }
  bool taken = true;
  for (uint64_t at = std::max(from, oldest); at < next && taken; ++at)
    taken = send(at, ring_[at - oldest]);
  (void)send(kEndOfReplay, {});
}

}  // namespace tandem::events
