// What every reply has in common, whoever sends it: the error object of OpenAI's API and the frames
// of server-sent events. Pure text.
#pragma once

#include <string>
#include <string_view>

#include "base/json_value.h"
#include "base/result.h"

namespace tandem {

// {"error": {"message", "type", "param", "code"}}. `param` is the pointer as OpenAI writes it:
// "/messages/0/role" becomes "messages[0].role".
JsonValue error_json(const Error& error);
std::string error_body(const Error& error);

// `data: <line>` for each line of `data`, and the blank line.
std::string sse_frame(std::string_view data);
std::string sse_frame(const JsonValue& json);
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";
// What ends a stream that fails after its first byte: an error frame and [DONE].
std::string sse_error(const Error& error);

}  // namespace tandem
