// kv_integrity: what `--kv-integrity tags` (or `full`) adds to a decode step.
//
// One process, one model, `--batch` sequences of `--tokens` tokens each. Every step runs once with
// the checks and once without, in the order ABBA, on the same rows; the difference of each pair is
// one sample. The step is timed from where its expectations are collected to where its outcome is
// there, so copying them to the device thread counts. Sequences end at different places of a block,
// so that with `full` one of 16 completes a block (and has it digested) in each step, as on
// average.
//
//   bench_kv_integrity MODEL --pairs 5000 --batch 16 --tokens 1024
//   bench_kv_integrity MODEL --append FILE   goes on with the pairs in FILE, and keeps its own
//   there
//
// Prints the mean of the differences with its 95 % interval (normal), the same without the most
// extreme tenth (other load on the machine), and both as shares of a step.
#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "config/options.h"
#include "device/shared_arena.h"
#include "engine/cache_guard.h"
#include "engine/executor.h"
#include "kv/manager/kv_manager.h"
#include "model/registry.h"

namespace tandem {
namespace {

struct Flags {
  std::string model;
  std::string level = "tags";
  std::string append;
  int32_t pairs = 5000;
  int32_t batch = 16;
  int32_t tokens = 1024;
  int32_t threads = 2;
  int32_t seconds = 0;
};

// The real tracker, switched for each step.
class Switched final : public kv::IntegrityTracker {
 public:
  explicit Switched(kv::TrackerOptions options)
      : level_(options.level), real_(kv::make_tracker(std::move(options))) {}
  bool on = true;
  kv::IntegrityLevel level() const override { return on ? level_ : kv::IntegrityLevel::kOff; }
  void on_page_event(kv::PageTag tag, kv::PageEvent event) override {
    real_->on_page_event(tag, event);
  }
  void set_actor(protocol::SequenceId id) override { real_->set_actor(id); }
  void set_time(TimePoint now) override { real_->set_time(now); }
  void allocated(kv::PageTag tag, protocol::SequenceId owner, int32_t place) override {
    real_->allocated(tag, owner, place);
  }
  void published(kv::PageTag tag, uint64_t content) override { real_->published(tag, content); }
  void condemn(int32_t page) override { real_->condemn(page); }
  kv::PageLabel label(int32_t page) const override { return real_->label(page); }
  std::vector<kv::PageHistoryEntry> history(int32_t page) const override {
    return real_->history(page);
  }
  void set_digests(kv::PageTag tag, std::vector<uint64_t> digests) override {
    real_->set_digests(tag, std::move(digests));
  }
  std::span<const uint64_t> digests(kv::PageTag tag) const override { return real_->digests(tag); }
  void check(std::span<const kv::StepPages> pages,
             std::vector<kv::TagFault>& faults) const override {
    real_->check(pages, faults);
  }

 private:
  kv::IntegrityLevel level_;
  std::unique_ptr<kv::IntegrityTracker> real_;
};

struct Samples {
  std::vector<double> base;   // seconds of a step without the checks
  std::vector<double> added;  // of its pair's difference
};

void report(const char* name, std::vector<double> added, double base, double trim) {
  std::ranges::sort(added);
  const auto cut = static_cast<std::ptrdiff_t>(trim * static_cast<double>(added.size()));
  const std::vector<double> kept(added.begin() + cut, added.end() - cut);
  double sum = 0;
  for (const double value : kept) sum += value;
  const auto count = static_cast<double>(kept.size());
  const double mean = sum / count;
  double squares = 0;
  for (const double value : kept) squares += (value - mean) * (value - mean);
  const double error = 1.96 * std::sqrt(squares / (count - 1) / count);
  std::printf(
      "%-22s %+8.1f us (95 %%: %+.1f .. %+.1f)  %+.3f %% of a step (95 %%: at most %+.3f %%)\n",
      name, mean * 1e6, (mean - error) * 1e6, (mean + error) * 1e6, 100 * mean / base,
      100 * (mean + error) / base);
}

class Bench {
 public:
  Bench(const Flags& flags, std::unique_ptr<model::Model> model)
      : flags_(flags), model_(std::move(model)), layout_(model_->page_layout(16)) {
    const int32_t blocks = (flags.tokens + 16) / 16 + 1;
    const int32_t pages = blocks * flags.batch * layout_.groups;
    arena_ = std::move(*device::SharedArena::create(layout_.page_bytes(), pages));
    std::memset(arena_->pages(), 0x3C, static_cast<size_t>(pages) * arena_->shape().page_stride);
    std::vector<int32_t> windows;
    for (const auto& group : model_->page_groups()) windows.push_back(group.window);
    tracker_.emplace(kv::TrackerOptions{.level = *kv::parse_integrity(flags.level),
                                        .page_count = pages,
                                        .block_tokens = 16,
                                        .windows = windows});
    kv_.emplace(
        kv::KvManagerOptions{
            .page_count = pages, .block_tokens = 16, .lineage = "bench", .windows = windows},
        kv::PageMemory{}, &*tracker_);
    const ops::PageArenaView view{arena_->pages(), arena_->shape().page_stride, pages, layout_};
    executor_.emplace(*model_, view, 1, *tracker_,
                      engine::digest_shape(layout_, model_->page_groups()),
                      [this](protocol::StepOutcome outcome, engine::JobTiming timing,
                             engine::IntegrityReport report) {
                        const std::lock_guard lock(mutex_);
                        good_ = outcome.error.empty() && outcome.refused.empty();
                        checks_ += to_seconds(timing.integrity);
                        (void)report;
                        done_ = true;
                        wake_.notify_one();
                      });
    for (int32_t i = 0; i < flags.batch; ++i) {
      std::vector<int32_t> prompt(static_cast<size_t>(flags.tokens - i % 16));
      for (size_t k = 0; k < prompt.size(); ++k)
        prompt[k] = static_cast<int32_t>((k * 7 + static_cast<size_t>(i) * 131) % 1000);
      (void)kv_->admit(static_cast<protocol::SequenceId>(i + 1), prompt, {}, 0);
      (void)kv_->extend(static_cast<protocol::SequenceId>(i + 1),
                        static_cast<int32_t>(prompt.size()));
      lengths_.push_back(static_cast<int32_t>(prompt.size()));
      protocol::SamplingParams params;
      params.temperature = 0;
      auto state = std::make_shared<engine::SequenceState>();
      state->sampler = sample::SequenceSampler(params, {}, 1, 0, prompt);
      states_.push_back(std::move(state));
    }
  }

  double step(bool on) {
    protocol::StepPlan plan;
    for (int32_t i = 0; i < flags_.batch; ++i) {
      const auto id = static_cast<protocol::SequenceId>(i + 1);
      const int32_t length = lengths_[static_cast<size_t>(i)];
      const auto pages = kv_->pages(id, length);
      protocol::StepSequence& sequence = plan.sequences.emplace_back();
      sequence.sequence = id;
      sequence.first_position = length - 1;
      sequence.tokens = {7 + i};
      sequence.pages.assign(pages.begin(), pages.end());
      sequence.sample = true;
    }
    engine::DeviceJob job;
    job.states = states_;
    tracker_->on = on;
    done_ = false;
    const auto start = std::chrono::steady_clock::now();
    if (tracker_->level() != kv::IntegrityLevel::kOff) {
      for (const auto& sequence : plan.sequences) {
        const auto expected = kv_->expected(sequence.sequence).first(sequence.pages.size());
        job.expected.insert(job.expected.end(), expected.begin(), expected.end());
      }
    }
    job.plan = std::move(plan);
    executor_->submit(std::move(job));
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return done_; });
    if (!good_) std::fprintf(stderr, "a step failed\n");
    return to_seconds(std::chrono::steady_clock::now() - start);
  }
  double checks() const { return checks_; }

 private:
  Flags flags_;
  std::unique_ptr<model::Model> model_;
  ops::PageLayout layout_;
  std::unique_ptr<device::SharedArena> arena_;
  std::optional<Switched> tracker_;
  std::optional<kv::KvManager> kv_;
  std::vector<std::shared_ptr<engine::SequenceState>> states_;
  std::vector<int32_t> lengths_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  bool good_ = false;
  double checks_ = 0;
  std::optional<engine::Executor> executor_;
};

int run(const std::vector<std::string>& arguments) {
  Flags flags;
  config::Options options("bench_kv_integrity", "What the checks of --kv-integrity add to a step.");
  options.positional(flags.model, "MODEL", "path of a model");
  options.choice(flags.level, "level", {"tags", "full"}, "the checks");
  options.value(flags.pairs, "pairs", "N", "pairs of steps", 10, 1 << 24);
  options.value(flags.batch, "batch", "N", "sequences", 1, 256);
  options.value(flags.tokens, "tokens", "N", "tokens of each", 32, 1 << 20);
  options.value(flags.threads, "threads", "N", "compute threads", 1, 256);
  options.value(flags.append, "append", "FILE", "pairs of earlier runs; this run's are added");
  options.value(flags.seconds, "seconds", "N", "stop after so long; 0: never", 0, 1 << 20);
  const auto parsed = options.parse(arguments);
  if (!parsed || parsed->help) {
    std::fputs(parsed ? parsed->help->c_str() : (parsed.error().message + "\n").c_str(), stderr);
    return parsed ? 0 : 2;
  }
  model::ModelOptions model_options;
  model_options.threads = flags.threads;
  model_options.max_rows = std::max(flags.batch, 16);
  auto model = model::load_model(flags.model, model_options);
  if (!model) {
    std::fprintf(stderr, "%s\n", model.error().message.c_str());
    return 1;
  }
  Samples samples;
  double base = 0;
  double added = 0;
  for (std::ifstream in(flags.append); in >> base >> added;) {
    samples.base.push_back(base);
    samples.added.push_back(added);
  }
  const size_t before = samples.base.size();
  Bench bench(flags, std::move(*model));
  for (int i = 0; i < 6; ++i) (void)bench.step(i % 2 == 0);  // warm
  const double warm = bench.checks();
  std::ofstream out(flags.append, std::ios::app);
  const auto began = std::chrono::steady_clock::now();
  while (samples.base.size() < static_cast<size_t>(flags.pairs)) {
    const bool first = samples.base.size() % 2 == 0;
    const double one = bench.step(first);
    const double two = bench.step(!first);
    const double on = first ? one : two;
    const double off = first ? two : one;
    samples.base.push_back(off);
    samples.added.push_back(on - off);
    if (!flags.append.empty()) out << off << " " << on - off << "\n";
    const double seconds = to_seconds(std::chrono::steady_clock::now() - began);
    if (flags.seconds > 0 && seconds > flags.seconds) break;
  }
  double total = 0;
  for (const double value : samples.base) total += value;
  const double mean = total / static_cast<double>(samples.base.size());
  std::printf("%zu pairs, %d sequences of about %d tokens, %d threads; a step without: %.2f ms\n",
              samples.base.size(), flags.batch, flags.tokens, flags.threads, mean * 1e3);
  report(flags.level.c_str(), samples.added, mean, 0);
  report("without extremes (10%)", samples.added, mean, 0.05);
  const auto fresh = static_cast<double>(samples.base.size() - before);
  if (fresh > 0)
    std::printf("%-22s %8.1f us, timed by itself in this run (%.4f %% of a step)\n", "the checks",
                (bench.checks() - warm) / fresh * 1e6,
                100 * (bench.checks() - warm) / fresh / mean);
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) { return tandem::run({argv + 1, argv + argc}); }
