// A whole reply as the stream that a client asked for: where prefill's own reply turned out to be
// the answer (Harvest::is_answer) and no decode worker streams.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "router/usage/api.h"

namespace tandem::router {

// Of chat and completions: one event for each choice, one with usage if the client asked for it,
// [DONE]. `reply` is already rewritten. Errors: 502 "bad_response" for anything else.
Result<std::string> whole_as_stream(Api api, std::string_view reply, bool include_usage);

}  // namespace tandem::router
