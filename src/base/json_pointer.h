// JSON pointers (RFC 6901), as errors and schemas name a place in a document.
#pragma once

#include <string>
#include <string_view>

#include "base/json_value.h"

namespace tandem {

// The member `key` of what `base` points to.
std::string pointer_to(std::string_view base, std::string_view key);
std::string pointer_to(std::string_view base, size_t index);
// The first key of a pointer that is not empty, unescaped; takes it off.
std::string take_pointer_key(std::string_view& pointer);
// What `pointer` names in `root`; null: nothing.
const JsonValue* find_at(const JsonValue& root, std::string_view pointer);

}  // namespace tandem
