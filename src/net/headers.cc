#include "net/headers.h"

#include <algorithm>

namespace tandem::net {

namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

bool list_has(std::string_view list, std::string_view token) {
  while (!list.empty()) {
    const size_t comma = list.find(',');
    std::string_view item = list.substr(0, comma);
    while (!item.empty() && (item.front() == ' ' || item.front() == '\t')) item.remove_prefix(1);
    while (!item.empty() && (item.back() == ' ' || item.back() == '\t')) item.remove_suffix(1);
    if (equal_ignoring_case(item, token)) return true;
    if (comma == std::string_view::npos) break;
    list.remove_prefix(comma + 1);
  }
  return false;
}

}  // namespace

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  return std::equal(a.begin(), a.end(), b.begin(),
                    [](char x, char y) { return x == y || lower(x) == lower(y); });
}

bool has_line_break(std::string_view value) {
  // (find_first_of would call memchr for every byte.)
  bool found = false;
  for (const char c : value) found |= c == '\r' || c == '\n' || c == '\0';
  return found;
}

void Headers::add(std::string name, std::string value) {
  if (fields_.empty()) fields_.reserve(kUsualFields);
  fields_.emplace_back(std::move(name), std::move(value));
}

void Headers::set(std::string_view name, std::string value) {
  erase(name);
  add(std::string(name), std::move(value));
}

size_t Headers::erase(std::string_view name) {
  return std::erase_if(fields_,
                       [&](const Field& field) { return equal_ignoring_case(field.first, name); });
}

const std::string* Headers::find(std::string_view name) const {
  for (const Field& field : fields_) {
    if (equal_ignoring_case(field.first, name)) return &field.second;
  }
  return nullptr;
}

std::string_view Headers::get(std::string_view name) const {
  const std::string* const value = find(name);
  return value == nullptr ? std::string_view() : std::string_view(*value);
}

size_t Headers::count(std::string_view name) const {
  return static_cast<size_t>(std::count_if(fields_.begin(), fields_.end(), [&](const Field& field) {
    return equal_ignoring_case(field.first, name);
  }));
}

bool Headers::has_token(std::string_view name, std::string_view token) const {
  return std::any_of(fields_.begin(), fields_.end(), [&](const Field& field) {
    return equal_ignoring_case(field.first, name) && list_has(field.second, token);
  });
}

bool is_hop_by_hop(std::string_view name, const Headers& headers) {
  static constexpr std::string_view kNames[] = {"connection",
                                                "keep-alive",
                                                "proxy-connection",
                                                "proxy-authenticate",
                                                "proxy-authorization",
                                                "te",
                                                "trailer",
                                                "transfer-encoding",
                                                "upgrade",
                                                "http2-settings"};
  for (const std::string_view known : kNames) {
    if (equal_ignoring_case(name, known)) return true;
  }
  return headers.has_token("connection", name);
}

}  // namespace tandem::net
