#include "kv/transfer/page_fetcher.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "observe/log.h"

namespace tandem::kv {

namespace {
constexpr double kRateSeconds = 0.05;  // of one look at a link's rate, or
constexpr double kRateBytes = 16 << 20;
}  // namespace

struct PageFetcher::Request {
  FetchRequest what;
  Answer answer;
  size_t next = 0;  // pages before this one are in batches
};

struct PageFetcher::Owner {
  uint64_t peer = 0;
  std::deque<std::shared_ptr<Request>> waiting;
};

struct PageFetcher::Peer {
  FetchSource source;
  size_t in_flight = 0;  // batches
  bool failed = false;
  bool closing = false;
  bool closed = false;                         // nothing of it writes any more
  std::vector<std::shared_ptr<Batch>> ending;  // when it is closed
  // The link's rate: bytes over the time in which something was in flight.
  TimePoint busy_since{};
  double busy_seconds = 0;
  double busy_bytes = 0;
  double rate = 0;

  void begin(TimePoint now) {
    if (in_flight++ == 0) busy_since = now;
  }
  void end(TimePoint now, uint64_t bytes) {
    --in_flight;
    busy_bytes += static_cast<double>(bytes);
    busy_seconds += to_seconds(now - std::exchange(busy_since, now));
    if (busy_seconds < kRateSeconds && busy_bytes < kRateBytes) return;
    const double fresh = busy_bytes / std::max(busy_seconds, 1e-6);
    rate = rate == 0 ? fresh : 0.7 * rate + 0.3 * fresh;
    busy_seconds = busy_bytes = 0;
  }
};

struct PageFetcher::Batch {
  std::shared_ptr<Request> request;
  uint64_t id = 0;
  uint64_t peer_id = 0;
  std::shared_ptr<Peer> peer;
  size_t first = 0;
  size_t count = 0;
  int slot = -1;
  bool unfenced = false;

  const FetchRequest& what() const { return request->what; }
};

PageFetcher::PageFetcher(net::Reactor& reactor, net::WorkPool& pool, FetchLimits limits)
    : reactor_(reactor), pool_(pool), limits_(limits), slots_(kSlots, limits.batch_bytes) {}

PageFetcher::~PageFetcher() = default;

void PageFetcher::open_peer(uint64_t peer, FetchSource source) {
  auto made = std::make_shared<Peer>();
  made->source = std::move(source);
  peers_[peer] = std::move(made);
}

void PageFetcher::close_peer(uint64_t peer) {
  const auto at = peers_.find(peer);
  if (at == peers_.end()) return;
  const auto closed = at->second;
  peers_.erase(at);
  closed->failed = true;
  begin_closing(closed);
  std::vector<OwnerId> owners;
  for (const auto& [id, owner] : owners_) {
    if (owner.peer == peer) owners.push_back(id);
  }
  for (const OwnerId owner : owners) stop(owner);
}

// What is in flight completes meanwhile, posted here.
void PageFetcher::begin_closing(const std::shared_ptr<Peer>& peer) {
  if (std::exchange(peer->closing, true)) return;
  closing_.push_back(peer);
  const auto work = [this, peer] {
    peer->source.remote->disconnect();
    reactor_.post([this, peer] { on_closed(peer); });
  };
  if (!closer_.submit(work, net::WorkPool::Weight::kLight)) work();
}

void PageFetcher::on_closed(const std::shared_ptr<Peer>& peer) {
  peer->closed = true;
  std::erase(closing_, peer);
  for (const auto& batch : std::exchange(peer->ending, {})) end(batch, CopyResult::kFailed);
}

void PageFetcher::finish_closing() {
  closer_.stop();
  for (const auto& peer : std::exchange(closing_, {})) peer->source.remote->disconnect();
}

void PageFetcher::fetch(OwnerId owner, uint64_t peer, FetchRequest request, Answer answer) {
  const auto at = peers_.find(peer);
  const bool fits = request.bytes > 0 && at != peers_.end() &&
                    request.offset <= at->second->source.arena.page_stride &&
                    request.bytes <= at->second->source.arena.page_stride - request.offset &&
                    (!request.step.staged || request.bytes <= slots_.stage_bytes());
  const size_t count = request.source.size();
  const auto inside = [&](const protocol::PageTag& tag) {
    return tag.page >= 0 && static_cast<uint64_t>(tag.page) < at->second->source.arena.page_count;
  };
  if (!fits || !std::ranges::all_of(request.source, inside)) {
    answer(0, count, CopyResult::kFailed);
    return;
  }
  if (count == 0) return;
  Owner& mine = owners_[owner];
  mine.peer = peer;
  mine.waiting.push_back(
      std::make_shared<Request>(Request{std::move(request), std::move(answer), 0}));
  pump();
}

void PageFetcher::stop(OwnerId owner) {
  const auto at = owners_.find(owner);
  if (at == owners_.end()) return;
  const auto waiting = std::exchange(at->second.waiting, {});
  owners_.erase(at);
  for (const auto& request : waiting) {
    const size_t left = request->what.source.size() - request->next;
    request->answer(request->next, left, CopyResult::kFailed);
  }
}

double PageFetcher::link_rate(uint64_t peer) const {
  const auto at = peers_.find(peer);
  return at == peers_.end() ? 0 : at->second->rate;
}

size_t PageFetcher::waiting() const {
  size_t pages = 0;
  for (const auto& [id, owner] : owners_) {
    for (const auto& request : owner.waiting) pages += request->what.source.size() - request->next;
  }
  return pages;
}

// Owners take turns until none can post.
void PageFetcher::pump() {
  if (std::exchange(pumping_, true)) return;
  bool posted = true;
  while (posted && !owners_.empty()) {
    posted = false;
    auto at = owners_.upper_bound(last_served_);
    for (size_t i = owners_.size(); i > 0 && !posted; --i) {
      if (at == owners_.end()) at = owners_.begin();
      const OwnerId id = at->first;
      posted = pump_one(at->second);
      if (posted) last_served_ = id;
      if (at->second.waiting.empty()) {
        at = owners_.erase(at);
        if (owners_.empty()) break;
      } else {
        ++at;
      }
    }
  }
  pumping_ = false;
}

// The owner's next batch; false when it has none or there is no room for it.
bool PageFetcher::pump_one(Owner& owner) {
  const auto peer = peers_.find(owner.peer);
  if (owner.waiting.empty() || peer == peers_.end() || peer->second->failed ||
      peer->second->in_flight >= limits_.batches_per_peer) {
    return false;
  }
  const auto& request = owner.waiting.front();
  const int slot = slots_.take();
  if (slot < 0) return false;
  auto batch = std::make_shared<Batch>();
  batch->id = next_batch_++;
  batch->request = request;
  batch->peer_id = owner.peer;
  batch->peer = peer->second;
  batch->slot = slot;
  batch->first = request->next;
  const size_t most =
      std::clamp<size_t>(limits_.batch_bytes / request->what.bytes, 1, FetchSlots::kMaxPages);
  batch->count = std::min(most, request->what.source.size() - request->next);
  const TransferStatus status = post_data(batch);
  if (status == TransferStatus::kFull) {
    slots_.give_back(slot);
    return false;
  }
  request->next += batch->count;
  if (request->next == request->what.source.size()) owner.waiting.pop_front();
  batch->peer->begin(std::chrono::steady_clock::now());
  batches_.emplace(batch->id, batch);
  if (status != TransferStatus::kOk) {
    reactor_.post([this, batch, status] { on_data(batch, status); });
  }
  return true;
}

TransferStatus PageFetcher::post_data(const std::shared_ptr<Batch>& batch) {
  const FetchRequest& what = batch->what();
  const device::ArenaShape& arena = batch->peer->source.arena;
  std::vector<Read> reads;
  reads.reserve(batch->count);
  for (size_t i = 0; i < batch->count; ++i) {
    const auto page = static_cast<uint64_t>(what.source[batch->first + i].page);
    std::byte* into = what.step.staged ? slots_.stage(batch->slot) + i * what.bytes
                                       : what.target[batch->first + i];
    reads.push_back(
        {arena.pages_offset + page * arena.page_stride + what.offset, into, what.bytes, what.view});
  }
  // The completion knows the batch by its number: it must not be the last to hold the remote.
  return batch->peer->source.remote->post(
      reads, limits_.limit, [this, id = batch->id](TransferStatus status) {
        reactor_.post([this, id, status] {
          if (const auto at = batches_.find(id); at != batches_.end()) on_data(at->second, status);
        });
      });
}

// These hold the batch themselves: its entry may go meanwhile.
// NOLINTBEGIN(performance-unnecessary-value-param)
void PageFetcher::on_data(std::shared_ptr<Batch> batch, TransferStatus status) {
  if (status != TransferStatus::kOk) return fail(batch, status);
  std::vector<Read> reads;
  reads.reserve(batch->count);
  for (size_t i = 0; i < batch->count; ++i) {
    const auto page = static_cast<uint64_t>(batch->what().source[batch->first + i].page);
    reads.push_back({page * sizeof(uint64_t),
                     slots_.generations(batch->slot) + i * sizeof(uint64_t), sizeof(uint64_t)});
  }
  const TransferStatus posted =
      batch->peer->source.remote->post(reads, limits_.limit, [this, batch](TransferStatus ended) {
        reactor_.post([this, batch, ended] { on_generations(batch, ended); });
      });
  if (posted == TransferStatus::kFull) {
    // Others fill the peer's bound; there is always one of them to complete.
    reactor_.spawn(
        [](PageFetcher* self, std::shared_ptr<Batch> waits) -> boost::asio::awaitable<void> {
          co_await self->reactor_.sleep(std::chrono::milliseconds(1));
          self->on_data(waits, TransferStatus::kOk);
        }(this, batch));
  } else if (posted != TransferStatus::kOk) {
    fail(batch, posted);
  }
}

void PageFetcher::on_generations(std::shared_ptr<Batch> batch, TransferStatus status) {
  if (status != TransferStatus::kOk) return fail(batch, status);
  for (size_t i = 0; i < batch->count; ++i) {
    uint64_t generation = 0;
    std::memcpy(&generation, slots_.generations(batch->slot) + i * sizeof generation,
                sizeof generation);
    if (generation != batch->what().source[batch->first + i].generation)
      return end(batch, CopyResult::kStale);
  }
  if (!batch->what().step.finish) return end(batch, CopyResult::kIntact);
  const auto work = [this, batch] { run_step(batch); };
  if (!pool_.submit(work, net::WorkPool::Weight::kLight)) work();
}
// NOLINTEND(performance-unnecessary-value-param)

// On the pool.
void PageFetcher::run_step(const std::shared_ptr<Batch>& batch) {
  const FetchRequest& what = batch->what();
  CopyResult result = CopyResult::kIntact;
  for (size_t i = 0; i < batch->count && result == CopyResult::kIntact; ++i) {
    const std::byte* arrived = what.step.staged ? slots_.stage(batch->slot) + i * what.bytes
                                                : what.target[batch->first + i];
    result = what.step.finish(batch->first + i, {arrived, what.bytes});
  }
  reactor_.post([this, batch, result] { end(batch, result); });
}

void PageFetcher::fail(const std::shared_ptr<Batch>& batch, TransferStatus status) {
  Peer& peer = *batch->peer;
  // A peer that is late once is late for everybody: its pages are better computed elsewhere.
  if (!std::exchange(peer.failed, true)) {
    const Error error = transfer_error(status, "of a handoff");
    observe::log_warning("{}", error.message);
    if (on_peer_failed) on_peer_failed(batch->peer_id);
  }
  // The end of the connection ends the others too; after it nothing writes any more. (kLost alone
  // says nothing about what was still on its way.)
  if (peer.source.fence == Fence::kConnection && !peer.closed) {
    peer.ending.push_back(batch);
    begin_closing(batch->peer);
    return;
  }
  batch->unfenced = peer.source.fence == Fence::kNone;
  end(batch, batch->unfenced ? CopyResult::kUnfenced : CopyResult::kFailed);
}

void PageFetcher::end(const std::shared_ptr<Batch>& batch, CopyResult result) {
  if (batch->unfenced) {
    slots_.lose();
  } else {
    slots_.give_back(batch->slot);
  }
  batch->peer->end(std::chrono::steady_clock::now(),
                   result == CopyResult::kIntact ? batch->what().bytes * batch->count : 0);
  batches_.erase(batch->id);
  batch->request->answer(batch->first, batch->count, result);
  pump();
}

}  // namespace tandem::kv
