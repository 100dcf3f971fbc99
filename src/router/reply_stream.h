// The shapes of streamed replies, as far as relaying them needs to know. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "router/usage/api.h"

namespace tandem::router {

// An event that opens a stream and has no content yet: a role, an empty message or item.
bool is_opening(std::string_view data);
// The event after which nothing of the answer follows, in the APIs that have one of their own.
bool is_last_event(Api api, std::string_view data);
// Whether a stream of this API ends with [DONE].
bool ends_with_done(Api api);
// What a stream of the Responses API has said of itself so far: what a last event of the router's
// own must go on with.
struct ResponseFacts {
  std::string id;        // of the response; empty: not said yet
  int64_t sequence = 0;  // of the next event
  // Frames that the client gets, or their data.
  void learn(std::string_view frames);
};

// A whole reply as the stream that the client asked for (chat and completions; anything else is one
// event). With usage in a last chunk of its own when the client asked for it.
std::string stream_of_whole(Api api, std::string_view reply, bool include_usage);

}  // namespace tandem::router
