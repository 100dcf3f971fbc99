// CacheGuard: the engine's side of KV integrity (DESIGN I4, I6, I7): what a pass must find, what is
// done when it does not, and the scrubber that looks at cached pages meanwhile.
//
// A page found wrong leaves the index and is quarantined; when its bytes are wrong every sequence
// that uses it is refused by its next pass. Each finding is one line of JSON in the log, without
// text of anybody.
//
// Everything on the engine's thread but incidents(). `post` brings work there from another one.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/json_value.h"
#include "base/result.h"
#include "engine/executor.h"
#include "engine/scrubber.h"
#include "kv/integrity/integrity.h"
#include "kv/integrity/page_digest.h"
#include "kv/integrity/tracker.h"
#include "kv/manager/kv_manager.h"
#include "model/page_groups.h"
#include "observe/metrics.h"
#include "ops/page_layout.h"

namespace tandem::engine {

struct GuardOptions {
  kv::IntegrityLevel level = kv::IntegrityLevel::kOff;
  int32_t sample = 1;  // of the pages that a hit brings, one in so many is compared
  kv::KvFaults faults = {};
  // The quarantine is full: memory cannot be trusted any more. Called once, on the engine's thread.
  std::function<void()> on_full = {};
};

// One layer of a block that did not come as the sender described it.
struct CorruptCopy {
  protocol::SequenceId sequence = 0;
  std::string request;
  int32_t layer = 0;
  int64_t block = 0;
  int32_t group = 0;
  kv::PageTag source;  // at the sender
  kv::PageTag target;
  uint64_t described = 0;  // digests
  uint64_t found = 0;
};

struct VerifyProgress {
  int64_t total = 0;    // published pages when it began
  int64_t checked = 0;  // pages that were compared
  int64_t gone = 0;     // pages that left the cache before their turn, or have no digest
  int64_t bad = 0;
  bool done = false;
};

kv::DigestShape digest_shape(const ops::PageLayout& layout,
                             const std::vector<model::PageGroup>& groups);

class CacheGuard {
 public:
  using Post = std::function<void(std::function<void()>)>;
  CacheGuard(ops::PageArenaView pages, const std::vector<model::PageGroup>& groups,
             GuardOptions options, observe::Metrics& metrics, Post post);
  ~CacheGuard();
  void stop() { scrubber_.reset(); }  // nothing is posted afterwards

  kv::IntegrityLevel level() const { return options_.level; }
  kv::IntegrityTracker& tracker() { return *tracker_; }
  const kv::DigestShape& shape() const { return shape_; }
  void attach(kv::KvManager& kv) { kv_ = &kv; }  // before anything below

  // Fills in what the job's pages are compared with.
  void prepare(DeviceJob& job);
  // Before the scheduler hears of the pass. `name` gives a sequence's request id.
  void on_report(const IntegrityReport& report,
                 const std::function<std::string(protocol::SequenceId)>& name);
  // Digests of received pages, which were compared with the sender's.
  void received(const std::vector<IntegrityReport::Fresh>& pages);

  // Of those pages whose digests are known; empty below level full.
  std::vector<std::vector<uint64_t>> digests(std::span<const kv::PageTag> tags) const;
  void on_corrupt(const CorruptCopy& copy);
  // Compares those of the pages that have digests, soon.
  void recheck(std::span<const kv::PageTag> tags);

  bool scrubs() const { return scrubber_ != nullptr; }
  // Gives the scrubber its next pages when it is time: often while the device idles, else rarely.
  void tick(TimePoint now, bool idle);
  // Compares every published page now. `tell` hears of each batch, then once with `done`. Errors:
  // 409 "kv_integrity_off" below level full, 409 "verify_running".
  Status verify(std::function<void(const VerifyProgress&)> tell);

  struct Incidents {
    uint64_t total = 0;
    uint64_t scrubbed_pages = 0;
    double scrub_behind_seconds = 0;
  };
  Incidents incidents() const;

 private:
  struct Verify {
    std::vector<kv::PageTag> left;  // last first
    VerifyProgress progress;
    std::function<void(const VerifyProgress&)> tell;
  };
  void raise(const kv::TagFault& fault, std::string where, protocol::SequenceId sequence,
             const std::string& request);
  JsonValue describe(const kv::TagFault& fault) const;
  // What the scrubber needs of a published page; nothing when its digests are not known.
  std::optional<ScrubPage> scrub_page(kv::PageTag tag) const;
  void submit(std::vector<ScrubPage> pages, std::function<void(int64_t bad)> then);
  void continue_verify();

  ops::PageArenaView pages_;
  GuardOptions options_;
  Post post_;
  kv::DigestShape shape_;
  std::unique_ptr<kv::IntegrityTracker> tracker_;
  kv::KvManager* kv_ = nullptr;
  std::vector<observe::Counter> found_;  // by TagMismatch
  observe::Counter scrubbed_;
  observe::Gauge behind_, quarantined_;
  uint64_t shared_pages_ = 0;  // for sampling
  std::atomic<uint64_t> total_ = 0;
  std::atomic<uint64_t> scrubbed_pages_ = 0;
  std::atomic<double> behind_seconds_ = 0;
  bool full_ = false;
  // The scrubber's round: every page that was published before `round_before_` began was compared
  // since then.
  int32_t cursor_ = 0;
  bool scrubbing_ = false;
  TimePoint next_scrub_{};
  TimePoint round_began_{};
  TimePoint round_before_{};
  std::optional<Verify> verify_;
  std::unique_ptr<Scrubber> scrubber_;  // last: its thread posts
};

}  // namespace tandem::engine
