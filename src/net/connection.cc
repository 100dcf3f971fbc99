#include "net/connection.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace tandem::net {

namespace {

constexpr size_t kReadChunk = 64UL << 10;
constexpr size_t kKeptBuffer = 2UL << 10;
constexpr size_t kMostAtOnce = 256UL << 10;

// One per thread: an idle connection costs no read buffer.
char* read_scratch() {
  thread_local const std::unique_ptr<char[]> kScratch(new char[kReadChunk]);
  return kScratch.get();
}

}  // namespace

Connection::Connection(Reactor& reactor, std::unique_ptr<Stream> stream)
    : stream_(std::move(stream)), readable_(reactor), writable_(reactor) {}

Connection::~Connection() {
  if (!closed_) stream_->close(false);
}

void Connection::start() { pump(); }

void Connection::pump() {
  if (reading_ || gone() || buffer_.size() - begin_ >= high_water_) return;
  reading_ = true;
  stream_->wait_readable([self = shared_from_this()] {
    self->reading_ = false;
    if (self->closed_) return;
    const auto action = self->on_data_;  // a copy, of before: it may be replaced meanwhile
    if (!self->fill()) return self->peer_gone();
    if (action) action();
    self->pump();
  });
}

// Reads until nothing is left, there is no room, or others should have their turn; false: the peer
// is gone.
bool Connection::fill() {
  char* const scratch = read_scratch();
  for (size_t total = 0; total < kMostAtOnce && !closed_;) {
    const size_t unread = buffer_.size() - begin_;
    if (unread >= high_water_) break;
    const size_t most = std::min(high_water_ - unread, kReadChunk);
    const IoResult got = stream_->try_read(scratch, most);
    if (got.kind == IoResult::Kind::kWouldBlock) break;
    if (got.kind != IoResult::Kind::kDone) {
      (got.kind == IoResult::Kind::kEnd ? ended_ : failed_) = true;
      return false;
    }
    show({scratch, got.bytes});
    if (got.bytes < most) break;
    total += got.bytes;
  }
  return true;
}

void Connection::show(std::string_view bytes) {
  if (begin_ > 0) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  if (!buffer_.empty()) {
    buffer_.append(bytes);
    return readable_.notify_now();
  }
  lent_ = bytes;
  readable_.notify_now();
  // First of all nothing is lent any more: copying may throw.
  const std::string_view left = std::exchange(lent_, {});
  buffer_.assign(left);
}

void Connection::peer_gone() {
  readable_.notify();
  writable_.notify();
  if (on_gone_) std::exchange(on_gone_, nullptr)();
}

void Connection::consume(size_t bytes) {
  assert(bytes <= buffered().size());
  seen_ = 0;
  if (!lent_.empty()) return lent_.remove_prefix(bytes);
  begin_ += bytes;
  if (begin_ == buffer_.size()) {
    buffer_.clear();
    begin_ = 0;
    // A connection that waits costs no buffer to speak of.
    if (buffer_.capacity() > kKeptBuffer) buffer_ = std::string();
  }
  pump();
}

asio::awaitable<Connection::Wait> Connection::wait_more(Duration limit) {
  const auto self = shared_from_this();
  const TimePoint until =
      limit == Duration::max() ? TimePoint::max() : std::chrono::steady_clock::now() + limit;
  while (true) {
    if (closed_) co_return Wait::kFailed;
    if (buffered().size() > seen_) {
      seen_ = buffered().size();
      co_return Wait::kData;
    }
    if (failed_) co_return Wait::kFailed;
    if (ended_) co_return Wait::kEnd;
    if (until == TimePoint::max()) {
      co_await readable_.wait();
    } else if (!co_await readable_.wait_for(until - std::chrono::steady_clock::now())) {
      co_return Wait::kTimeout;
    }
  }
}

namespace {

template <typename Pieces>
std::vector<iovec> vectors_of(const Pieces& pieces) {
  std::vector<iovec> vectors;
  vectors.reserve(pieces.size());
  for (const std::string_view piece : pieces) {
    if (!piece.empty()) vectors.push_back({const_cast<char*>(piece.data()), piece.size()});
  }
  return vectors;
}

constexpr size_t kMostVectors = 1024;  // the kernel takes no more at once

}  // namespace

asio::awaitable<bool> Connection::write(std::initializer_list<std::string_view> pieces,
                                        Duration limit) {
  return write_vectors(vectors_of(pieces), limit);
}

asio::awaitable<bool> Connection::write_all(const std::vector<std::string_view>& pieces,
                                            Duration limit) {
  return write_vectors(vectors_of(pieces), limit);
}

asio::awaitable<bool> Connection::write_vectors(std::vector<iovec> vectors, Duration limit) {
  assert(!writing_ && "one write at a time");
  const auto self = shared_from_this();
  const size_t count = vectors.size();
  const TimePoint until = std::chrono::steady_clock::now() + limit;
  size_t first = 0;
  writing_ = true;
  bool ok = true;
  while (first < count) {
    if (closed_ || failed_) {
      ok = false;
      break;
    }
    IoResult put = stream_->try_write(&vectors[first],
                                      static_cast<int>(std::min(count - first, kMostVectors)));
    if (put.kind == IoResult::Kind::kWouldBlock) {
      stream_->wait_writable([self] { self->writable_.notify(); });
      if (!co_await writable_.wait_for(until - std::chrono::steady_clock::now())) {
        ok = false;
        break;
      }
      continue;
    }
    if (put.kind != IoResult::Kind::kDone) {
      ok = false;
      break;
    }
    while (put.bytes > 0) {
      iovec& vector = vectors[first];
      const size_t step = std::min(put.bytes, vector.iov_len);
      vector.iov_base = static_cast<char*>(vector.iov_base) + step;
      vector.iov_len -= step;
      put.bytes -= step;
      if (vector.iov_len == 0) ++first;
    }
  }
  writing_ = false;
  co_return ok;
}

void Connection::close(bool reset) {
  if (closed_) return;
  closed_ = true;
  on_gone_ = nullptr;
  on_data_ = nullptr;
  stream_->close(reset);
  readable_.notify();
  writable_.notify();
}

}  // namespace tandem::net
