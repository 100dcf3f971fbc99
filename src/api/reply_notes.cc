#include <algorithm>

#include "api/responses.h"

namespace tandem::api {

JsonValue reply_notes(const std::vector<std::string>& notes) {
  constexpr size_t kMost = 16;
  constexpr size_t kLongest = 400;
  if (notes.empty()) return {};
  JsonValue out = JsonValue::array();
  const size_t told = notes.size() > kMost ? kMost - 1 : notes.size();
  for (size_t i = 0; i < told; ++i) {
    size_t end = std::min(notes[i].size(), kLongest);
    while (end > 0 && end < notes[i].size() && (notes[i][end] & 0xC0) == 0x80) --end;
    out.push_back(JsonValue::string(notes[i].substr(0, end)));
  }
  if (told < notes.size()) {
    out.push_back(
        JsonValue::string("and " + std::to_string(notes.size() - told) + " more of that kind"));
  }
  return out;
}

}  // namespace tandem::api
