#include "kv/transfer/copy_pool.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

namespace tandem::kv {
namespace {

constexpr uint64_t kPiece = uint64_t{4} << 20;  // between two looks at the deadline
constexpr uint64_t kUrgentBytes = 4096;         // goes before what waits: generations

// A generation is read by one load that no earlier copy is reordered with (see SharedArena).
void copy_bytes(std::byte* into, const std::byte* from, uint64_t bytes) {
  if (bytes == sizeof(uint64_t) && reinterpret_cast<uintptr_t>(from) % sizeof(uint64_t) == 0) {
    std::atomic_thread_fence(std::memory_order_acquire);
    // atomic_ref wants a mutable object; this is a load of memory that is not ours.
    auto& word = *const_cast<uint64_t*>(reinterpret_cast<const uint64_t*>(from));
    const uint64_t value = std::atomic_ref<uint64_t>(word).load(std::memory_order_relaxed);
    std::memcpy(into, &value, sizeof value);
    return;
  }
  std::memcpy(into, from, bytes);
}

}  // namespace

CopyPool::CopyPool(int threads, uint64_t max_bytes_in_flight)
    : max_bytes_in_flight_(max_bytes_in_flight) {
  for (int i = 0; i < std::max(threads, 1); ++i) threads_.emplace_back([this] { run(); });
}

CopyPool::~CopyPool() {
  {
    const std::lock_guard guard(lock_);
    stopping_ = true;
  }
  work_.notify_all();
  for (auto& thread : threads_) thread.join();
}

TransferStatus CopyPool::post(const std::shared_ptr<Peer>& peer, std::span<const Read> reads,
                              Duration limit, Remote::Done done) {
  uint64_t bytes = 0;
  if (!reads_fit(reads, peer->source->bytes(), bytes)) return TransferStatus::kInvalid;
  Job job{peer,
          {reads.begin(), reads.end()},
          bytes,
          std::chrono::steady_clock::now() + limit,
          std::move(done)};
  {
    const std::lock_guard guard(lock_);
    if (peer->closed) return TransferStatus::kLost;
    if (peer->bytes_in_flight > 0 && peer->bytes_in_flight + bytes > max_bytes_in_flight_)
      return TransferStatus::kFull;
    peer->bytes_in_flight += bytes;
    if (bytes <= kUrgentBytes) {
      jobs_.push_front(std::move(job));
    } else {
      jobs_.push_back(std::move(job));
    }
  }
  work_.notify_one();
  return TransferStatus::kOk;
}

void CopyPool::close(const std::shared_ptr<Peer>& peer) {
  std::vector<Job> dropped;
  {
    std::unique_lock guard(lock_);
    peer->closed = true;
    std::erase_if(jobs_, [&](Job& job) {
      if (job.peer != peer) return false;
      peer->bytes_in_flight -= job.bytes;
      dropped.push_back(std::move(job));
      return true;
    });
    settled_.wait(guard, [&] { return peer->running == 0; });
  }
  for (const Job& job : dropped) job.done(TransferStatus::kLost);
}

uint64_t CopyPool::bytes_in_flight(const Peer& peer) {
  const std::lock_guard guard(lock_);
  return peer.bytes_in_flight;
}

void CopyPool::run() {
  std::unique_lock guard(lock_);
  while (true) {
    work_.wait(guard, [this] { return stopping_ || !jobs_.empty(); });
    if (stopping_) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    ++job.peer->running;
    guard.unlock();
    const TransferStatus status = copy(job);
    guard.lock();
    job.peer->bytes_in_flight -= job.bytes;
    guard.unlock();
    job.done(status);
    job.done = {};
    guard.lock();
    if (--job.peer->running == 0) settled_.notify_all();
  }
}

TransferStatus CopyPool::copy(const Job& job) {
  CopySource& source = *job.peer->source;
  for (const Read& read : job.reads) {
    for (uint64_t at = 0; at < read.bytes; at += kPiece) {
      if (std::chrono::steady_clock::now() >= job.deadline) return TransferStatus::kTimeout;
      const std::byte* base = job.peer->closed ? nullptr : source.pin();
      if (base == nullptr) return TransferStatus::kLost;
      copy_bytes(read.into + at, base + read.offset + at, std::min(kPiece, read.bytes - at));
      source.unpin();
    }
  }
  return source.alive() ? TransferStatus::kOk : TransferStatus::kLost;
}

}  // namespace tandem::kv
