// StopMatcher: cuts generated text at the first stop string, however the text is divided into
// pieces.
//
// Text that might be the beginning of a stop string is held back, so nothing of a stop string is
// ever sent: the pieces joined together are the same whatever the division. Held text is at most as
// long as the longest stop string.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::engine {

class StopMatcher {
 public:
  // `keep`: the stop string that matches stays in the text.
  explicit StopMatcher(std::vector<std::string> stops, bool keep = false);

  // Adds text; returns what may be sent now. After a match nothing more is accepted.
  std::string push(std::string_view text);
  // The end without a match: what was held back.
  std::string finish();
  const std::optional<std::string>& matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  bool keep_;
  std::string held_;
  std::optional<std::string> matched_;
};

}  // namespace tandem::engine
