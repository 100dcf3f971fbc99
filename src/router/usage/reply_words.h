// Whether a reply holds a member with a value, without parsing it. May say yes for a member of the
// same name deeper inside; never no for one that is there (as workers spell names: without
// escapes).
#pragma once

#include <cstring>
#include <string_view>

namespace tandem::router {

// `quoted` is the name with its quotes. Null does not count. Inside a string the quotes would be
// escaped, so text never matches.
inline bool holds_member(std::string_view json, std::string_view quoted) {
  size_t from = 0;
  const auto skip_space = [&](size_t at) {
    while (at < json.size() &&
           (json[at] == ' ' || json[at] == '\n' || json[at] == '\r' || json[at] == '\t'))
      ++at;
    return at;
  };
  while (from < json.size()) {
    const void* const found =
        ::memmem(json.data() + from, json.size() - from, quoted.data(), quoted.size());
    if (found == nullptr) return false;
    from = static_cast<size_t>(static_cast<const char*>(found) - json.data()) + quoted.size();
    const size_t colon = skip_space(from);
    if (colon >= json.size() || json[colon] != ':') continue;
    const size_t value = skip_space(colon + 1);
    if (value < json.size() && json[value] != 'n') return true;
  }
  return false;
}

}  // namespace tandem::router
