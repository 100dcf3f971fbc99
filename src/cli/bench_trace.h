// Traces for `tandem bench`: files that sim/traffic.h reads, and a user's own prompts, as sessions
// to send.
#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"
#include "loadgen/dataset.h"

namespace tandem::cli {

struct BenchTrace {
  std::vector<loadgen::Session> sessions;
  bool times = false;  // they come at their own times
  std::string form;    // for the report
};

struct BenchTraceOptions {
  int32_t shrink = 1;  // lengths divided by this, sharing kept
  size_t limit = 0;    // sessions; 0: all
  size_t turns = 0;    // of a session; 0: all
  double max_think = 60;
  int32_t output_tokens = 128;  // of prompts that name none
};

// `text`: Mooncake's lines, agent sessions, Azure's CSV, or lines with "prompt" or "messages".
Result<BenchTrace> read_bench_trace(std::string_view text, const BenchTraceOptions& options);

}  // namespace tandem::cli
