#include "router/admission/admission.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace tandem::router {

namespace {

constexpr int32_t kLeastRetry = 1;
constexpr int32_t kMostRetry = 120;
constexpr uint64_t kPatienceShare = 4;
constexpr size_t kSpareTenants = 1024;  // without waiting requests, remembered

}  // namespace

PriorityClass priority_class(int64_t priority) {
  return priority < 0   ? PriorityClass::kUrgent
         : priority > 0 ? PriorityClass::kBatch
                        : PriorityClass::kNormal;
}

// A request larger than the whole pool still runs, alone.
bool Admission::fits(const AdmissionRequest& request) const {
  if (started_.empty()) return true;
  if (capacity_.requests > 0 && running() >= capacity_.requests) return false;
  return capacity_.tokens <= 0 || running_tokens_ + request.tokens <= capacity_.tokens;
}

void Admission::start(AdmissionId id, const AdmissionRequest& request, AdmissionEvents& events) {
  started_.emplace(id, request.tokens);
  running_tokens_ += request.tokens;
  events.push_back({AdmissionEvent::Kind::kStart, id, 0});
}

double Admission::start_tag(const Class& of, uint64_t tenant) {
  const auto known = of.tenants.find(tenant);
  return known == of.tenants.end() ? of.virtual_time
                                   : std::max(of.virtual_time, known->second.finish_tag);
}

AdmissionEvents Admission::offer(AdmissionId id, const AdmissionRequest& request, TimePoint now) {
  assert(!waiting_.contains(id) && !started_.contains(id));
  AdmissionRequest asked = request;
  asked.tokens = std::clamp<int64_t>(asked.tokens, 1, int64_t{1} << 40);
  AdmissionEvents events;
  rate_.pass(now, !started_.empty());
  if (waiting_.empty() && fits(asked)) {
    start(id, asked, events);
    return events;
  }
  const TimePoint deadline = std::min(asked.deadline, now + options_.max_wait);
  const double wait = expected_wait(asked);
  if (deadline <= now || wait > to_seconds(deadline - now)) {
    const int64_t ahead = queued_tokens_ + running_tokens_;
    events.push_back({AdmissionEvent::Kind::kRefuse, id, retry_after(ahead)});
    return events;
  }
  while (waiting_.size() >= options_.max_queued ||
         queued_bytes_ + asked.bytes > options_.max_queued_bytes) {
    if (make_room(asked, events)) continue;
    events.push_back({AdmissionEvent::Kind::kRefuse, id, retry_after(queued_tokens_)});
    return events;
  }
  asked.deadline = deadline;
  enqueue(id, asked, now);
  admit(now, events);
  return events;
}

void Admission::enqueue(AdmissionId id, const AdmissionRequest& request, TimePoint now) {
  Class& of = classes_[static_cast<size_t>(request.priority)];
  const double tag = start_tag(of, request.tenant);
  Tenant& tenant = of.tenants[request.tenant];
  tenant.finish_tag = tag + static_cast<double>(request.tokens);
  tenant.waiting_tokens += request.tokens;
  const uint64_t arrival = arrival_++;
  tenant.waiting.emplace(arrival, id);
  of.order.emplace(tag, id);
  arrivals_.emplace(arrival, id);
  deadlines_.emplace(request.deadline, id);
  queued_tokens_ += request.tokens;
  queued_bytes_ += request.bytes;
  waiting_.emplace(id, Waiting{request, now, request.deadline, tag, arrival});
}

void Admission::remove(AdmissionId id, bool started) {
  const auto found = waiting_.find(id);
  const Waiting& gone = found->second;
  Class& of = classes_[static_cast<size_t>(gone.request.priority)];
  of.order.erase({gone.start_tag, id});
  Tenant& tenant = of.tenants.at(gone.request.tenant);
  tenant.waiting_tokens -= gone.request.tokens;
  // What was not served is not charged, where nothing of the tenant came after it.
  if (!started && tenant.waiting.rbegin()->first == gone.arrival)
    tenant.finish_tag = gone.start_tag;
  tenant.waiting.erase(gone.arrival);
  arrivals_.erase(gone.arrival);
  deadlines_.erase({gone.deadline, id});
  queued_tokens_ -= gone.request.tokens;
  queued_bytes_ -= gone.request.bytes;
  waiting_.erase(found);
  forget_tenants(of);
}

// Tags mean something only against each other's: an idle class forgets all of them, a busy one the
// tenants that are not ahead of it, and the others too when keys without end come by.
void Admission::forget_tenants(Class& of) {
  if (of.order.empty()) {
    of.tenants.clear();
    of.virtual_time = 0;
    return;
  }
  if (of.tenants.size() <= of.order.size() + kSpareTenants) return;
  std::erase_if(of.tenants, [&](const auto& entry) {
    return entry.second.waiting.empty() && entry.second.finish_tag <= of.virtual_time;
  });
  if (of.tenants.size() > of.order.size() + kSpareTenants)
    std::erase_if(of.tenants, [](const auto& entry) { return entry.second.waiting.empty(); });
}

AdmissionId Admission::next(TimePoint now) const {
  const Waiting& oldest = waiting_.at(arrivals_.begin()->second);
  if (turn_ % kPatienceShare == 0 && oldest.since + options_.patience <= now)
    return classes_[static_cast<size_t>(oldest.request.priority)].order.begin()->second;
  const auto first = std::find_if(classes_.begin(), classes_.end(),
                                  [](const Class& of) { return !of.order.empty(); });
  return first->order.begin()->second;
}

void Admission::admit(TimePoint now, AdmissionEvents& events) {
  while (!waiting_.empty()) {
    const AdmissionId id = next(now);
    const Waiting& chosen = waiting_.at(id);
    // Smaller ones behind it do not pass: it would starve.
    if (!fits(chosen.request)) return;
    const AdmissionRequest request = chosen.request;
    Class& of = classes_[static_cast<size_t>(request.priority)];
    of.virtual_time = std::max(of.virtual_time, chosen.start_tag);
    remove(id, /*started=*/true);
    ++turn_;
    start(id, request, events);
  }
}

AdmissionEvents Admission::release(AdmissionId id, TimePoint now) {
  AdmissionEvents events;
  const auto found = started_.find(id);
  assert(found != started_.end());
  rate_.pass(now, true);
  rate_.finished(found->second);
  running_tokens_ -= found->second;
  started_.erase(found);
  admit(now, events);
  return events;
}

AdmissionEvents Admission::cancel(AdmissionId id, TimePoint now) {
  AdmissionEvents events;
  if (!waiting_.contains(id)) return events;
  remove(id, /*started=*/false);
  admit(now, events);  // it may have been the head
  return events;
}

AdmissionEvents Admission::set_capacity(const AdmissionCapacity& capacity, TimePoint now) {
  AdmissionEvents events;
  capacity_ = capacity;
  admit(now, events);
  return events;
}

AdmissionEvents Admission::tick(TimePoint now) {
  AdmissionEvents events;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const AdmissionId id = deadlines_.begin()->second;
    refuse(id, events);
  }
  admit(now, events);
  return events;
}

TimePoint Admission::wakes_at() const {
  return deadlines_.empty() ? TimePoint::max() : deadlines_.begin()->first;
}

void Admission::refuse(AdmissionId id, AdmissionEvents& events) {
  remove(id, /*started=*/false);
  events.push_back({AdmissionEvent::Kind::kRefuse, id, retry_after(queued_tokens_)});
}

bool Admission::make_room(const AdmissionRequest& newcomer, AdmissionEvents& events) {
  for (size_t at = kClasses; at-- > 0;) {
    const Class& of = classes_[at];
    if (of.order.empty()) continue;
    const bool lower = at > static_cast<size_t>(newcomer.priority);
    if (!lower && at != static_cast<size_t>(newcomer.priority)) return false;
    const auto heaviest =
        std::max_element(of.tenants.begin(), of.tenants.end(), [](const auto& a, const auto& b) {
          return std::pair(a.second.waiting_tokens, a.first) <
                 std::pair(b.second.waiting_tokens, b.first);
        });
    if (!lower) {
      const auto own = of.tenants.find(newcomer.tenant);
      const int64_t mine = own == of.tenants.end() ? 0 : own->second.waiting_tokens;
      if (mine + newcomer.tokens >= heaviest->second.waiting_tokens) return false;
    }
    refuse(heaviest->second.waiting.rbegin()->second, events);
    return true;
  }
  return false;
}

// What is served before it at the measured rate; zero while nothing is measured. What runs already
// is half done on average.
double Admission::expected_wait(const AdmissionRequest& request) const {
  const double rate = rate_.tokens_per_second();
  if (rate <= 0) return 0;
  const auto own = static_cast<size_t>(request.priority);
  int64_t ahead = running_tokens_ / 2;
  const double tag = start_tag(classes_[own], request.tenant);
  for (size_t at = 0; at <= own; ++at) {
    for (const auto& [start, id] : classes_[at].order) {
      if (at == own && start > tag) break;
      ahead += waiting_.at(id).request.tokens;
    }
  }
  return static_cast<double>(ahead) / rate;
}

int32_t Admission::retry_after(int64_t tokens) const {
  const double rate = rate_.tokens_per_second();
  if (rate <= 0) return kLeastRetry;
  const double seconds = std::ceil(static_cast<double>(tokens) / rate);
  return static_cast<int32_t>(std::clamp<double>(seconds, kLeastRetry, kMostRetry));
}

}  // namespace tandem::router
