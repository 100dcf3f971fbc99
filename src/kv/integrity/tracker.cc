#include "kv/integrity/tracker.h"

#include <array>
#include <atomic>
#include <cstring>
#include <utility>

#include "protocol/page_window.h"

namespace tandem::kv {

uint64_t content_key(const protocol::ContentId& id) {
  uint64_t key = 0;
  std::memcpy(&key, id.bytes.data(), sizeof key);
  key &= ~uint64_t{1};
  return key == 0 ? 2 : key;
}

std::string_view mismatch_name(TagMismatch mismatch) {
  static constexpr std::string_view kNames[] = {"missing", "mapping",  "generation",
                                                "owner",   "position", "digest"};
  return kNames[static_cast<size_t>(mismatch)];
}

namespace {

class NullTracker final : public IntegrityTracker {
 public:
  IntegrityLevel level() const override { return IntegrityLevel::kOff; }
  void on_page_event(PageTag, PageEvent) override {}
  void set_actor(protocol::SequenceId) override {}
  void set_time(TimePoint) override {}
  void allocated(PageTag, protocol::SequenceId, int32_t) override {}
  void published(PageTag, uint64_t) override {}
  void condemn(int32_t) override {}
  PageLabel label(int32_t) const override { return {}; }
  std::vector<PageHistoryEntry> history(int32_t) const override { return {}; }
  void set_digests(PageTag, std::vector<uint64_t>) override {}
  std::span<const uint64_t> digests(PageTag) const override { return {}; }
  void check(std::span<const StepPages>, std::vector<TagFault>&) const override {}
};

// 32 bytes: two to a cache line.
struct AtomicLabel {
  std::atomic<uint64_t> generation = 0;
  std::atomic<uint64_t> owner = 0;
  std::atomic<uint64_t> content = 0;
  std::atomic<int32_t> place = -1;
};

struct History {
  static constexpr size_t kKept = 8;
  std::array<PageHistoryEntry, kKept> entries;
  size_t count = 0;
};

struct Digests {
  uint64_t generation = 0;
  std::vector<uint64_t> values;
};

constexpr auto kRelaxed = std::memory_order_relaxed;

class LabelTracker final : public IntegrityTracker {
 public:
  explicit LabelTracker(TrackerOptions options)
      : options_(std::move(options)),
        labels_(static_cast<size_t>(options_.page_count)),
        history_(labels_.size()),
        digests_(options_.level == IntegrityLevel::kFull ? labels_.size() : 0) {}

  IntegrityLevel level() const override { return options_.level; }
  void set_actor(protocol::SequenceId id) override { actor_ = id; }
  void set_time(TimePoint now) override { now_ = now; }

  void on_page_event(PageTag tag, PageEvent event) override {
    if (tag.page < 0 || tag.page >= options_.page_count) return;
    const auto page = static_cast<size_t>(tag.page);
    History& history = history_[page];
    history.entries[history.count++ % History::kKept] = {now_, tag.generation, actor_, event};
    if (event == PageEvent::kFreed) labels_[page].generation.store(0, kRelaxed);
  }

  void allocated(PageTag tag, protocol::SequenceId owner, int32_t place) override {
    AtomicLabel& label = labels_[static_cast<size_t>(tag.page)];
    label.owner.store(owner_key(owner), kRelaxed);
    label.content.store(0, kRelaxed);
    label.place.store(place, kRelaxed);
    label.generation.store(tag.generation, kRelaxed);
  }

  void published(PageTag tag, uint64_t content) override {
    AtomicLabel& label = labels_[static_cast<size_t>(tag.page)];
    if (label.generation.load(kRelaxed) == tag.generation) label.content.store(content, kRelaxed);
  }

  void condemn(int32_t page) override {
    labels_[static_cast<size_t>(page)].generation.store(0, kRelaxed);
  }

  PageLabel label(int32_t page) const override {
    if (page < 0 || page >= options_.page_count) return {};
    const AtomicLabel& at = labels_[static_cast<size_t>(page)];
    return {at.generation.load(kRelaxed), at.owner.load(kRelaxed), at.content.load(kRelaxed),
            at.place.load(kRelaxed)};
  }

  std::vector<PageHistoryEntry> history(int32_t page) const override {
    std::vector<PageHistoryEntry> out;
    if (page < 0 || page >= options_.page_count) return out;
    const History& history = history_[static_cast<size_t>(page)];
    for (size_t i = history.count < History::kKept ? 0 : history.count - History::kKept;
         i < history.count; ++i)
      out.push_back(history.entries[i % History::kKept]);
    return out;
  }

  void set_digests(PageTag tag, std::vector<uint64_t> digests) override {
    if (!digests_.empty())
      digests_[static_cast<size_t>(tag.page)] = {tag.generation, std::move(digests)};
  }
  std::span<const uint64_t> digests(PageTag tag) const override {
    if (digests_.empty() || tag.page < 0) return {};
    const Digests& known = digests_[static_cast<size_t>(tag.page)];
    if (known.generation != tag.generation) return {};
    return known.values;
  }

  void check(std::span<const StepPages> sequences, std::vector<TagFault>& faults) const override {
    for (size_t i = 0; i < sequences.size(); ++i) {
      if (!sound(sequences[i])) faults.push_back(explain(sequences[i], i));
    }
  }

 private:
  size_t groups() const { return options_.windows.size(); }
  size_t first_live(size_t group, int32_t position) const {
    return static_cast<size_t>(
        protocol::first_live_block(options_.windows[group], position, options_.block_tokens));
  }

  // 0 when everything agrees. No branch but the loop's and the bounds'.
  uint64_t difference(size_t place, int32_t page, const PageExpectation& expected) const {
    if (page < 0 || page >= options_.page_count) return 1;
    const AtomicLabel& label = labels_[static_cast<size_t>(page)];
    const uint64_t holder = (label.owner.load(kRelaxed) ^ expected.key) != 0 &&
                            (label.content.load(kRelaxed) ^ expected.key) != 0;
    return (label.generation.load(kRelaxed) ^ expected.generation) |
           static_cast<uint64_t>(static_cast<uint32_t>(page ^ expected.page)) |
           static_cast<uint64_t>(
               static_cast<uint32_t>(label.place.load(kRelaxed) ^ static_cast<int32_t>(place))) |
           holder;
  }

  bool sound(const StepPages& pages) const {
    if (pages.expected.size() < pages.planned.size()) return false;
    uint64_t bad = 0;
    if (groups() == 1) {
      for (size_t place = first_live(0, pages.first_position); place < pages.planned.size();
           ++place)
        bad |= difference(place, pages.planned[place], pages.expected[place]);
      return bad == 0;
    }
    for (size_t group = 0; group < groups(); ++group) {
      for (size_t place = first_live(group, pages.first_position) * groups() + group;
           place < pages.planned.size(); place += groups())
        bad |= difference(place, pages.planned[place], pages.expected[place]);
    }
    return bad == 0;
  }

  // The slow way, for the first place that is wrong.
  TagFault explain(const StepPages& pages, size_t sequence) const {
    TagFault fault{.sequence = sequence};
    for (size_t place = 0; place < pages.planned.size(); ++place) {
      if (place / groups() < first_live(place % groups(), pages.first_position)) continue;
      fault.place = static_cast<int32_t>(place);
      fault.planned = pages.planned[place];
      fault.expected = place < pages.expected.size() ? pages.expected[place] : PageExpectation{};
      fault.found = label(fault.planned);
      if (fault.planned < 0 || fault.planned >= options_.page_count || fault.expected.page < 0)
        return fault;
      if (difference(place, fault.planned, fault.expected) == 0) continue;
      fault.kind = fault.planned != fault.expected.page                  ? TagMismatch::kMapping
                   : fault.found.generation != fault.expected.generation ? TagMismatch::kGeneration
                   : fault.found.place != fault.place                    ? TagMismatch::kPosition
                                                                         : TagMismatch::kOwner;
      return fault;
    }
    return fault;  // fewer expectations than places
  }

  TrackerOptions options_;
  std::vector<AtomicLabel> labels_;
  std::vector<History> history_;
  std::vector<Digests> digests_;
  protocol::SequenceId actor_ = 0;
  TimePoint now_{};
};

}  // namespace

std::unique_ptr<IntegrityTracker> make_tracker(TrackerOptions options) {
  if (options.level == IntegrityLevel::kOff) return std::make_unique<NullTracker>();
  return std::make_unique<LabelTracker>(std::move(options));
}

}  // namespace tandem::kv
