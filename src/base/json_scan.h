// One validating pass over a JSON text that builds no tree: the whole syntax, UTF-8, depth, and
// where the members of the outermost object (or the elements of the outermost array) stand.
// For bodies that are only looked at and spliced (json_splice.h), a megabyte and more.
//
// It accepts what parse_json accepts (checked by json_scan_fuzz.cc), if the document is an object
// or an array. Cost: json_scan_bench.cc; strings and lists of integers go 64 bytes at a time
// (json_skip.h), so a megabyte of chat takes 0.1 to 2 ms, by how much of it is structure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_value.h"
#include "base/result.h"

namespace tandem {

// A member of the outermost object, or an element of the outermost array. Offsets are into the
// scanned text.
struct JsonMemberSpan {
  std::string key;         // escapes undone: "mo\u0064el" is model; empty in an array
  size_t key_begin = 0;    // of the key's opening quote; in an array of the value
  size_t value_begin = 0;  // first byte of the value
  size_t value_end = 0;    // one past the value
  JsonValue::Kind kind = JsonValue::Kind::kNull;
  size_t elements = 0;                             // of an array or object: how many it holds
  JsonValue::Kind first = JsonValue::Kind::kNull;  // the kind of its first
};

struct JsonScanLimits {
  int max_depth = kJsonMaxDepth;  // at most 64
  size_t max_members = 4096;      // of the outermost object or array
};

class JsonScan {
 public:
  bool is_array() const { return array_; }
  const std::vector<JsonMemberSpan>& members() const { return members_; }
  // The last of that name, as readers that build a map see it; nullptr: none.
  const JsonMemberSpan* find(std::string_view key) const;
  // A key of `controlled` that stands twice in the object: the reader of the other end might take
  // the other one.
  std::optional<std::string> duplicate(const std::vector<std::string_view>& controlled) const;
  // The outermost container: its bracket, and one past the closing one.
  size_t begin() const { return begin_; }
  size_t end() const { return end_; }

 private:
  friend class JsonScanner;
  std::vector<JsonMemberSpan> members_;
  size_t begin_ = 0;
  size_t end_ = 0;
  bool array_ = false;
};

// Errors: 400 "invalid_json" with a sentence that says what is wrong, never with content.
Result<JsonScan> scan_json(std::string_view text, const JsonScanLimits& limits = {});

// The value of a scanned member as a string, an integer, a flag: nothing when it is of another
// kind.
std::optional<std::string> json_text_of(std::string_view text, const JsonMemberSpan* member);
std::optional<int64_t> json_integer_of(std::string_view text, const JsonMemberSpan* member);
bool json_flag_of(std::string_view text, const JsonMemberSpan* member);  // true only for `true`
// The bytes of the value.
inline std::string_view json_value_of(std::string_view text, const JsonMemberSpan& member) {
  return text.substr(member.value_begin, member.value_end - member.value_begin);
}

}  // namespace tandem
