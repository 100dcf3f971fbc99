#include "engine/cache_guard.h"

#include <algorithm>
#include <utility>

#include "observe/log.h"

namespace tandem::engine {

using kv::IntegrityLevel;
using kv::PageTag;
using kv::TagMismatch;

namespace {

constexpr std::array kMismatches = {TagMismatch::kMissing,    TagMismatch::kMapping,
                                    TagMismatch::kGeneration, TagMismatch::kOwner,
                                    TagMismatch::kPosition,   TagMismatch::kDigest};
// Of the scrubber, in bytes a second: while the device idles, and while it works.
constexpr double kIdleRate = 256.0 * (1 << 20);
constexpr double kBusyRate = 16.0 * (1 << 20);
constexpr size_t kScrubBytes = size_t{4} << 20;  // of one submission
constexpr Duration kScrubPause = std::chrono::milliseconds(50);

std::string hex(uint64_t value) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out(16, '0');
  for (size_t i = out.size(); i-- > 0; value >>= 4) out[i] = kDigits[value & 15];
  return out;
}

// Whom a page was filled for: see kv::owner_key.
JsonValue holder(uint64_t key) {
  if (key == 0) return JsonValue();
  return JsonValue::string((key & 1) != 0 ? "sequence " + std::to_string(key >> 1)
                                          : "block " + hex(key));
}

}  // namespace

kv::DigestShape digest_shape(const ops::PageLayout& layout,
                             const std::vector<model::PageGroup>& groups) {
  kv::DigestShape shape;
  shape.kv_heads = layout.kv_heads;
  shape.head_dim = layout.head_dim;
  shape.block_tokens = layout.block_tokens;
  shape.element_bytes = layout.element_bytes();
  shape.scale_bytes =
      (layout.plane_bytes() - shape.value_bytes()) / static_cast<size_t>(layout.block_tokens);
  for (const auto& group : groups) shape.layers.push_back(group.layers);
  return shape;
}

CacheGuard::CacheGuard(ops::PageArenaView pages, const std::vector<model::PageGroup>& groups,
                       GuardOptions options, observe::Metrics& metrics, Post post)
    : pages_(pages),
      options_(std::move(options)),
      post_(std::move(post)),
      shape_(digest_shape(pages.layout, groups)),
      scrubbed_(metrics.counter("tandem_kv_scrubbed_pages_total",
                                "Cached KV pages whose bytes were compared with their digests.")),
      behind_(metrics.gauge("tandem_kv_scrub_behind_seconds",
                            "Every page cached for longer was compared since then.")),
      quarantined_(metrics.gauge("tandem_kv_pages_quarantined",
                                 "KV pages found wrong, out of use until a restart.")) {
  kv::TrackerOptions tracker{.level = options_.level,
                             .page_count = pages.page_count,
                             .block_tokens = pages.layout.block_tokens,
                             .windows = {}};
  for (const auto& group : groups) tracker.windows.push_back(group.window);
  tracker_ = kv::make_tracker(std::move(tracker));
  for (const TagMismatch kind : kMismatches) {
    found_.push_back(metrics.counter("tandem_kv_integrity_incidents_total",
                                     "Pages that were not what their reader expected.",
                                     {{"kind", std::string(kv::mismatch_name(kind))}}));
  }
  if (options_.level == IntegrityLevel::kFull)
    scrubber_ = std::make_unique<Scrubber>(pages_, shape_);
}

CacheGuard::~CacheGuard() = default;

void CacheGuard::prepare(DeviceJob& job) {
  if (options_.level == IntegrityLevel::kOff) return;
  for (size_t i = 0; i < job.plan.sequences.size(); ++i) {
    const auto& sequence = job.plan.sequences[i];
    const auto expected = kv_->expected(sequence.sequence);
    const size_t known = std::min(expected.size(), sequence.pages.size());
    job.expected.insert(job.expected.end(), expected.begin(),
                        expected.begin() + static_cast<std::ptrdiff_t>(known));
    job.expected.resize(job.expected.size() + sequence.pages.size() - known);
    if (options_.level != IntegrityLevel::kFull) continue;
    for (const size_t place : kv_->take_unverified(sequence.sequence)) {
      if (place >= known || sequence.pages[place] < 0) continue;
      if (shared_pages_++ % static_cast<uint64_t>(options_.sample) != 0) continue;
      const auto digests = tracker_->digests({expected[place].page, expected[place].generation});
      if (!digests.empty())
        job.digest_checks.push_back(
            {i, static_cast<int32_t>(place), {digests.begin(), digests.end()}});
    }
  }
}

void CacheGuard::on_report(const IntegrityReport& report,
                           const std::function<std::string(protocol::SequenceId)>& name) {
  if (options_.level == IntegrityLevel::kOff) return;
  tracker_->set_time(std::chrono::steady_clock::now());
  received(report.fresh);
  for (const auto& [sequence, fault] : report.faults)
    raise(fault, "step", sequence, name(sequence));
}

void CacheGuard::received(const std::vector<IntegrityReport::Fresh>& pages) {
  for (const auto& [tag, digests] : pages) {
    if (kv_->pool().is_current(tag)) tracker_->set_digests(tag, digests);
  }
}

JsonValue CacheGuard::describe(const kv::TagFault& fault) const {
  const auto groups = static_cast<int32_t>(shape_.layers.size());
  const auto number = [](int64_t value) { return JsonValue::integer(value); };
  const auto generation = [](uint64_t value) { return JsonValue::unsigned_integer(value); };
  JsonValue out = JsonValue::object();
  out.set("block", number(fault.place / groups));
  out.set("group", number(fault.place % groups));
  JsonValue expected = JsonValue::object();
  expected.set("page", number(fault.expected.page));
  expected.set("generation", generation(fault.expected.generation));
  expected.set("holder", holder(fault.expected.key));
  out.set("expected", std::move(expected));
  JsonValue found = JsonValue::object();
  found.set("page", number(fault.planned));
  found.set("generation", generation(fault.found.generation));
  found.set("owner", holder(fault.found.owner));
  found.set("content", holder(fault.found.content));
  found.set("block", number(fault.found.place < 0 ? -1 : fault.found.place / groups));
  found.set("group", number(fault.found.place < 0 ? -1 : fault.found.place % groups));
  if (fault.planned < 0 || fault.planned >= pages_.page_count) {
    out.set("found", std::move(found));
    return out;
  }
  const kv::PagePool& pool = kv_->pool();
  found.set("state",
            JsonValue::string(std::string(kv::page_state_name(pool.state(fault.planned)))));
  found.set("owners", number(pool.owners(fault.planned)));
  found.set("readers", number(pool.readers(fault.planned)));
  found.set("writers", number(pool.writers(fault.planned)));
  JsonValue users = JsonValue::array();
  for (const protocol::SequenceId id : kv_->users(fault.planned))
    users.push_back(JsonValue::unsigned_integer(id));
  found.set("sequences", std::move(users));
  out.set("found", std::move(found));
  JsonValue history = JsonValue::array();
  const TimePoint now = std::chrono::steady_clock::now();
  for (const auto& entry : tracker_->history(fault.planned)) {
    JsonValue event = JsonValue::object();
    event.set("event", JsonValue::string(std::string(kv::page_event_name(entry.event))));
    event.set("generation", generation(entry.generation));
    event.set("sequence", JsonValue::unsigned_integer(entry.actor));
    event.set(
        "ms_ago",
        number(std::chrono::duration_cast<std::chrono::milliseconds>(now - entry.at).count()));
    history.push_back(std::move(event));
  }
  out.set("history", std::move(history));
  return out;
}

void CacheGuard::raise(const kv::TagFault& fault, std::string where, protocol::SequenceId sequence,
                       const std::string& request) {
  ++total_;
  found_[static_cast<size_t>(fault.kind)].add();
  JsonValue line = JsonValue::object();
  line.set("incident", JsonValue::string("kv_integrity"));
  line.set("kind", JsonValue::string(std::string(kv::mismatch_name(fault.kind))));
  line.set("found_by", JsonValue::string(std::move(where)));
  line.set("sequence", JsonValue::unsigned_integer(sequence));
  line.set("request", JsonValue::string(request));
  const JsonValue details = describe(fault);  // before the quarantine changes it
  for (const auto& [key, value] : details.members()) line.set(key, value);
  if (fault.kind == TagMismatch::kDigest) tracker_->condemn(fault.planned);
  const bool taken = fault.planned >= 0 && kv_->quarantine(fault.planned);
  line.set("quarantined", JsonValue::boolean(taken));
  observe::log_error("{}", line.dump());
  const kv::PagePool& pool = kv_->pool();
  quarantined_.set(pool.quarantined_count());
  if (pool.quarantined_count() < pool.max_quarantined() || std::exchange(full_, true)) return;
  observe::log_error("the KV quarantine is full ({} pages): this memory cannot be trusted",
                     pool.quarantined_count());
  if (options_.on_full) options_.on_full();
}

std::vector<std::vector<uint64_t>> CacheGuard::digests(std::span<const PageTag> tags) const {
  std::vector<std::vector<uint64_t>> out;
  if (options_.level != IntegrityLevel::kFull) return out;
  for (const PageTag tag : tags) {
    const auto known = tracker_->digests(tag);
    out.emplace_back(known.begin(), known.end());
  }
  return out;
}

// The pages here were never used: they go with the handoff. The sender looks at its own.
void CacheGuard::on_corrupt(const CorruptCopy& copy) {
  ++total_;
  found_[static_cast<size_t>(TagMismatch::kDigest)].add();
  const auto tag = [](const PageTag& page) {
    JsonValue out = JsonValue::object();
    out.set("page", JsonValue::integer(page.page));
    out.set("generation", JsonValue::unsigned_integer(page.generation));
    return out;
  };
  JsonValue line = JsonValue::object();
  line.set("incident", JsonValue::string("kv_integrity"));
  line.set("kind", JsonValue::string(std::string(kv::mismatch_name(TagMismatch::kDigest))));
  line.set("found_by", JsonValue::string("handoff"));
  line.set("sequence", JsonValue::unsigned_integer(copy.sequence));
  line.set("request", JsonValue::string(copy.request));
  line.set("block", JsonValue::integer(copy.block));
  line.set("group", JsonValue::integer(copy.group));
  line.set("layer", JsonValue::integer(copy.layer));
  line.set("source", tag(copy.source));
  line.set("target", tag(copy.target));
  line.set("described", JsonValue::string(hex(copy.described)));
  line.set("found", JsonValue::string(hex(copy.found)));
  line.set("quarantined", JsonValue::boolean(false));
  observe::log_error("{}", line.dump());
}

void CacheGuard::recheck(std::span<const PageTag> tags) {
  if (scrubber_ == nullptr) return;
  std::vector<ScrubPage> pages;
  for (const PageTag tag : tags) {
    if (tag.page < 0) continue;
    if (auto page = scrub_page(tag)) pages.push_back(std::move(*page));
  }
  if (!pages.empty()) submit(std::move(pages), [](int64_t) {});
}

// --- the scrubber ----------------------------------------------------------------------------

std::optional<ScrubPage> CacheGuard::scrub_page(PageTag tag) const {
  if (!kv_->pool().is_current(tag) || kv_->pool().state(tag.page) != kv::PageState::kPublished)
    return std::nullopt;
  const auto digests = tracker_->digests(tag);
  if (digests.empty() || kv_->pool().quarantined(tag.page)) return std::nullopt;
  const auto groups = static_cast<int32_t>(shape_.layers.size());
  const int32_t place = tracker_->label(tag.page).place;
  return ScrubPage{tag, place % groups, place / groups, {digests.begin(), digests.end()}};
}

void CacheGuard::submit(std::vector<ScrubPage> pages, std::function<void(int64_t bad)> then) {
  std::vector<PageTag> tags;
  tags.reserve(pages.size());
  for (const ScrubPage& page : pages) tags.push_back(page.tag);
  kv_->add_readers(tags);
  scrubber_->submit(std::move(pages), [this, then = std::move(then)](std::vector<ScrubPage> seen) {
    post_([this, then, seen = std::move(seen)] {
      const auto groups = static_cast<int32_t>(shape_.layers.size());
      std::vector<PageTag> read;
      int64_t bad = 0;
      scrubbed_.add(static_cast<double>(seen.size()));
      scrubbed_pages_ += seen.size();
      for (const ScrubPage& page : seen) {
        read.push_back(page.tag);
        if (page.good) continue;
        ++bad;
        if (kv_->pool().quarantined(page.tag.page)) {  // told while this look was under way
          tracker_->condemn(page.tag.page);
          continue;
        }
        const auto place = static_cast<int32_t>(page.block) * groups + page.group;
        const kv::PageLabel label = tracker_->label(page.tag.page);
        raise({.sequence = 0,
               .kind = TagMismatch::kDigest,
               .place = place,
               .planned = page.tag.page,
               .expected = {page.tag.generation, label.content, page.tag.page},
               .found = label},
              "scrubber", 0, "");
      }
      kv_->drop_readers(read);
      then(bad);
    });
  });
}

void CacheGuard::tick(TimePoint now, bool idle) {
  tracker_->set_time(now);
  if (scrubber_ == nullptr) return;
  if (round_began_ == TimePoint{}) round_began_ = round_before_ = now;
  behind_seconds_ = to_seconds(now - round_before_);
  behind_.set(behind_seconds_);
  if (scrubbing_ || now < next_scrub_) return;
  std::vector<ScrubPage> pages;
  const size_t page_bytes = pages_.layout.page_bytes();
  // Few of a small pool: what is read cannot be evicted meanwhile.
  const auto share = static_cast<size_t>(pages_.page_count / 16);
  const size_t most = std::max<size_t>(std::min(kScrubBytes / page_bytes, share), 1);
  for (; cursor_ < pages_.page_count && pages.size() < most; ++cursor_) {
    if (auto page = scrub_page({cursor_, kv_->pool().generation(cursor_)}))
      pages.push_back(std::move(*page));
  }
  if (cursor_ == pages_.page_count) {
    cursor_ = 0;
    round_before_ = std::exchange(round_began_, now);
  }
  const double bytes = static_cast<double>(pages.size() * page_bytes);
  const auto pause = std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(bytes / (idle ? kIdleRate : kBusyRate)));
  next_scrub_ = now + std::max<Duration>(pause, kScrubPause);
  if (pages.empty()) return;
  scrubbing_ = true;
  submit(std::move(pages), [this](int64_t) { scrubbing_ = false; });
}

Status CacheGuard::verify(std::function<void(const VerifyProgress&)> tell) {
  if (scrubber_ == nullptr) {
    return make_error(
        409, "kv_integrity_off",
        "Pages have digests with --kv-integrity full only; there is nothing to compare "
        "them with.");
  }
  if (verify_) return make_error(409, "verify_running", "Another verification is running.");
  verify_.emplace();
  verify_->tell = std::move(tell);
  const kv::PagePool& pool = kv_->pool();
  for (int32_t page = pool.page_count(); page-- > 0;) {
    if (pool.state(page) == kv::PageState::kPublished)
      verify_->left.push_back({page, pool.generation(page)});
  }
  verify_->progress.total = static_cast<int64_t>(verify_->left.size());
  continue_verify();
  return {};
}

void CacheGuard::continue_verify() {
  Verify& run = *verify_;
  std::vector<ScrubPage> pages;
  const size_t most = std::max<size_t>(kScrubBytes / pages_.layout.page_bytes(), 1);
  while (!run.left.empty() && pages.size() < most) {
    auto page = scrub_page(run.left.back());
    run.left.pop_back();
    if (page) {
      pages.push_back(std::move(*page));
    } else {
      ++run.progress.gone;
    }
  }
  if (pages.empty()) {
    run.progress.done = true;
    const Verify ended = std::move(run);
    verify_.reset();
    ended.tell(ended.progress);
    return;
  }
  const auto count = static_cast<int64_t>(pages.size());
  submit(std::move(pages), [this, count](int64_t bad) {
    verify_->progress.checked += count;
    verify_->progress.bad += bad;
    verify_->tell(verify_->progress);
    continue_verify();
  });
}

CacheGuard::Incidents CacheGuard::incidents() const {
  return {total_, scrubbed_pages_, behind_seconds_};
}

}  // namespace tandem::engine
