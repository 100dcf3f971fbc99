// The options of `tandem bench`, and what they ask for: a server, a load, a dataset.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "config/options.h"
#include "loadgen/client/driver.h"
#include "loadgen/dataset.h"
#include "loadgen/summary.h"

namespace tandem::cli {

struct BenchFlags {
  std::string url = "http://127.0.0.1:8000";
  std::string model;
  std::string api = "chat";
  std::string api_key;
  std::vector<std::string> headers;
  std::string dataset = "random";
  std::string trace;
  std::string input;
  std::string output;
  std::string prefix = "1024";
  int32_t prefixes = 8;
  int32_t questions = 0;
  std::string turns;
  std::string tool_result;
  std::string think = "1";
  int32_t shrink = 1;
  int32_t limit = 0;
  Duration max_think = std::chrono::seconds(60);
  int32_t seed = 1;
  int32_t concurrency = 0;
  std::string rate;
  std::string arrivals = "poisson";
  std::string burstiness = "1";
  int32_t burst = 8;
  std::string speed = "1";
  int32_t requests = 0;
  Duration duration{};
  Duration grace = std::chrono::seconds(60);
  Duration timeout = std::chrono::minutes(30);
  int32_t warmup = 1;
  std::vector<std::string> goodput;
  std::string percentiles = "50,90,99";
  std::string temperature = "0";
  bool ignore_eos = false;
  std::string extra_body;
  std::string max_tokens_name = "max_tokens";
  bool no_usage = false;
  bool no_probe = false;
  bool token_ids = false;
  int32_t vocabulary = 20000;
  std::string json;
  std::string html;
  std::string save_requests;
  bool quiet = false;

  void declare(config::Options& options);
  void declare_load(config::Options& options);
  void declare_dataset(config::Options& options);
};

// A dataset and how to say it.
struct Chosen {
  std::unique_ptr<loadgen::Dataset> dataset;
  std::string words;
};
// `seed` differs between warm-up and run, so that no prompt is met twice. `repeat`: a trace begins
// again at its end.
Result<Chosen> choose_dataset(const BenchFlags& flags, uint64_t seed, bool repeat);

Result<loadgen::Target> make_target(const BenchFlags& flags);
// How the load comes, and how to say it. `trace_times`: the dataset has times of its own.
Result<std::pair<loadgen::Schedule, std::string>> make_schedule(const BenchFlags& flags,
                                                                bool trace_times);
Result<std::vector<double>> percentiles_of(const BenchFlags& flags);
Result<std::vector<loadgen::Objective>> objectives_of(const BenchFlags& flags);

}  // namespace tandem::cli
