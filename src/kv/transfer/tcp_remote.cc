#include "kv/transfer/tcp_remote.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <utility>

#include "numerics/hmac.h"

namespace tandem::kv::tcp {
namespace {

constexpr size_t kOutstanding = 2;  // requests on their way, per stream
constexpr uint64_t kUrgentBytes = 4096;
constexpr size_t kPieces = 64;  // of one recvmsg

TimePoint now() { return std::chrono::steady_clock::now(); }

}  // namespace

TcpRemote::TcpRemote(uint64_t exposed, const RemoteOptions& options,
                     std::vector<std::unique_ptr<DataSocket>> sockets)
    : exposed_(exposed), options_(options), sockets_(std::move(sockets)) {
  for (const auto& socket : sockets_) threads_.emplace_back([this, &socket] { run(*socket); });
}

TransferStatus TcpRemote::post(std::span<const Read> reads, Duration limit, Done done) {
  auto batch = std::make_shared<Batch>();
  if (!reads_fit(reads, exposed_, batch->bytes, true)) return TransferStatus::kInvalid;
  if (std::ranges::any_of(reads, [](const Read& read) {
        return read.view != 0 && read.bytes > kMaxRequestBytes;
      })) {
    return TransferStatus::kInvalid;
  }
  batch->deadline = now() + limit;
  batch->done = std::move(done);
  std::vector<Chunk> chunks;
  cut(reads, batch, chunks);
  batch->chunks_left = chunks.size();
  {
    const std::lock_guard guard(lock_);
    if (lost_) return TransferStatus::kLost;
    if (bytes_in_flight_ > 0 && bytes_in_flight_ + batch->bytes > options_.max_bytes_in_flight)
      return TransferStatus::kFull;
    bytes_in_flight_ += batch->bytes;
    // Generations go first: somebody's whole batch waits for them.
    const auto at = batch->bytes <= kUrgentBytes ? waiting_.begin() : waiting_.end();
    waiting_.insert(at, std::make_move_iterator(chunks.begin()),
                    std::make_move_iterator(chunks.end()));
  }
  if (chunks.size() == 1) {
    work_.notify_one();
  } else {
    work_.notify_all();
  }
  return TransferStatus::kOk;
}

void TcpRemote::cut(std::span<const Read> reads, const std::shared_ptr<Batch>& batch,
                    std::vector<Chunk>& chunks) const {
  Chunk chunk{batch, {}, 0};
  const auto next_chunk = [&] { chunks.push_back(std::exchange(chunk, Chunk{batch, {}, 0})); };
  for (Read read : reads) {
    const bool whole = read.view != 0;  // a piece of a view
    if (chunk.bytes > 0 && (read.view != chunk.reads.back().view ||
                            (whole && chunk.bytes + read.bytes > options_.chunk_bytes))) {
      next_chunk();
    }
    while (read.bytes > 0) {
      const uint64_t bytes =
          whole ? read.bytes : std::min(read.bytes, options_.chunk_bytes - chunk.bytes);
      chunk.reads.push_back({read.offset, read.into, bytes, read.view});
      chunk.bytes += bytes;
      read.offset += bytes;
      read.into += bytes;
      read.bytes -= bytes;
      if (chunk.bytes >= options_.chunk_bytes || chunk.reads.size() == kMaxRanges) next_chunk();
    }
  }
  if (chunk.bytes > 0) chunks.push_back(std::move(chunk));
}

uint64_t TcpRemote::bytes_in_flight() const {
  const std::lock_guard guard(lock_);
  return bytes_in_flight_;
}

void TcpRemote::disconnect() {
  lose();
  const std::lock_guard guard(joining_);
  for (auto& thread : threads_) thread.join();
  threads_.clear();
}

// Every stream notices; what waits for one ends here.
void TcpRemote::lose() {
  std::deque<Chunk> waiting;
  {
    const std::lock_guard guard(lock_);
    lost_ = true;
    waiting.swap(waiting_);
  }
  for (const auto& socket : sockets_) socket->shut_down();
  work_.notify_all();
  for (Chunk& chunk : waiting) finish(chunk, TransferStatus::kLost);
}

void TcpRemote::run(DataSocket& socket) {
  sigset_t pipes;
  sigemptyset(&pipes);
  sigaddset(&pipes, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipes, nullptr);  // OpenSSL writes without MSG_NOSIGNAL
  std::deque<Chunk> outstanding;
  bool good = true;
  while (good) {
    Chunk next;
    if (take(outstanding, next)) {
      outstanding.push_back(std::move(next));
      good = send_request(socket, outstanding.back());
    } else if (!outstanding.empty()) {
      good = receive(socket, outstanding);
      if (good) outstanding.pop_front();
    } else {
      good = !lost_;
    }
  }
  lose();
  for (Chunk& chunk : outstanding) finish(chunk, TransferStatus::kLost);
}

// One more chunk to ask for, if there is room for it. Waits only when nothing is on its way.
bool TcpRemote::take(std::deque<Chunk>& outstanding, Chunk& next) {
  if (outstanding.size() >= kOutstanding) return false;
  std::unique_lock guard(lock_);
  if (outstanding.empty()) work_.wait(guard, [this] { return lost_ || !waiting_.empty(); });
  while (!waiting_.empty()) {
    next = std::move(waiting_.front());
    waiting_.pop_front();
    if (!is_late(next)) return true;
    guard.unlock();
    finish(next, TransferStatus::kTimeout);
    guard.lock();
  }
  return false;
}

bool TcpRemote::send_request(DataSocket& socket, const Chunk& chunk) {
  const std::string request = encode_request(0, chunk.reads);
  // Requests are small: a peer that takes none for so long reads nothing at all.
  const TimePoint until = std::max(chunk.batch->deadline, now() + std::chrono::seconds(1));
  return socket.write_all(request.data(), request.size(), until);
}

// The response to the oldest request. False: the stream is of no more use. The chunk has ended when
// its bytes have, or earlier by its deadline.
bool TcpRemote::receive(DataSocket& socket, std::deque<Chunk>& outstanding) {
  Chunk& chunk = outstanding.front();
  std::array<char, kHeaderBytes> head;
  size_t got = 0;
  while (got < head.size()) {
    const iovec piece{head.data() + got, head.size() - got};
    const auto io = socket.read_some(&piece, 1);
    if (io.kind == DataSocket::Io::kEnd) return false;
    got += io.bytes;
    if (io.kind == DataSocket::Io::kLater) expire(outstanding);
  }
  const auto header = decode_response_header({head.data(), head.size()});
  if (!header) return false;
  if (header->refusal != Refusal::kNone) {
    finish(chunk, TransferStatus::kInvalid);
    return header->bytes == 0;
  }
  return header->bytes == chunk.bytes && receive_bytes(socket, outstanding);
}

bool TcpRemote::receive_bytes(DataSocket& socket, std::deque<Chunk>& outstanding) {
  Chunk& chunk = outstanding.front();
  std::array<iovec, kPieces> pieces;
  uint64_t left = chunk.bytes;
  size_t next = 0;    // of chunk.reads
  uint64_t skip = 0;  // bytes of it that are there
  while (left > 0) {
    if (!chunk.batch) return discard(socket, outstanding, left);
    int count = 0;
    uint64_t behind = skip;
    for (size_t i = next; i < chunk.reads.size() && count < static_cast<int>(kPieces); ++i) {
      const Read& read = chunk.reads[i];
      pieces[static_cast<size_t>(count++)] = {read.into + behind, read.bytes - behind};
      behind = 0;
    }
    const auto io = socket.read_some(pieces.data(), count);
    if (io.kind == DataSocket::Io::kEnd) return false;
    left -= io.bytes;
    skip += io.bytes;
    while (next < chunk.reads.size() && skip >= chunk.reads[next].bytes)
      skip -= chunk.reads[next++].bytes;
    if (left > 0 && is_late(chunk)) expire(outstanding);
  }
  finish(chunk, TransferStatus::kOk);
  return true;
}

bool TcpRemote::discard(DataSocket& socket, std::deque<Chunk>& outstanding, uint64_t bytes) {
  std::vector<char> nowhere(256 << 10);
  while (bytes > 0) {
    const iovec piece{nowhere.data(), std::min<size_t>(nowhere.size(), bytes)};
    const auto io = socket.read_some(&piece, 1);
    if (io.kind == DataSocket::Io::kEnd) return false;
    bytes -= io.bytes;
    if (io.kind == DataSocket::Io::kLater) expire(outstanding);
  }
  return true;
}

bool TcpRemote::is_late(const Chunk& chunk) const {
  return chunk.batch && now() >= chunk.batch->deadline;
}

// Ends what is late: on this stream, and of what waits, since no stream may be free to take it.
void TcpRemote::expire(std::deque<Chunk>& outstanding) {
  for (Chunk& chunk : outstanding) {
    if (is_late(chunk)) finish(chunk, TransferStatus::kTimeout);
  }
  std::vector<Chunk> late;
  {
    const std::lock_guard guard(lock_);
    std::erase_if(waiting_, [&](Chunk& chunk) {
      if (!is_late(chunk)) return false;
      late.push_back(std::move(chunk));
      return true;
    });
  }
  for (Chunk& chunk : late) finish(chunk, TransferStatus::kTimeout);
}

// Nothing is written into the chunk's memory after this. Once: the chunk lets go of its batch.
void TcpRemote::finish(Chunk& chunk, TransferStatus status) {
  const auto batch = std::exchange(chunk.batch, nullptr);
  if (!batch) return;
  {
    const std::lock_guard guard(lock_);
    if (batch->status == TransferStatus::kOk) batch->status = status;
    if (--batch->chunks_left > 0) return;
    bytes_in_flight_ -= batch->bytes;
  }
  batch->done(batch->status);
}

}  // namespace tandem::kv::tcp
