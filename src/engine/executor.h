// Executor: the one thread that drives a device. It takes step plans from a bounded queue, fills in
// the tokens that were still being sampled when the plan was made, runs the forward pass, samples,
// and reports the outcome.
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
#include "model/model.h"
#include "protocol/step_plan.h"
#include "sample/sampler.h"

namespace tandem::engine {

// What one sequence samples with; fixed for its life, shared between threads without locks.
struct SequenceSampling {
  sample::Filters filters;
  uint64_t seed = 0;
};

struct DeviceJob {
  protocol::StepPlan plan;
  std::vector<std::shared_ptr<const SequenceSampling>> sampling;  // one for each of plan.sequences
  // Called on the device thread after each layer (the prefill legs of a handoff push as layers
  // become final).
  std::vector<std::function<void(int32_t layer)>> layer_done;
};

struct JobTiming {
  Duration forward{};
  int32_t rows = 0;
  int32_t prompt_rows = 0;  // rows beyond the first of each sequence
};

class Executor {
 public:
  // `done` runs on the device thread. `model` and the pages outlive the executor.
  Executor(model::Model& model, ops::PageArenaView pages, int max_in_flight,
           std::function<void(protocol::StepOutcome, JobTiming)> done);
  ~Executor();  // finishes the running pass, drops queued ones
  void submit(DeviceJob job);

 private:
  void loop();
  protocol::StepOutcome run(DeviceJob& job, JobTiming& timing);
  bool resolve(protocol::StepPlan& plan) const;

  model::Model& model_;
  ops::PageArenaView pages_;
  std::function<void(protocol::StepOutcome, JobTiming)> done_;
  size_t max_in_flight_;
  std::vector<float> logits_;
  std::deque<std::vector<protocol::SampledToken>> recent_;  // of the last passes, newest first
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<DeviceJob> queue_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tandem::engine
