#include "router/admission_gate.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>

namespace tandem::router {

namespace {

TimePoint now() { return std::chrono::steady_clock::now(); }

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || end.ec != std::errc() || end.ptr != text.data() + text.size())
    return std::nullopt;
  return value;
}

AdmissionRefusal overloaded(int32_t retry_after) {
  return {
      {429, "overloaded",
       "the server is overloaded; send the request again in " + std::to_string(retry_after) + " s"},
      retry_after};
}

AdmissionRefusal shutting_down() {
  return {{503, "shutting_down", "the server is shutting down; send the request again"}, 1};
}

}  // namespace

struct AdmissionGate::Pool {
  Pool(net::Reactor& reactor, const AdmissionOptions& options, std::function<void(Pool&)> tick)
      : admission(options), timer(reactor, [this, tick = std::move(tick)] { tick(*this); }) {}
  Admission admission;
  net::Deadline timer;
  std::unordered_map<AdmissionId, Waiter*> waiters;
  observe::Gauge depth;
  observe::Gauge tokens;
  observe::Histogram wait;
  observe::Counter shed;
};

// One request in enter(); known to its pool as long as that runs, however it ends.
struct AdmissionGate::Waiter {
  Waiter(net::Reactor& reactor, Pool& pool_in, AdmissionId id_in)
      : changed(reactor), pool(pool_in), id(id_in) {
    pool.waiters.emplace(id, this);
  }
  ~Waiter() { pool.waiters.erase(id); }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;
  net::Event changed;
  Pool& pool;
  AdmissionId id;
  std::optional<AdmissionEvent> verdict;
  bool gone = false;
};

AdmissionGate::Permit& AdmissionGate::Permit::operator=(Permit&& other) noexcept {
  if (this == &other) return *this;
  release();
  gate_ = std::exchange(other.gate_, nullptr);
  pool_ = other.pool_;
  id_ = other.id_;
  return *this;
}

void AdmissionGate::Permit::release() {
  if (gate_ == nullptr) return;
  AdmissionGate& gate = *std::exchange(gate_, nullptr);
  gate.take(*pool_, pool_->admission.release(id_, now()));
}

AdmissionGate::AdmissionGate(net::Reactor& reactor, const AdmissionOptions& options,
                             const AdmissionLimits& limits, observe::Metrics& metrics)
    : reactor_(reactor), options_(options), limits_(limits), metrics_(metrics) {}

AdmissionGate::~AdmissionGate() = default;

AdmissionGate::Pool& AdmissionGate::pool_of(const std::string& model) {
  auto found = pools_.find(model);
  if (found != pools_.end()) return *found->second;
  auto pool = std::make_unique<Pool>(reactor_, options_,
                                     [this](Pool& of) { take(of, of.admission.tick(now())); });
  const observe::Labels labels{{"model_name", model}};
  pool->depth = metrics_.gauge("tandem_router_queue_depth", "Requests that wait for room.", labels);
  pool->tokens =
      metrics_.gauge("tandem_router_queue_tokens",
                     "Tokens, prompts and expected answers, that wait for room.", labels);
  pool->wait =
      metrics_.histogram("tandem_router_queue_wait_seconds", "Time that requests waited for room.",
                         observe::latency_buckets(), labels);
  pool->shed = metrics_.counter("tandem_router_shed_total",
                                "Requests refused with 429 for lack of room.", labels);
  return *pools_.emplace(model, std::move(pool)).first->second;
}

void AdmissionGate::take(Pool& pool, const AdmissionEvents& events) {
  for (const AdmissionEvent& event : events) {
    const auto found = pool.waiters.find(event.id);
    if (found == pool.waiters.end()) continue;  // the reactor ends, and its coroutines with it
    found->second->verdict = event;
    found->second->changed.notify();
  }
  const TimePoint at = pool.admission.wakes_at();
  if (at == TimePoint::max()) {
    pool.timer.disarm();
  } else {
    pool.timer.arm(std::max<Duration>(at - now(), std::chrono::milliseconds(1)));
  }
}

net::asio::awaitable<tl::expected<AdmissionGate::Permit, AdmissionRefusal>> AdmissionGate::enter(
    std::string model, AdmissionRequest request, int64_t workers, net::HttpResponder& responder) {
  if (!limited()) co_return Permit();
  if (closed_) co_return tl::unexpected(shutting_down());
  Pool& pool = pool_of(model);
  const TimePoint begun = now();
  if (workers > 0) {
    take(pool, pool.admission.set_capacity({limits_.requests * workers, limits_.tokens * workers},
                                           begun));
  }
  const AdmissionId id = ++next_id_;
  Waiter waiter(reactor_, pool, id);
  take(pool, pool.admission.offer(id, request, begun));
  if (!waiter.verdict) {
    responder.on_disconnect([&] {
      waiter.gone = true;
      waiter.changed.notify();
    });
    while (!waiter.verdict && !waiter.gone && !closed_) co_await waiter.changed.wait();
    responder.on_disconnect([] {});
  }
  if (!waiter.verdict) take(pool, pool.admission.cancel(id, now()));
  pool.wait.observe(to_seconds(now() - begun));
  if (waiter.verdict && waiter.verdict->kind == AdmissionEvent::Kind::kStart) {
    Permit permit;
    permit.gate_ = this;
    permit.pool_ = &pool;
    permit.id_ = id;
    if (closed_) co_return tl::unexpected(shutting_down());
    co_return permit;
  }
  if (waiter.verdict) {
    pool.shed.add();
    co_return tl::unexpected(overloaded(waiter.verdict->retry_after));
  }
  if (waiter.gone) {
    co_return tl::unexpected(
        AdmissionRefusal{{499, "client_gone", "the client left before there was room"}, 1});
  }
  co_return tl::unexpected(shutting_down());
}

void AdmissionGate::close() {
  closed_ = true;
  for (const auto& [model, pool] : pools_) {
    for (const auto& [id, waiter] : pool->waiters) waiter->changed.notify();
  }
}

bool AdmissionGate::idle() const {
  return std::all_of(pools_.begin(), pools_.end(), [](const auto& entry) {
    return entry.second->admission.idle() && entry.second->waiters.empty();
  });
}

void AdmissionGate::sample() {
  for (const auto& [model, pool] : pools_) {
    pool->depth.set(static_cast<double>(pool->admission.queued()));
    pool->tokens.set(static_cast<double>(pool->admission.queued_tokens()));
  }
}

PriorityClass parse_priority(std::string_view text) {
  if (text == "urgent" || text == "high") return PriorityClass::kUrgent;
  if (text == "batch" || text == "low") return PriorityClass::kBatch;
  return priority_class(whole_number(text).value_or(0));
}

TimePoint start_deadline(const net::Headers& headers, TimePoint now) {
  for (const char* const name : {"x-slo-ttft-ms", "x-sgl-ttft-slo-ms", "x-llm-d-slo-ttft-ms"}) {
    const auto value = whole_number(headers.get(name));
    if (value && *value > 0)
      return now + std::chrono::milliseconds(std::min<int64_t>(*value, 86400000));
  }
  return TimePoint::max();
}

}  // namespace tandem::router
