// Summary: everything a run reports, added up request by request in bounded memory.
//
// Only whole answers enter latencies and token counts; failures are counted by kind, and what the
// run's end cut off is neither. Throughput is over the time from the first request sent to the
// last answer's end. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "loadgen/distribution.h"
#include "loadgen/record.h"

namespace tandem::loadgen {

enum class Measure : uint8_t { kTtft, kTpot, kItl, kE2e };
inline constexpr std::array<Measure, 4> kMeasures = {Measure::kTtft, Measure::kTpot, Measure::kItl,
                                                     Measure::kE2e};
std::string_view measure_name(Measure measure);

// A request is good when it keeps every objective. ITL here is the largest of the request.
struct Objective {
  Measure measure = Measure::kTtft;
  double seconds = 0;
};
// "ttft:500ms", "tpot:50ms", "e2e:10s", "itl:200ms"; a number alone is milliseconds.
Result<Objective> parse_objective(std::string_view text);

// The run cut into equal pieces of time, at most kMostBins: when there are more, each two become
// one.
struct TimelineBin {
  int64_t tokens = 0;    // pieces that arrived
  int64_t finished = 0;  // whole answers
  int64_t failed = 0;
  int64_t firsts = 0;     // first pieces
  double ttft_sum = 0;    // of those
  double ttft_worst = 0;  // of those
  double busy = 0;        // seconds of requests that were open
  void add(const TimelineBin& other);
};

class Timeline {
 public:
  static constexpr size_t kMostBins = 512;
  TimelineBin& at(double seconds);
  void busy(double from, double until);
  double width() const { return width_; }
  const std::vector<TimelineBin>& bins() const { return bins_; }

 private:
  double width_ = 0.25;
  std::vector<TimelineBin> bins_;
};

class Summary {
 public:
  explicit Summary(std::vector<Objective> objectives = {}) : objectives_(std::move(objectives)) {}

  // As they happen. A piece of a request that fails later stays in the timeline, not in ITL.
  void sent(double at);
  void piece(double at);
  // `gaps`: seconds between the pieces of the answer.
  void ended(const RequestRecord& record, const std::vector<double>& gaps);
  // One reason in the server's own words for each kind, for the report.
  void explain(ErrorKind kind, std::string_view words);

  int64_t sent_count() const { return sent_; }
  int64_t completed() const { return completed_; }
  int64_t failed() const;  // without the unfinished
  int64_t errors(ErrorKind kind) const { return errors_[static_cast<size_t>(kind)]; }
  const std::map<int, int64_t>& statuses() const { return statuses_; }
  const std::array<std::string, kErrorKinds>& reasons() const { return reasons_; }
  int64_t good() const { return good_; }
  const std::vector<Objective>& objectives() const { return objectives_; }
  int64_t input_tokens() const { return input_tokens_; }
  int64_t output_tokens() const { return output_tokens_; }
  int64_t cached_tokens() const { return cached_tokens_; }
  int64_t counted_by_server() const { return counted_by_server_; }  // of completed()
  int64_t open() const { return open_; }
  int64_t most_open() const { return most_open_; }
  double seconds() const { return sent_ == 0 ? 0 : end_ - begin_; }
  double rate(double amount) const { return seconds() > 0 ? amount / seconds() : 0; }
  // Requests open on average: the sum of their times over the run's.
  double concurrency() const { return rate(busy_); }
  Distribution& of(Measure measure) { return latencies_[static_cast<size_t>(measure)]; }
  const Distribution& of(Measure measure) const { return latencies_[static_cast<size_t>(measure)]; }
  Distribution& lag() { return lag_; }  // how late an open loop's requests were sent
  Distribution& input_lengths() { return input_lengths_; }
  Distribution& output_lengths() { return output_lengths_; }
  const Timeline& timeline() const { return timeline_; }

 private:
  bool is_good(const RequestRecord& record, const std::vector<double>& gaps) const;

  std::vector<Objective> objectives_;
  std::array<Distribution, kMeasures.size()> latencies_;
  Distribution lag_;
  Distribution input_lengths_;
  Distribution output_lengths_;
  Timeline timeline_;
  std::array<int64_t, kErrorKinds> errors_{};
  std::array<std::string, kErrorKinds> reasons_;
  std::map<int, int64_t> statuses_;
  int64_t sent_ = 0;
  int64_t open_ = 0;
  int64_t most_open_ = 0;
  int64_t completed_ = 0;
  int64_t good_ = 0;
  int64_t input_tokens_ = 0;
  int64_t output_tokens_ = 0;
  int64_t cached_tokens_ = 0;
  int64_t counted_by_server_ = 0;
  double busy_ = 0;
  double begin_ = 0;
  double end_ = 0;
};

}  // namespace tandem::loadgen
