#include "base/json_pointer.h"

namespace tandem {

std::string pointer_to(std::string_view base, std::string_view key) {
  std::string out(base);
  out += '/';
  for (const char c : key) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

std::string pointer_to(std::string_view base, size_t index) {
  return std::string(base) + '/' + std::to_string(index);
}

}  // namespace tandem
