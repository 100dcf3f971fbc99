#include "kv/transfer/module_thread.h"

#include <algorithm>
#include <array>
#include <future>
#include <utility>

#include <string.h>

namespace tandem::kv {
namespace {

constexpr uint32_t kWaitMs = 50;
constexpr Duration kGrace = std::chrono::seconds(1);  // for the module to notice a deadline itself
constexpr Duration kExpiryCheck = std::chrono::milliseconds(50);

TransferStatus status_of(int32_t status) {
  switch (status) {
    case TANDEM_TRANSPORT_OK:
      return TransferStatus::kOk;
    case TANDEM_TRANSPORT_LOST:
      return TransferStatus::kLost;
    case TANDEM_TRANSPORT_TIMEOUT:
      return TransferStatus::kTimeout;
    case TANDEM_TRANSPORT_INVALID:
      return TransferStatus::kInvalid;
    default:
      return TransferStatus::kFailed;
  }
}

TimePoint now() { return std::chrono::steady_clock::now(); }

}  // namespace

std::string module_message(const tandem_transport_error& error) {
  const std::string text(error.message, strnlen(error.message, sizeof error.message));
  return text.empty() ? "no reason given" : text;
}

std::shared_ptr<ModuleThread> ModuleThread::start(const tandem_transport_v1& module,
                                                  tandem_transport_engine* engine,
                                                  uint64_t max_bytes_in_flight) {
  std::shared_ptr<ModuleThread> made(new ModuleThread(module, engine, max_bytes_in_flight),
                                     [](ModuleThread* thread) { thread->end(); });
  made->thread_ = std::thread([raw = made.get()] {
    raw->run();
    bool orphan = false;
    {
      const std::lock_guard guard(raw->lock_);
      orphan = raw->orphan_;
    }
    if (orphan) delete raw;
  });
  return made;
}

void ModuleThread::end() {
  const bool inside = std::this_thread::get_id() == thread_.get_id();
  {
    const std::lock_guard guard(lock_);
    stopping_ = true;
    orphan_ = inside;
    // Here: the thread sees `stopping_` only afterwards, so that the engine is not closed
    // meanwhile.
    if (!inside) module_.wake(engine_);
  }
  if (inside) {
    thread_.detach();
    return;
  }
  thread_.join();
  delete this;
}

void ModuleThread::enqueue(std::function<void(tandem_transport_engine*)> command) {
  {
    const std::lock_guard guard(lock_);
    commands_.push_back(std::move(command));
  }
  module_.wake(engine_);
}

void ModuleThread::call(std::function<void(tandem_transport_engine*)> command) {
  if (std::this_thread::get_id() == thread_.get_id()) return command(engine_);
  std::promise<void> ended;
  enqueue([&](tandem_transport_engine* engine) {
    command(engine);
    ended.set_value();
  });
  ended.get_future().wait();
}

std::shared_ptr<ModuleThread::Peer> ModuleThread::adopt(tandem_transport_peer* peer) {
  auto made = std::make_shared<Peer>();
  made->peer = peer;
  peers_.push_back(made);
  return made;
}

TransferStatus ModuleThread::post(const std::shared_ptr<Peer>& peer, std::span<const Read> reads,
                                  Duration limit, Remote::Done done) {
  Batch batch;
  if (!reads_fit(reads, UINT64_MAX, batch.bytes)) return TransferStatus::kInvalid;
  batch.peer = peer;
  batch.reads.reserve(reads.size());
  for (const Read& read : reads) batch.reads.push_back({read.offset, read.into, read.bytes});
  batch.deadline = now() + limit;
  batch.done = std::move(done);
  {
    const std::lock_guard guard(lock_);
    if (peer->closed) return TransferStatus::kLost;
    if (peer->bytes_in_flight > 0 && peer->bytes_in_flight + batch.bytes > max_bytes_in_flight_)
      return TransferStatus::kFull;
    peer->posted = true;
    peer->bytes_in_flight += batch.bytes;
  }
  enqueue([this, shared = std::make_shared<Batch>(std::move(batch))](auto*) {
    submit(std::move(*shared));
  });
  return TransferStatus::kOk;
}

void ModuleThread::disconnect(const std::shared_ptr<Peer>& peer) {
  {
    const std::lock_guard guard(lock_);
    peer->closed = true;
    if (peer->dropped) return;
  }
  call([this, &peer](auto*) { drop(peer); });
}

void ModuleThread::release(const std::shared_ptr<Peer>& peer) {
  bool posted = false;
  {
    const std::lock_guard guard(lock_);
    posted = peer->posted;
    peer->closed = true;
  }
  if (posted) return disconnect(peer);
  enqueue([this, peer](auto*) { drop(peer); });
}

uint64_t ModuleThread::bytes_in_flight(const Peer& peer) {
  const std::lock_guard guard(lock_);
  return peer.bytes_in_flight;
}

void ModuleThread::run() {
  while (true) {
    std::deque<std::function<void(tandem_transport_engine*)>> commands;
    bool stopping = false;
    {
      const std::lock_guard guard(lock_);
      commands.swap(commands_);
      stopping = stopping_;
    }
    for (auto& command : commands) command(engine_);
    if (stopping && commands.empty()) break;
    const size_t ended = poll();
    if (!waiting_.empty()) retry_waiting();
    const TimePoint time = now();
    if (!batches_.empty() && time >= next_expiry_check_) {
      next_expiry_check_ = time + kExpiryCheck;
      expire(time);
    }
    if (ended == 0 && commands.empty()) module_.wait(engine_, waiting_.empty() ? kWaitMs : 1);
  }
  for (const auto& peer : std::vector(peers_)) drop(peer);
  module_.close(engine_);
}

void ModuleThread::submit(Batch batch) {
  const uint64_t id = next_batch_++;
  batches_.emplace(id, std::move(batch));
  if (!try_submit(id)) waiting_.push_back(id);
}

// False: the module is full.
bool ModuleThread::try_submit(uint64_t id) {
  const auto at = batches_.find(id);
  if (at == batches_.end()) return true;
  Batch& batch = at->second;
  if (batch.peer->peer == nullptr) {
    finish(id, TransferStatus::kLost);
    return true;
  }
  const TimePoint time = now();
  if (time >= batch.deadline) {
    finish(id, TransferStatus::kTimeout);
    return true;
  }
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(batch.deadline - time);
  const auto timeout_ms = static_cast<uint32_t>(std::clamp<int64_t>(left.count(), 1, UINT32_MAX));
  tandem_transport_error error{};
  const int32_t status =
      module_.post(batch.peer->peer, batch.reads.data(), static_cast<uint32_t>(batch.reads.size()),
                   id, timeout_ms, &error);
  if (status == TANDEM_TRANSPORT_FULL) return false;
  if (status != TANDEM_TRANSPORT_OK) finish(id, status_of(status));
  return true;
}

void ModuleThread::retry_waiting() {
  std::deque<uint64_t> again;
  again.swap(waiting_);
  while (!again.empty()) {
    if (!try_submit(again.front())) break;
    again.pop_front();
  }
  waiting_.insert(waiting_.begin(), again.begin(), again.end());
}

size_t ModuleThread::poll() {
  std::array<tandem_transport_completion, 64> completions;
  const uint32_t count =
      std::min<uint32_t>(module_.poll(engine_, completions.data(), completions.size()),
                         static_cast<uint32_t>(completions.size()));
  for (uint32_t i = 0; i < count; ++i)
    finish(completions[i].batch, status_of(completions[i].status));
  return count;
}

void ModuleThread::expire(TimePoint time) {
  std::vector<uint64_t> late;
  for (const auto& [id, batch] : batches_) {
    const bool posted = std::ranges::find(waiting_, id) == waiting_.end();
    if (time >= batch.deadline + (posted ? kGrace : Duration{})) late.push_back(id);
  }
  for (const uint64_t id : late) finish(id, TransferStatus::kTimeout);
}

void ModuleThread::finish(uint64_t id, TransferStatus status) {
  auto node = batches_.extract(id);
  if (node.empty()) return;  // completed twice, or after the adapter gave it up
  Batch& batch = node.mapped();
  {
    const std::lock_guard guard(lock_);
    batch.peer->bytes_in_flight -= batch.bytes;
  }
  batch.done(status);
}

void ModuleThread::drop(const std::shared_ptr<Peer>& peer) {
  if (peer->peer == nullptr) return;
  module_.disconnect(std::exchange(peer->peer, nullptr));
  std::erase(peers_, peer);
  std::vector<uint64_t> lost;
  for (const auto& [id, batch] : batches_) {
    if (batch.peer == peer) lost.push_back(id);
  }
  for (const uint64_t id : lost) finish(id, TransferStatus::kLost);
  const std::lock_guard guard(lock_);
  peer->dropped = true;
}

}  // namespace tandem::kv
