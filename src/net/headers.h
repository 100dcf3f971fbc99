// Headers: HTTP header fields in the order they came, duplicates kept, names compared without case.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::net {

bool equal_ignoring_case(std::string_view a, std::string_view b);
// A carriage return, a line feed or a zero byte: such a value would split a message.
bool has_line_break(std::string_view value);

class Headers {
 public:
  using Field = std::pair<std::string, std::string>;

  Headers() = default;
  Headers(std::initializer_list<Field> fields) : fields_(fields) {}

  void add(std::string name, std::string value);
  void set(std::string_view name, std::string value);    // replaces every field of that name by one
  size_t erase(std::string_view name);                   // number of fields removed
  const std::string* find(std::string_view name) const;  // the first; nullptr when absent
  std::string_view get(std::string_view name) const;     // the first, or empty
  size_t count(std::string_view name) const;
  // True when a comma-separated list field (Connection, Transfer-Encoding) holds `token`.
  bool has_token(std::string_view name, std::string_view token) const;

  bool empty() const { return fields_.empty(); }
  size_t size() const { return fields_.size(); }
  auto begin() const { return fields_.begin(); }
  auto end() const { return fields_.end(); }
  std::vector<Field>& fields() { return fields_; }

 private:
  static constexpr size_t kUsualFields = 12;
  std::vector<Field> fields_;
};

// True for the fields that belong to one connection and are never forwarded (RFC 9110 §7.6.1), plus
// every field that `headers`' own Connection field names.
bool is_hop_by_hop(std::string_view name, const Headers& headers);

}  // namespace tandem::net
