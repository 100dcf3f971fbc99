// Reads the fields of a JSON object with types, ranges and pointers checked. A field that is absent
// or null leaves its target as it is.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_pointer.h"
#include "base/json_value.h"
#include "base/result.h"

namespace tandem::api {

class Fields {
 public:
  // `json` must outlive this; `pointer` is where it lies in the body ("" for the body itself).
  Fields(const JsonValue& json, std::string pointer) : json_(json), pointer_(std::move(pointer)) {}

  // nullptr when absent or null.
  const JsonValue* find(std::string_view key) const;
  std::string pointer(std::string_view key) const { return pointer_to(pointer_, key); }
  // 400: `key` and `what`.
  tl::unexpected<Error> error(std::string_view key, std::string_view what) const;

  Status string(std::string_view key, std::string& out, size_t limit) const;
  Status boolean(std::string_view key, bool& out) const;
  Status integer(std::string_view key, int64_t& out, int64_t low, int64_t high) const;

 private:
  const JsonValue& json_;
  std::string pointer_;
};

// A member that must be a string; `pointer` names the object. Errors: 400 "invalid_type".
Result<std::string> string_member(const JsonValue& object, const char* key,
                                  const std::string& pointer);

// Non-negative token ids of an array; `pointer` names it in errors.
Result<std::vector<int32_t>> read_tokens(const JsonValue& array, const std::string& pointer,
                                         size_t limit);
JsonValue token_array(std::span<const int32_t> tokens);

}  // namespace tandem::api
