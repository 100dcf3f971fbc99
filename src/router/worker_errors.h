// What a worker's error answer means: whose fault it is. Pure.
#pragma once

#include <string_view>

#include "base/result.h"

namespace tandem::router {

// What an error object tells, over `error`. The object may be OpenAI's or Anthropic's.
Error with_details(Error error, std::string_view object);
// The model itself has no answer to the request (its numbers are none): any other worker would
// compute the same.
bool is_the_models(const Error& error);
// The request's own KV memory was not what it should be: the client is told so, and may come again.
bool is_the_memorys(const Error& error);
// A Tandem worker's words for: the worker of the other leg is gone, frozen, or does not play its
// part.
bool names_lost_peer(const Error& error);
// The object has a top-level "error" that is not null.
bool is_error_object(std::string_view json_text);
// The text is one JSON object or array, by its first and last bytes.
bool is_json_object(std::string_view text);

}  // namespace tandem::router
