// What several commands share: the options of a worker, signals, the start-up budget.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "config/options.h"
#include "ops/page_layout.h"
#include "worker/worker.h"

namespace tandem::cli {

// Words of --kv-dtype, "auto" first.
inline const std::vector<std::string> kKvDtypeWords = {"auto", "f32",        "bf16",
                                                       "fp8",  "fp8-inline", "int8"};
inline std::optional<ops::KvDtype> kv_dtype_of(const std::string& word) {
  return ops::parse_kv_dtype(word);  // nothing for "auto"
}

// The options that describe a worker, whoever starts it.
struct WorkerFlags {
  std::string model;
  std::string name;
  std::string numerics = "fast";
  std::string prompt_numerics = "same";  // as `numerics`
  std::string kv_dtype = "auto";
  std::vector<std::string> kv_accept;
  int32_t threads = 0;  // 0: the cores, shared between this machine's workers
  config::Bytes kv_memory{size_t{512} << 20};
  int32_t block_tokens = 16;
  int32_t prefill_chunk = 256;  // 0: whole prompts
  int32_t prompt_patience = 8;
  int32_t max_sequences = 64;
  int32_t steps_in_flight = 1;
  std::string lineage;
  std::string pooling = "mean";
  std::string tool_parser = "auto";
  std::string reasoning_parser = "auto";
  std::string kv_integrity = "tags";
  int32_t kv_integrity_sample = 1;
  std::string kv_fault;
  std::string models_directory;
  std::vector<std::string> adapters;  // NAME=PATH
  Duration drain = std::chrono::seconds(30);
  std::string log_level = "info";

  WorkerFlags();
  void declare(config::Options& options, bool model_required = true);
  // Turns ORG/NAME[:FILE] into a path, and into the served name when none was given.
  Status find_model();
  // The same options as words for a child process (model and numbers of this worker are the
  // caller's).
  std::vector<std::string> words() const;
  Result<worker::WorkerOptions> worker_options(worker::Role role) const;
};

// Secret shared by router and workers: the environment's TANDEM_SECRET.
std::string shared_secret();
// A pair's workers believe only a router that knows their secret: without one both would compute
// the whole request.
Status check_pair_secret(bool pair);

// Blocks SIGINT and SIGTERM for the whole process (call before any thread starts) and runs
// `on_signal` on a thread of its own at the first one; a second one ends the process at once.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  void on_signal(std::function<void()> action);

 private:
  std::function<void()> action_;
  std::atomic<bool> ending_ = false;
  std::thread thread_;
};

// As many descriptors as the system allows: connections and listeners take one each.
void raise_descriptor_limit();

// One line of the start-up budget.
struct BudgetLine {
  std::string name;
  model::MemoryBudget memory;
  std::string url = {};  // of the worker, when it has one of its own
};
void print_budget(const std::vector<BudgetLine>& lines);

}  // namespace tandem::cli
