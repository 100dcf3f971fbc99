// Reports of a run: a table for a terminal, JSON, and one HTML page that needs nothing else.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/json_value.h"
#include "loadgen/summary.h"

namespace tandem::loadgen {

struct RunFacts {
  std::string url;
  std::string model;
  std::string api;
  std::string dataset;  // as a person would say it
  std::string load;     // likewise: "closed loop, 16 clients"
  std::string date;     // ISO 8601, UTC
  bool interrupted = false;
  bool open_loop = false;
  std::vector<double> percentiles = {50, 90, 99};
};

// What stands at the head of every report: how the figures are defined.
std::string_view definitions();

std::string text_report(Summary& summary, const RunFacts& facts);
JsonValue json_report(Summary& summary, const RunFacts& facts);
std::string html_report(Summary& summary, const RunFacts& facts);
// One line while it runs.
std::string progress_line(const Summary& summary, double seconds, int64_t requests);
// One line of --save-requests.
std::string record_line(const RequestRecord& record);

}  // namespace tandem::loadgen
