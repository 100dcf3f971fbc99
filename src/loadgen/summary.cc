#include "loadgen/summary.h"

#include <algorithm>
#include <cmath>

#include "config/options.h"

namespace tandem::loadgen {

namespace {

constexpr size_t kReasonBytes = 300;

}  // namespace

std::string_view error_kind_name(ErrorKind kind) {
  constexpr std::array<std::string_view, kErrorKinds> kNames = {
      "none",         "connect",   "http_status",  "timeout",   "connection_lost",
      "stream_error", "bad_reply", "empty_answer", "unfinished"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view measure_name(Measure measure) {
  constexpr std::array<std::string_view, kMeasures.size()> kNames = {"ttft", "tpot", "itl", "e2e"};
  return kNames[static_cast<size_t>(measure)];
}

Result<Objective> parse_objective(std::string_view text) {
  const size_t colon = text.find(':');
  for (const Measure measure : kMeasures) {
    if (colon == std::string_view::npos || text.substr(0, colon) != measure_name(measure)) continue;
    std::string limit(text.substr(colon + 1));
    if (!limit.empty() && limit.find_first_not_of("0123456789.") == std::string::npos)
      limit += "ms";
    TANDEM_TRY(duration, config::parse_duration(limit));
    return Objective{measure, to_seconds(duration)};
  }
  return make_error(400, "invalid_option",
                    "'" + std::string(text) +
                        "' is no objective: they look like ttft:500ms, tpot:50ms, itl:200ms or "
                        "e2e:10s");
}

void TimelineBin::add(const TimelineBin& other) {
  tokens += other.tokens;
  finished += other.finished;
  failed += other.failed;
  firsts += other.firsts;
  ttft_sum += other.ttft_sum;
  ttft_worst = std::max(ttft_worst, other.ttft_worst);
  busy += other.busy;
}

TimelineBin& Timeline::at(double seconds) {
  seconds = std::isfinite(seconds) ? std::max(seconds, 0.0) : 0;
  while (seconds >= width_ * static_cast<double>(kMostBins)) {
    width_ *= 2;
    for (size_t i = 0; i < bins_.size(); ++i) {
      if (i % 2 == 0) {
        const TimelineBin even = bins_[i];
        bins_[i / 2] = even;
      } else {
        bins_[i / 2].add(bins_[i]);
      }
    }
    bins_.resize((bins_.size() + 1) / 2);
  }
  const auto index = static_cast<size_t>(seconds / width_);
  if (bins_.size() <= index) bins_.resize(index + 1);
  return bins_[index];
}

void Timeline::busy(double from, double until) {
  at(until);
  for (auto i = static_cast<size_t>(std::max(from, 0.0) / width_); i < bins_.size(); ++i) {
    const double begin = static_cast<double>(i) * width_;
    if (begin >= until) break;
    bins_[i].busy += std::max(0.0, std::min(until, begin + width_) - std::max(from, begin));
  }
}

void Summary::sent(double at) {
  begin_ = sent_ == 0 ? at : std::min(begin_, at);
  end_ = std::max(end_, at);
  ++sent_;
  most_open_ = std::max(most_open_, ++open_);
}

void Summary::piece(double at) { ++timeline_.at(at).tokens; }

bool Summary::is_good(const RequestRecord& record, const std::vector<double>& gaps) const {
  return std::ranges::all_of(objectives_, [&](const Objective& objective) {
    switch (objective.measure) {
      case Measure::kTtft:
        return record.ttft() <= objective.seconds;
      case Measure::kTpot:
        return record.tpot() <= objective.seconds;
      case Measure::kItl:
        return gaps.empty() || std::ranges::max(gaps) <= objective.seconds;
      case Measure::kE2e:
        return record.e2e() <= objective.seconds;
    }
    return false;
  });
}

void Summary::ended(const RequestRecord& record, const std::vector<double>& gaps) {
  --open_;
  end_ = std::max(end_, record.ended);
  busy_ += record.ended - record.sent;
  timeline_.busy(record.sent, record.ended);
  lag_.add(record.sent - record.planned);
  ++errors_[static_cast<size_t>(record.error)];
  if (record.error != ErrorKind::kNone) {
    if (record.error == ErrorKind::kStatus) ++statuses_[record.status];
    if (record.error != ErrorKind::kUnfinished) ++timeline_.at(record.ended).failed;
    return;
  }
  ++completed_;
  ++timeline_.at(record.ended).finished;
  TimelineBin& first = timeline_.at(record.first);
  ++first.firsts;
  first.ttft_sum += record.ttft();
  first.ttft_worst = std::max(first.ttft_worst, record.ttft());
  of(Measure::kTtft).add(record.ttft());
  of(Measure::kE2e).add(record.e2e());
  if (record.output_tokens > 1) of(Measure::kTpot).add(record.tpot());
  for (const double gap : gaps) of(Measure::kItl).add(gap);
  input_lengths_.add(static_cast<double>(record.input_tokens));
  output_lengths_.add(static_cast<double>(record.output_tokens));
  input_tokens_ += record.input_tokens;
  output_tokens_ += record.output_tokens;
  cached_tokens_ += record.cached_tokens;
  if (record.counted_by_server) ++counted_by_server_;
  if (is_good(record, gaps)) ++good_;
}

void Summary::explain(ErrorKind kind, std::string_view words) {
  std::string& reason = reasons_[static_cast<size_t>(kind)];
  if (reason.empty()) reason = words.substr(0, kReasonBytes);
}

int64_t Summary::failed() const {
  int64_t all = 0;
  for (size_t kind = 1; kind < kErrorKinds; ++kind) all += errors_[kind];
  return all - errors(ErrorKind::kUnfinished);
}

}  // namespace tandem::loadgen
