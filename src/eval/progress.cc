#include "eval/progress.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include <unistd.h>

namespace tandem::eval {

std::string format_time(double seconds) {
  char text[64];
  const auto whole = static_cast<long long>(std::clamp(seconds, 0.0, 1e9));
  if (whole < 120) {
    std::snprintf(text, sizeof(text), "%lld s", whole);
  } else if (whole < 7200) {
    std::snprintf(text, sizeof(text), "%lld min", (whole + 30) / 60);
  } else {
    std::snprintf(text, sizeof(text), "%lld h %02lld min", whole / 3600, whole % 3600 / 60);
  }
  return text;
}

Progress::Progress(std::string unit, int64_t total, int64_t done)
    : unit_(std::move(unit)),
      total_(total),
      before_(done),
      done_(done),
      terminal_(isatty(STDERR_FILENO) != 0),
      started_(std::chrono::steady_clock::now()) {
  if (done > 0) {
    std::fprintf(stderr, "%lld of %lld %s were finished before\n", static_cast<long long>(done),
                 static_cast<long long>(total), unit_.c_str());
  }
}

Progress::~Progress() {
  if (terminal_ && printed_ != TimePoint{}) std::fputc('\n', stderr);
}

void Progress::advance(int64_t units, std::string_view note) {
  const std::lock_guard lock(mutex_);
  done_ += units;
  const TimePoint now = std::chrono::steady_clock::now();
  const Duration pause =
      terminal_ ? Duration(std::chrono::milliseconds(200)) : Duration(std::chrono::seconds(5));
  if (done_ < total_ && now - (printed_ == TimePoint{} ? started_ : printed_) < pause) return;
  print(now, note);
}

void Progress::print(TimePoint now, std::string_view note) {
  printed_ = now;
  const double seconds = std::max(1e-3, to_seconds(now - started_));
  const double rate = static_cast<double>(done_ - before_) / seconds;
  const std::string left =
      rate > 0 ? format_time(static_cast<double>(total_ - done_) / rate) : "unknown time";
  std::fprintf(stderr, "%s%lld of %lld %s, %.1f/s, %s left%s%.*s%s", terminal_ ? "\r" : "",
               static_cast<long long>(done_), static_cast<long long>(total_), unit_.c_str(), rate,
               left.c_str(), note.empty() ? "" : "; ", static_cast<int>(note.size()), note.data(),
               terminal_ ? "\x1b[K" : "\n");
  std::fflush(stderr);
}

}  // namespace tandem::eval
