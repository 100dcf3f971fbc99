#include "sim/node.h"

#include <algorithm>
#include <utility>

#include "sim/router_model.h"
#include "sim/world.h"

namespace tandem::sim {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

Node::Node(World& world, int id) : world_(world), id_(id) { boot(); }

Duration Node::draw(Duration least, Duration most) { return world_.random().time(least, most); }

// --- the process
// ----------------------------------------------------------------------------------

void Node::boot() {
  ++start_;
  up_ = true;
  const Plan& plan = world_.plan();
  arena_ = std::make_shared<Arena>(plan.pages, world_.layout().words_per_page);
  kv::KvManagerOptions options;
  options.page_count = plan.pages;
  options.block_tokens = plan.block_tokens;
  options.lineage = "sim";
  options.first_generation = (start_ << 40) + (static_cast<uint64_t>(id_) << 32) + 1;
  options.windows = plan.windows;
  options.rows_in_flight = plan.prefill_chunk * plan.max_in_flight;
  options.roll_back_tokens = plan.block_tokens;
  const bool i1 = world_.broken(Break::kI1);
  options.faults = {.pool = {.ignore_readers = i1,
                             .ignore_writers = i1,
                             .ignore_generations = world_.broken(Break::kI2)},
                    .publish_unproven = world_.broken(Break::kI3),
                    .ignore_adapter = world_.broken(Break::kI5)};
  kv_ = std::make_unique<kv::KvManager>(
      std::move(options),
      kv::PageMemory{.on_allocate = [this](int32_t page,
                                           uint64_t generation) { on_allocate(page, generation); },
                     .copy =
                         [this](int32_t from, int32_t to) {
                           std::copy_n(arena_->page(from), arena_->words_per_page,
                                       arena_->page(to));
                         }});
  scheduler_ = std::make_unique<engine::Scheduler>(
      engine::SchedulerOptions{.max_batch_rows = 64,
                               .prefill_chunk = plan.prefill_chunk,
                               .max_sequences = 8,
                               .max_in_flight = plan.max_in_flight,
                               .context_length = kv_->demand().longest(plan.pages, 512)},
      *kv_);
  reserves_ = std::make_unique<kv::ReserveQueue>(*kv_);
}

void Node::tell(uint64_t start, EventLoop::Action action) {
  if (!up_ || start != start_) return;
  if (frozen_ || !deferred_.empty()) {
    deferred_.push_back(std::move(action));
  } else {
    action();
  }
}

void Node::post(Thread thread, EventLoop::Action action) {
  TimePoint& last = posted_[thread];
  last = std::max(last, world_.now() + draw(microseconds(1), microseconds(400)));
  world_.loop().at(last, [this, start = start_, action = std::move(action)]() mutable {
    tell(start, std::move(action));
  });
}

void Node::crash(bool silent, Duration down) {
  if (!up_) return;
  world_.trace(id_, [&] { return std::string("crashes") + (silent ? " silently" : ""); });
  up_ = frozen_ = catching_up_ = false;
  deferred_.clear();
  ticking_ = device_busy_ = false;
  passes_.clear();
  std::erase_if(world_.copies(), [&](const auto& copy) { return copy->into == arena_; });
  sending_.clear();
  receiving_.clear();
  peers_.clear();
  registry_ = {};
  early_.clear();
  dialing_.clear();
  decode_legs_.clear();
  prefill_legs_.clear();
  whole_legs_.clear();
  readers_.clear();
  generations_.clear();
  reserve_keys_.clear();
  reserves_.reset();
  scheduler_.reset();
  kv_.reset();
  arena_.reset();
  world_.network().crash(id_, silent);
  world_.loop().after(silent ? seconds(2) : draw({}, milliseconds(20)),
                      [this] { world_.router().on_node_down(id_, true); });
  world_.loop().after(down, [this] {
    boot();
    world_.trace(id_, [] { return "starts again"; });
  });
}

void Node::freeze(Duration time) {
  if (!up_) return;
  world_.trace(id_, [&] {
    return "is frozen for " +
           std::to_string(std::chrono::duration_cast<milliseconds>(time).count()) + " ms";
  });
  if (!frozen_) frozen_since_ = world_.now();
  frozen_ = true;
  frozen_until_ = std::max(frozen_until_, world_.now() + time);
  world_.network().freeze(id_, time);
  world_.loop().after(seconds(2), [this, start = start_] {
    if (start == start_ && !answers(world_.now())) world_.router().on_node_down(id_, false);
  });
  world_.loop().at(frozen_until_, [this, start = start_] {
    if (!up_ || start != start_ || !frozen_ || world_.now() < frozen_until_) return;
    world_.trace(id_, [] { return "goes on"; });
    frozen_ = false;
    catch_up();
  });
}

// One after another, each taking a moment; what comes meanwhile comes behind.
void Node::catch_up() {
  if (deferred_.empty() || catching_up_) return;
  catching_up_ = true;
  world_.loop().after(draw({}, microseconds(150)), [this, start = start_] {
    if (!up_ || start != start_) return;
    catching_up_ = false;
    if (frozen_ || deferred_.empty()) return;
    const auto action = std::move(deferred_.front());
    deferred_.pop_front();
    action();
    if (up_ && start == start_ && !frozen_) catch_up();
  });
}

bool Node::answers(TimePoint now) const {
  return up_ && !(frozen_ && now - frozen_since_ >= seconds(2));
}

void Node::keep_ticking() {
  if (ticking_) return;
  ticking_ = true;
  world_.loop().after(milliseconds(100), [this, start = start_] {
    tell(start, [this] {
      ticking_ = false;
      tick();
    });
  });
}

// Deadlines pass without an event.
void Node::tick() {
  tick_handoffs(world_.now());
  if (scheduler_->waiting() > 0 || !reserves_->empty()) post(kEngine, [this] { pump(); });
  if (!sending_.empty() || !receiving_.empty() || !early_.empty() || scheduler_->waiting() > 0 ||
      !reserves_->empty())
    keep_ticking();
}

// --- checks
// ---------------------------------------------------------------------------------------

// Each page's owners are the page tables that hold it and the index; only published ones may stand
// there.
void Node::check_counts() const {
  if (!up_ || world_.broken(Break::kI1) || world_.broken(Break::kI2)) return;
  std::vector<uint32_t> owners(static_cast<size_t>(kv_->page_count()), 0);
  for (const SequenceId id : kv_->sequences()) {
    for (const kv::PageTag tag : kv_->tags(id)) {
      if (tag.page < 0) continue;
      ++owners[static_cast<size_t>(tag.page)];
      if (!kv_->pool().is_current(tag))
        world_.violation("node " + std::to_string(id_) + ": a page table holds a stale tag");
    }
  }
  for (int32_t page = 0; page < kv_->page_count(); ++page) {
    const uint32_t expected = owners[static_cast<size_t>(page)];
    const uint32_t got = kv_->pool().owners(page);
    const bool cached = kv_->pool().state(page) == kv::PageState::kPublished;
    if (got != expected && !(cached && got == expected + 1)) {
      world_.violation("node " + std::to_string(id_) + ": page " + std::to_string(page) + " has " +
                       std::to_string(got) + " owners, but " + std::to_string(expected) +
                       " page tables hold it");
    }
  }
}

std::string Node::unrest() const {
  if (!up_) return "is down";
  if (frozen_) return "is frozen";
  if (!sending_.empty()) return "has a handoff as sender, " + sending_.begin()->first;
  if (!receiving_.empty())
    return "has a handoff as receiver, " + receiving_.begin()->second.handoff.key().id;
  if (!early_.empty()) return "waits for a prefill leg";
  if (!reserves_->empty() || !reserve_keys_.empty()) return "has handoffs that wait for memory";
  if (scheduler_->running() + scheduler_->waiting() + scheduler_->held() +
          scheduler_->in_flight() !=
      0)
    return "has sequences";
  if (!kv_->sequences().empty()) return "has page tables";
  if (kv_->used_pages() != kv_->unfenced_pages())
    return "has " + std::to_string(kv_->used_pages()) + " pages in use, " +
           std::to_string(kv_->unfenced_pages()) + " of them unfenced";
  for (int32_t page = 0; page < kv_->page_count(); ++page) {
    if (kv_->pool().readers(page) != 0 && kv_->pool().state(page) != kv::PageState::kFree)
      return "has a reader on page " + std::to_string(page);
  }
  return "";
}

}  // namespace tandem::sim
