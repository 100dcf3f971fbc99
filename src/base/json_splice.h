// Byte splices of a JSON object's top level: everything outside the edit stays byte for byte (key
// order, number text, unknown fields, white space). The text must already have passed parse_json;
// these only find places.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem {

struct JsonMemberSpan {
  std::string
      key;  // unescaped only if it has no escapes; otherwise the raw text between the quotes
  size_t key_begin;    // offset of the key's opening quote
  size_t value_begin;  // first byte of the value
  size_t value_end;    // one past the value
};

// Members of the top-level object in order. Fails with 400 if `text` is not an object.
Result<std::vector<JsonMemberSpan>> json_top_level(std::string_view text);

// Adds `"key":value` as the first member. `value` is JSON text.
Result<std::string> json_insert_member(std::string_view text, std::string_view key,
                                       std::string_view value);

// Removes every top-level member named `key`, with one comma.
Result<std::string> json_erase_member(std::string_view text, std::string_view key);

// Replaces the value of the top-level member `key`, or inserts it.
Result<std::string> json_replace_member(std::string_view text, std::string_view key,
                                        std::string_view value);

}  // namespace tandem
