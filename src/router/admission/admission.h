// Admission: overload control of one pool (the workers of one model). A pure state machine: offers,
// releases and time go in, decisions come out.
//
//   offer     it starts at once when there is room and nobody waits; else it waits in a bounded
//             queue, or is refused when its wait is expected to pass its deadline
//   order     by class (urgent, normal, batch); within a class start-time fair queueing over
//             tenants (Goyal et al. 1996) by tokens, so a tenant's share does not depend on how
//             many requests it sends; within a tenant in order of arrival
//   patience  while someone waited longer than `patience`, every fourth start from the queue is its
//             class's: no class starves, and within a class fair queueing starves nobody
//   full      a full queue drops the last request of the tenant that holds most of the lowest
//             class, if that is not the newcomer itself: a flood is refused, not its neighbours
//   deadline  checked when offered (expected wait by the measured rate) and while it waits
//
// A refusal carries the seconds after which trying again makes sense. Nothing is ever lost: each
// offer ends as exactly one of started (then release), refused or cancelled, and counts return to
// zero. One owner; not thread-safe. Every step is O(log queue), an offer to a busy pool O(queue).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "router/admission/service_rate.h"

namespace tandem::router {

// What the pool may hold in flight. Zero: no limit. When no worker is left, keep the last one: zero
// would let everything in.
struct AdmissionCapacity {
  int64_t requests = 0;
  int64_t tokens = 0;
  bool operator==(const AdmissionCapacity&) const = default;
};

struct AdmissionOptions {
  size_t max_queued = 1024;                     // requests
  size_t max_queued_bytes = size_t{256} << 20;  // of bodies that wait
  Duration max_wait = std::chrono::seconds(60);
  Duration patience = std::chrono::seconds(10);
};

enum class PriorityClass : uint8_t { kUrgent, kNormal, kBatch };
// As in the clients' `priority`: lower numbers go first, 0 is normal.
PriorityClass priority_class(int64_t priority);

struct AdmissionRequest {
  uint64_t tenant = 0;  // digest of the client's key
  PriorityClass priority = PriorityClass::kNormal;
  int64_t tokens = 1;                     // its cost: prompt and expected output
  size_t bytes = 0;                       // memory that it holds while it waits
  TimePoint deadline = TimePoint::max();  // to start by; max_wait bounds it too
};

using AdmissionId = uint64_t;

struct AdmissionEvent {
  enum class Kind : uint8_t { kStart, kRefuse } kind = Kind::kStart;
  AdmissionId id = 0;
  int32_t retry_after = 0;  // seconds; of a refusal
};
using AdmissionEvents = std::vector<AdmissionEvent>;

class Admission {
 public:
  explicit Admission(const AdmissionOptions& options) : options_(options) {}

  // The answer about `id` itself is in the events when it is known at once; else it waits. `id` is
  // the caller's, new each time.
  [[nodiscard]] AdmissionEvents offer(AdmissionId id, const AdmissionRequest& request,
                                      TimePoint now);
  // A started request ended. Others may start.
  [[nodiscard]] AdmissionEvents release(AdmissionId id, TimePoint now);
  // The client of a waiting request left.
  [[nodiscard]] AdmissionEvents cancel(AdmissionId id, TimePoint now);
  // Workers came or went.
  [[nodiscard]] AdmissionEvents set_capacity(const AdmissionCapacity& capacity, TimePoint now);
  // At wakes_at(): refuses what waited past its deadline.
  [[nodiscard]] AdmissionEvents tick(TimePoint now);
  TimePoint wakes_at() const;  // max(): not before something else happens

  size_t queued() const { return waiting_.size(); }
  int64_t queued_tokens() const { return queued_tokens_; }
  size_t queued_bytes() const { return queued_bytes_; }
  int64_t running() const { return static_cast<int64_t>(started_.size()); }
  int64_t running_tokens() const { return running_tokens_; }
  double tokens_per_second() const { return rate_.tokens_per_second(); }
  bool idle() const {
    return waiting_.empty() && started_.empty() && running_tokens_ == 0 && queued_tokens_ == 0 &&
           queued_bytes_ == 0;
  }

 private:
  static constexpr size_t kClasses = 3;
  using Place = std::pair<double, AdmissionId>;  // start tag, then arrival
  struct Waiting {
    AdmissionRequest request;
    TimePoint since;
    TimePoint deadline;
    double start_tag;
    uint64_t arrival;
  };
  struct Tenant {
    double finish_tag = 0;
    int64_t waiting_tokens = 0;
    std::map<uint64_t, AdmissionId> waiting{};  // by arrival
  };
  struct Class {
    double virtual_time = 0;
    std::set<Place> order;
    std::unordered_map<uint64_t, Tenant> tenants;  // those with waiting requests, or ahead of time
  };

  bool fits(const AdmissionRequest& request) const;
  void start(AdmissionId id, const AdmissionRequest& request, AdmissionEvents& events);
  void admit(TimePoint now, AdmissionEvents& events);
  AdmissionId next(TimePoint now) const;
  void enqueue(AdmissionId id, const AdmissionRequest& request, TimePoint now);
  void remove(AdmissionId id, bool started);
  static void forget_tenants(Class& of);
  // Makes room in a full queue. False: the newcomer is the one to refuse.
  bool make_room(const AdmissionRequest& newcomer, AdmissionEvents& events);
  void refuse(AdmissionId id, AdmissionEvents& events);
  double expected_wait(const AdmissionRequest& request) const;
  int32_t retry_after(int64_t tokens) const;
  static double start_tag(const Class& of, uint64_t tenant);

  AdmissionOptions options_;
  AdmissionCapacity capacity_;
  ServiceRate rate_;
  std::array<Class, kClasses> classes_;
  std::unordered_map<AdmissionId, Waiting> waiting_;
  std::map<uint64_t, AdmissionId> arrivals_;
  std::set<std::pair<TimePoint, AdmissionId>> deadlines_;
  std::unordered_map<AdmissionId, int64_t> started_;  // tokens
  uint64_t arrival_ = 0;
  uint64_t turn_ = 0;  // starts from the queue
  int64_t queued_tokens_ = 0;
  size_t queued_bytes_ = 0;
  int64_t running_tokens_ = 0;
};

}  // namespace tandem::router
