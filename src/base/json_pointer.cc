#include "base/json_pointer.h"

#include <algorithm>

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

std::string take_pointer_key(std::string_view& pointer) {
  pointer.remove_prefix(1);  // the slash
  const size_t end = std::min(pointer.find('/'), pointer.size());
  std::string key;
  for (size_t i = 0; i < end; ++i) {
    const bool escaped = pointer[i] == '~' && i + 1 < end;
    key += escaped ? (pointer[++i] == '1' ? '/' : '~') : pointer[i];
  }
  pointer.remove_prefix(end);
  return key;
}

const JsonValue* find_at(const JsonValue& root, std::string_view pointer) {
  const JsonValue* at = &root;
  while (!pointer.empty() && at != nullptr) {
    if (pointer[0] != '/') return nullptr;
    const std::string key = take_pointer_key(pointer);
    if (!at->is_array()) {
      at = at->find(key);
      continue;
    }
    const bool number = !key.empty() && key.size() < 9 &&
                        std::ranges::all_of(key, [](char c) { return c >= '0' && c <= '9'; });
    const size_t index = number ? std::stoul(key) : SIZE_MAX;
    at = index < at->items().size() ? &at->items()[index] : nullptr;
  }
  return at;
}

}  // namespace tandem
