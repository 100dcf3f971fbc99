// AdmissionGate: where requests wait for room, one queue a model; src/router/admission decides.
// Without limits it is a null check. On the reactor's thread; outlived by whoever holds a Permit.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "net/event.h"
#include "net/http_server.h"
#include "observe/metrics.h"
#include "router/admission/admission.h"

namespace tandem::router {

// For each answering worker that is up. Zero: no limit.
struct AdmissionLimits {
  int64_t requests = 0;
  int64_t tokens = 0;
};

struct AdmissionRefusal {
  Error error;  // 429 "overloaded"; 503 "shutting_down"; 499 "client_gone": nobody is there to tell
  int32_t retry_after = 1;  // seconds
};

class AdmissionGate {
  struct Pool;

 public:
  // Room in a pool, given back when it is dropped.
  class Permit {
   public:
    Permit() = default;
    Permit(Permit&& other) noexcept { *this = std::move(other); }
    Permit& operator=(Permit&& other) noexcept;
    ~Permit() { release(); }
    void release();

   private:
    friend class AdmissionGate;
    AdmissionGate* gate_ = nullptr;
    Pool* pool_ = nullptr;
    AdmissionId id_ = 0;
  };

  AdmissionGate(net::Reactor& reactor, const AdmissionOptions& options,
                const AdmissionLimits& limits, observe::Metrics& metrics);
  ~AdmissionGate();

  bool limited() const { return limits_.requests > 0 || limits_.tokens > 0; }
  // Waits for room. `workers`: answering workers of the model that are up.
  net::asio::awaitable<tl::expected<Permit, AdmissionRefusal>> enter(std::string model,
                                                                     AdmissionRequest request,
                                                                     int64_t workers,
                                                                     net::HttpResponder& responder);
  // Whoever waits, and whoever comes, is refused.
  void close();
  bool idle() const;
  void sample();  // sets the gauges

 private:
  struct Waiter;
  Pool& pool_of(const std::string& model);
  void take(Pool& pool, const AdmissionEvents& events);

  net::Reactor& reactor_;
  AdmissionOptions options_;
  AdmissionLimits limits_;
  observe::Metrics& metrics_;
  std::map<std::string, std::unique_ptr<Pool>> pools_;  // by models that workers named
  AdmissionId next_id_ = 0;
  bool closed_ = false;
};

// A client's wish for its place in the queue: "urgent", "normal", "batch", or a whole number as in
// the `priority` of vLLM's bodies: lower goes first, 0 is normal. Anything else is normal.
PriorityClass parse_priority(std::string_view text);

// When the client wants its first token: x-slo-ttft-ms, or what SGLang's and llm-d's routers call
// it. max(): it does not say.
TimePoint start_deadline(const net::Headers& headers, TimePoint now);

}  // namespace tandem::router
