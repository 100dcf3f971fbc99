#include "kv/transfer/fault_transport.h"

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "kv/transfer/timer_queue.h"

namespace tandem::kv {
namespace {

TimePoint now() { return std::chrono::steady_clock::now(); }

class FaultRemote final : public Remote {
 public:
  FaultRemote(std::shared_ptr<Remote> inside, const FaultPlan& plan, uint64_t bound,
              std::shared_ptr<TimerQueue> timers)
      : state_(std::make_shared<State>()), timers_(std::move(timers)) {
    state_->inside = std::move(inside);
    state_->plan = plan;
    state_->bound = bound;
    state_->random.seed(plan.seed);
  }
  ~FaultRemote() override { disconnect(); }

  TransferStatus post(std::span<const Read> reads, Duration limit, Done done) override;
  void disconnect() override;
  uint64_t bytes_in_flight() const override {
    const std::lock_guard guard(state_->lock);
    return state_->bytes_in_flight;
  }

 private:
  struct Batch {
    std::vector<Read> reads;
    uint64_t bytes = 0;
    TimePoint deadline;
    TimePoint not_before{};  // the link's
    Done done;
    bool flip = false;
    uint64_t flip_at = 0;
    int parts = 1;
    TransferStatus status = TransferStatus::kOk;
  };
  struct State {
    std::shared_ptr<Remote> inside;
    FaultPlan plan;
    uint64_t bound = 0;
    std::mutex lock;  // of what follows
    std::mt19937_64 random;
    std::set<std::shared_ptr<Batch>> open;
    std::vector<std::thread::id> telling;  // who runs a completion now
    std::condition_variable told;
    uint64_t bytes_in_flight = 0;
    int64_t posts = 0;
    bool lost = false;
    TimePoint link_free{};

    bool draw(double chance) { return std::uniform_real_distribution<>()(random) < chance; }
  };
  using SharedState = std::shared_ptr<State>;
  using SharedBatch = std::shared_ptr<Batch>;

  static Duration prepare(State& state, Batch& batch);
  static void forward(const SharedState& state, const std::shared_ptr<TimerQueue>& timers,
                      const SharedBatch& batch);
  static void on_part(const SharedState& state, const std::shared_ptr<TimerQueue>& timers,
                      const SharedBatch& batch, TransferStatus status);
  static void end(State& state, const SharedBatch& batch, TransferStatus status);

  SharedState state_;
  std::shared_ptr<TimerQueue> timers_;
};

TransferStatus FaultRemote::post(std::span<const Read> reads, Duration limit, Done done) {
  auto batch = std::make_shared<Batch>();
  if (!reads_fit(reads, UINT64_MAX, batch->bytes, true)) return TransferStatus::kInvalid;
  batch->reads.assign(reads.begin(), reads.end());
  batch->deadline = now() + limit;
  bool dies = false;
  bool dropped = false;
  Duration later{};
  {
    const std::lock_guard guard(state_->lock);
    if (state_->lost) return TransferStatus::kLost;
    if (state_->bytes_in_flight > 0 && state_->bytes_in_flight + batch->bytes > state_->bound)
      return TransferStatus::kFull;
    dies = state_->plan.die_at >= 0 && state_->posts >= state_->plan.die_at;
    ++state_->posts;
    if (!dies) {
      batch->done = std::move(done);
      state_->bytes_in_flight += batch->bytes;
      state_->open.insert(batch);
      dropped = state_->draw(state_->plan.drop);
      later = prepare(*state_, *batch);
    }
  }
  if (dies) {
    disconnect();
    return TransferStatus::kLost;
  }
  if (dropped) {
    timers_->run_at(batch->deadline, [weak = std::weak_ptr(state_), batch] {
      if (const auto state = weak.lock()) end(*state, batch, TransferStatus::kTimeout);
    });
  } else if (later > Duration{}) {
    timers_->run_at(now() + later,
                    [weak = std::weak_ptr(state_), timers = std::weak_ptr(timers_), batch] {
                      const auto state = weak.lock();
                      const auto queue = timers.lock();
                      if (state && queue) forward(state, queue, batch);
                    });
  } else {
    forward(state_, timers_, batch);
  }
  return TransferStatus::kOk;
}

// Draws the batch's faults; how much later it is to be posted.
Duration FaultRemote::prepare(State& state, Batch& batch) {
  const FaultPlan& plan = state.plan;
  Duration later{};
  if (state.draw(plan.delay))
    later = Duration(static_cast<int64_t>(state.random() %
                                          static_cast<uint64_t>(plan.longest_delay.count() + 1)));
  if (state.draw(plan.reorder)) {
    std::ranges::shuffle(batch.reads, state.random);
    later += std::chrono::microseconds(state.random() % 3000);
  }
  if (state.draw(plan.duplicate)) batch.parts = 2;
  if (state.draw(plan.truncate)) {
    Read& last = batch.reads.back();
    last.bytes -= state.random() % last.bytes;  // (of a view: the sender refuses)
  }
  batch.flip = state.draw(plan.flip);
  batch.flip_at = state.random();
  if (plan.bytes_per_second > 0) {
    state.link_free = std::max(state.link_free, now()) +
                      from_seconds(static_cast<double>(batch.bytes) / plan.bytes_per_second);
    batch.not_before = state.link_free;
  }
  return later;
}

void FaultRemote::forward(const SharedState& state, const std::shared_ptr<TimerQueue>& timers,
                          const SharedBatch& batch) {
  const Duration left = std::max<Duration>(batch->deadline - now(), std::chrono::milliseconds(1));
  const TransferStatus posted = state->inside->post(
      batch->reads, left,
      [weak = std::weak_ptr(state), queue = std::weak_ptr(timers), batch](TransferStatus status) {
        const auto of = weak.lock();
        const auto later = queue.lock();
        if (of && later) on_part(of, later, batch, status);
      });
  if (posted == TransferStatus::kFull && now() < batch->deadline) {
    // The inner bound counts what is still being read: again in a moment.
    timers->run_at(now() + std::chrono::milliseconds(1),
                   [weak = std::weak_ptr(state), queue = std::weak_ptr(timers), batch] {
                     const auto of = weak.lock();
                     const auto later = queue.lock();
                     if (of && later) forward(of, later, batch);
                   });
  } else if (posted != TransferStatus::kOk) {
    on_part(state, timers, batch,
            posted == TransferStatus::kFull ? TransferStatus::kTimeout : posted);
  }
}

void FaultRemote::on_part(const SharedState& state, const std::shared_ptr<TimerQueue>& timers,
                          const SharedBatch& batch, TransferStatus status) {
  TimePoint at{};
  {
    const std::lock_guard guard(state->lock);
    if (batch->status == TransferStatus::kOk) batch->status = status;
    if (--batch->parts > 0 && status == TransferStatus::kOk) {
      // The second reading, once the first has ended; not from inside its completion.
      timers->run_at(now(), [weak = std::weak_ptr(state), queue = std::weak_ptr(timers), batch] {
        const auto of = weak.lock();
        const auto later = queue.lock();
        if (of && later) forward(of, later, batch);
      });
      return;
    }
    status = batch->status;
    if (status == TransferStatus::kOk && batch->flip && state->open.contains(batch)) {
      const Read& read = batch->reads[batch->flip_at % batch->reads.size()];
      read.into[(batch->flip_at >> 20) % read.bytes] ^=
          static_cast<std::byte>(1U << (batch->flip_at >> 60) % 8);
    }
    at = batch->not_before;
  }
  if (at <= now()) return end(*state, batch, status);
  timers->run_at(at, [weak = std::weak_ptr(state), batch, status] {
    if (const auto of = weak.lock()) end(*of, batch, status);
  });
}

void FaultRemote::end(State& state, const SharedBatch& batch, TransferStatus status) {
  {
    const std::lock_guard guard(state.lock);
    if (state.open.erase(batch) == 0) return;
    state.bytes_in_flight -= batch->bytes;
    state.telling.push_back(std::this_thread::get_id());
  }
  std::exchange(batch->done, nullptr)(status);
  const std::lock_guard guard(state.lock);
  state.telling.erase(std::ranges::find(state.telling, std::this_thread::get_id()));
  state.told.notify_all();
}

void FaultRemote::disconnect() {
  {
    const std::lock_guard guard(state_->lock);
    state_->lost = true;
  }
  state_->inside->disconnect();
  std::vector<SharedBatch> left;
  {
    const std::lock_guard guard(state_->lock);
    left.assign(state_->open.begin(), state_->open.end());
  }
  for (const auto& batch : left) end(*state_, batch, TransferStatus::kLost);
  // Those that another thread took just before. (A completion of this one may have let go of us.)
  std::unique_lock guard(state_->lock);
  state_->told.wait(guard, [&] {
    return std::ranges::all_of(state_->telling,
                               [](std::thread::id id) { return id == std::this_thread::get_id(); });
  });
}

class FaultTransport final : public Transport {
 public:
  FaultTransport(std::unique_ptr<Transport> inside, const FaultPlan& plan, uint64_t bound)
      : inside_(std::move(inside)), plan_(plan), bound_(bound) {}
  std::string_view name() const override { return inside_->name(); }
  Fence fence() const override { return inside_->fence(); }
  bool within_process() const override { return inside_->within_process(); }
  bool passes_file() const override { return inside_->passes_file(); }
  bool serve_views(const std::shared_ptr<const SourceViews>& views) override {
    return inside_->serve_views(views);
  }
  bool serves_views() const override { return inside_->serves_views(); }
  Result<Descriptor> expose(std::span<const std::byte> memory, int file) override {
    return inside_->expose(memory, file);
  }
  Status register_local(std::span<std::byte> memory) override {
    return inside_->register_local(memory);
  }
  void connect(Descriptor descriptor, const PeerKey& key, const std::string& host, Duration limit,
               Connected done) override {
    inside_->connect(std::move(descriptor), key, host, limit,
                     [plan = plan_, bound = bound_, timers = timers_,
                      done = std::move(done)](Result<std::shared_ptr<Remote>> remote) {
                       if (!remote) return done(std::move(remote));
                       done(std::make_shared<FaultRemote>(std::move(*remote), plan, bound, timers));
                     });
  }
  void finish_connecting() override { inside_->finish_connecting(); }
  void admit(const PeerKey& key) override { inside_->admit(key); }
  void expel(const std::string& id) override { inside_->expel(id); }

 private:
  std::unique_ptr<Transport> inside_;
  FaultPlan plan_;
  uint64_t bound_;
  std::shared_ptr<TimerQueue> timers_ = std::make_shared<TimerQueue>();
};

}  // namespace

bool FaultPlan::any() const {
  return drop > 0 || delay > 0 || duplicate > 0 || reorder > 0 || truncate > 0 || flip > 0 ||
         die_at >= 0 || bytes_per_second > 0;
}

Result<FaultPlan> parse_fault_plan(const std::string& text) {
  FaultPlan plan;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    const size_t equals = part.find('=');
    double value = 0;
    const std::string_view name = part.substr(0, equals);
    const std::string_view digits = part.substr(std::min(part.size(), name.size() + 1));
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    const bool number = parsed.ec == std::errc{} && parsed.ptr == digits.data() + digits.size() &&
                        value >= 0 && value < 1e15;
    double* chance = name == "drop"        ? &plan.drop
                     : name == "delay"     ? &plan.delay
                     : name == "duplicate" ? &plan.duplicate
                     : name == "reorder"   ? &plan.reorder
                     : name == "truncate"  ? &plan.truncate
                     : name == "flip"      ? &plan.flip
                     : name == "rate"      ? &plan.bytes_per_second
                                           : nullptr;
    if (number && chance != nullptr) {
      *chance = value;
    } else if (number && name == "seed") {
      plan.seed = static_cast<uint64_t>(value);
    } else if (number && name == "die_at") {
      plan.die_at = static_cast<int64_t>(value);
    } else if (number && name == "delay_ms") {
      plan.longest_delay = from_seconds(value / 1e3);
    } else {
      return invalid_request("The fault plan has no \"" + std::string(part) + "\".");
    }
  }
  return plan;
}

std::unique_ptr<Transport> with_faults(std::unique_ptr<Transport> inside, const FaultPlan& plan,
                                       uint64_t max_bytes_in_flight) {
  return std::make_unique<FaultTransport>(std::move(inside), plan, max_bytes_in_flight);
}

}  // namespace tandem::kv
