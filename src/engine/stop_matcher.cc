#include "engine/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace tandem::engine {

StopMatcher::StopMatcher(std::vector<std::string> stops, bool keep)
    : stops_(std::move(stops)), keep_(keep) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

std::string StopMatcher::push(std::string_view text) {
  if (matched_) return {};
  if (stops_.empty()) return std::string(text);
  held_ += text;
  // The stop string that is complete first, by where it begins, then the one listed first.
  size_t cut = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at != std::string::npos && (cut == std::string::npos || at < cut)) {
      cut = at;
      matched_ = stop;
    }
  }
  if (matched_) {
    std::string out = held_.substr(0, cut + (keep_ ? matched_->size() : 0));
    held_.clear();
    return out;
  }
  // Hold the longest end of the text that begins some stop string.
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > keep; --length) {
      if (std::string_view(held_).substr(held_.size() - length) ==
          std::string_view(stop).substr(0, length)) {
        keep = length;
        break;
      }
    }
  }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

std::string StopMatcher::finish() { return std::exchange(held_, {}); }

}  // namespace tandem::engine
