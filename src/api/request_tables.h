// The tables of every endpoint's request body: what each field may hold, where it goes, what it
// means. parse_request reads by them, openapi.h describes them.
#pragma once

#include <span>

#include "api/field_table.h"

namespace tandem::api {

// In the order in which they are read. Several, because endpoints share rows.
std::span<const std::span<const Field>> request_tables(Endpoint endpoint);

inline constexpr int64_t kMaxPrompts = 2048;  // of one request; choices have their own bound
inline constexpr size_t kMaxPromptBytes = size_t{64} << 20;
inline constexpr size_t kMaxPromptTokens = size_t{1} << 24;

}  // namespace tandem::api
