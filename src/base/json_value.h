// JsonValue: a JSON document as values. Objects keep key order and duplicates' first position;
// numbers keep their text, so 64-bit integers and decimals survive a round trip unchanged. For
// building and for walking small documents; edits of a client's own body are byte splices
// (json_splice.h).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace tandem {

class JsonValue {
 public:
  enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject };
  using Array = std::vector<JsonValue>;
  using Member = std::pair<std::string, JsonValue>;
  using Object = std::vector<Member>;

  JsonValue() = default;
  static JsonValue boolean(bool value);
  static JsonValue integer(int64_t value);
  static JsonValue unsigned_integer(uint64_t value);
  // Shortest text that reads back as the same double; null when not finite.
  static JsonValue real(double value);
  static JsonValue number_text(std::string text);  // `text` must be a JSON number
  static JsonValue string(std::string value);
  static JsonValue array(Array values = {});
  static JsonValue object(Object members = {});

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::kNull; }
  bool is_bool() const { return kind_ == Kind::kBool; }
  bool is_number() const { return kind_ == Kind::kNumber; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_array() const { return kind_ == Kind::kArray; }
  bool is_object() const { return kind_ == Kind::kObject; }

  bool as_bool() const { return bool_; }                  // false unless kBool
  const std::string& as_string() const { return text_; }  // text of a string or of a number
  std::optional<int64_t> as_integer() const;  // exact integers only (1.0 counts, 1.5 does not)
  std::optional<double> as_double() const;
  const Array& items() const { return array_; }  // empty unless kArray
  Array& items() { return array_; }
  const Object& members() const { return object_; }  // empty unless kObject
  Object& members() { return object_; }

  const JsonValue* find(std::string_view key) const;  // nullptr when absent or not an object
  JsonValue* find(std::string_view key);
  JsonValue& set(std::string_view key,
                 JsonValue value);  // replaces in place or appends; returns the stored value
  bool erase(std::string_view key);
  void push_back(JsonValue value);

  bool operator==(const JsonValue& other) const = default;

  // Compact UTF-8 without spaces; invalid UTF-8 in strings becomes U+FFFD, so the result is always
  // valid JSON.
  std::string dump() const;
  void dump_to(std::string& out) const;

 private:
  Kind kind_ = Kind::kNull;
  bool bool_ = false;
  std::string text_;
  Array array_;
  Object object_;
};

inline constexpr int kJsonMaxDepth = 64;

// Parses a whole document: strict JSON, valid UTF-8, no trailing bytes, at most `max_depth` levels.
// Errors are 400 with code "invalid_json". Linear time, no recursion deeper than `max_depth`.
Result<JsonValue> parse_json(std::string_view text, int max_depth = kJsonMaxDepth);

// Appends `value` as a JSON string with quotes; invalid UTF-8 becomes U+FFFD.
void append_json_string(std::string& out, std::string_view value);
// One byte of a string's inside, escaped where it must be.
void append_json_byte(std::string& out, char c);

// Replaces each maximal invalid UTF-8 sequence by U+FFFD.
std::string sanitize_utf8(std::string_view text);
bool is_valid_utf8(std::string_view text);

}  // namespace tandem
