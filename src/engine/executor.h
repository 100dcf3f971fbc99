// Executor: the one thread that drives a device. It takes step plans from a bounded queue, fills in
// the tokens that were still being sampled when the plan was made, compares every page with what
// its sequence expects, runs the forward pass, samples, scores and pools, and reports the outcome.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "engine/grammar_masks.h"
#include "kv/integrity/page_digest.h"
#include "kv/integrity/tracker.h"
#include "model/model.h"
#include "protocol/request.h"
#include "protocol/step_plan.h"
#include "sample/sequence_sampler.h"

namespace tandem::engine {

// An embedding in the making: rows are added as passes compute them, in order of position and in
// double precision, so that how a prompt was cut into passes leaves no trace.
struct PoolState {
  protocol::Pooling pooling = protocol::Pooling::kMean;
  int32_t rows = 0;  // of the whole prompt
  std::vector<double> sum;
};

// What the device thread keeps for one sequence. Built by the engine, touched by the device thread
// only from the first pass on.
struct SequenceState {
  sample::SequenceSampler sampler;
  int32_t prompt_logprobs = 0;  // alternatives with each token of StepSequence::targets
  PoolState pool;
};

struct DeviceJob {
  protocol::StepPlan plan;
  // One for each of plan.sequences; null when the sequence has ended: its rows are run, since
  // another pass may build on them, and nothing is read off them.
  std::vector<std::shared_ptr<SequenceState>> states;
  std::vector<std::shared_ptr<GrammarMasks::Mask>> masks;  // as many; null: any token may come
  // Called on the device thread after each layer (the prefill legs of a handoff push as layers
  // become final).
  struct LayerDone {
    protocol::SequenceId sequence;
    std::function<void(int32_t layer)> call;
  };
  std::vector<LayerDone> layer_done;
  // What the sequences expect of their pages: as many for each as its plan has pages, one sequence
  // behind the other. Not read when the tracker is off.
  std::vector<kv::PageExpectation> expected;
  // Pages whose bytes must have these digests before the pass reads them.
  struct DigestCheck {
    size_t sequence;  // index in the plan
    int32_t place;    // [block][group]
    std::vector<uint64_t> digests;
  };
  std::vector<DigestCheck> digest_checks;
};

// What the checks of one pass found.
struct IntegrityReport {
  struct Fault {
    protocol::SequenceId sequence;
    kv::TagFault fault;
  };
  std::vector<Fault> faults;
  struct Fresh {
    kv::PageTag tag;
    std::vector<uint64_t> digests;
  };
  std::vector<Fresh> fresh;  // pages that this pass completed; level full only
};

struct JobTiming {
  Duration forward{};
  Duration integrity{};  // checks before it and digests after it
  int32_t rows = 0;
  int32_t prompt_rows = 0;  // rows beyond the first of each sequence
};

class Executor {
 public:
  using Done = std::function<void(protocol::StepOutcome, JobTiming, IntegrityReport)>;
  // `done` runs on the device thread. `model`, the pages, `tracker` and `masks` outlive the
  // executor.
  Executor(model::Model& model, ops::PageArenaView pages, int max_in_flight,
           const kv::IntegrityTracker& tracker, kv::DigestShape digest_shape, GrammarMasks& masks,
           Done done);
  ~Executor();  // finishes the running pass, drops queued ones
  void submit(DeviceJob job);

 private:
  struct Known {  // a token that a later pass may have been planned on
    protocol::SequenceId sequence;
    int32_t token;
  };
  void loop();
  protocol::StepOutcome run(DeviceJob& job, JobTiming& timing, IntegrityReport& report);
  // Takes the sequences out of the job whose pages are not what they expect.
  void check(DeviceJob& job, IntegrityReport& report, protocol::StepOutcome& outcome);
  void compare_digests(const DeviceJob& job);
  void digest_completed(const DeviceJob& job, IntegrityReport& report) const;
  bool resolve(protocol::StepPlan& plan) const;
  void gather(const DeviceJob& job, JobTiming& timing);
  void read_logits(DeviceJob& job, protocol::StepOutcome& outcome);
  void read_hidden(DeviceJob& job, protocol::StepOutcome& outcome);
  // Logprobs of the sequence's targets from logit row `row` on; false: not finite.
  bool score(const protocol::StepSequence& sequence, const SequenceState& state, size_t row,
             protocol::StepOutcome& outcome);
  std::span<float> logits_of(size_t row);

  model::Model& model_;
  ops::PageArenaView pages_;
  const kv::IntegrityTracker& tracker_;
  kv::DigestShape digest_shape_;
  GrammarMasks& masks_;
  Done done_;
  size_t max_in_flight_;
  // Working memory of a pass.
  std::vector<int32_t> tokens_;
  std::vector<ops::SequenceRows> rows_;
  std::vector<int32_t> logit_rows_;
  std::vector<int32_t> hidden_rows_;
  std::vector<float> logits_;
  std::vector<float> hidden_;
  sample::Scratch scratch_;
  std::vector<kv::StepPages> step_pages_;
  std::vector<kv::TagFault> faults_;
  // Refused by the last passes: later ones were planned before that was known.
  std::deque<std::vector<protocol::SequenceId>> refused_;
  std::vector<std::vector<Known>> recent_;  // of the last passes, newest first
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<DeviceJob> queue_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tandem::engine
