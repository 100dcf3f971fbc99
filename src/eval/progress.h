// Progress of a run on stderr: how much is done, how fast, how long it will take. On a terminal one
// line that is written over; else a line now and then. Any thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace tandem::eval {

class Progress {
 public:
  // `done` units were finished by an earlier run.
  Progress(std::string unit, int64_t total, int64_t done);
  ~Progress();  // ends the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `note`: the result so far, for example "perplexity 28.14".
  void advance(int64_t units, std::string_view note);

 private:
  void print(TimePoint now, std::string_view note);

  std::mutex mutex_;
  std::string unit_;
  int64_t total_;
  int64_t before_;
  int64_t done_;
  bool terminal_;
  TimePoint started_;
  TimePoint printed_{};
};

// "3 s", "12 min", "2 h 05 min".
std::string format_time(double seconds);

}  // namespace tandem::eval
