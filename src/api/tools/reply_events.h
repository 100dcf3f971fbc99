// What a model's reply means: text, reasoning and calls of tools, in order. The parser of the
// model's family makes these events, every API dialect renders them, whole answers too: so an
// answer that is streamed and one that is not cannot differ. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace tandem::api {

struct TextDelta {
  std::string text;
  bool operator==(const TextDelta&) const = default;
};
struct ReasoningDelta {
  std::string text;
  bool operator==(const ReasoningDelta&) const = default;
};
// Calls of one reply have the indexes 0, 1, ... One call is open at a time.
struct CallStart {
  int32_t index = 0;
  std::string id;
  std::string name;
  bool operator==(const CallStart&) const = default;
};
// Joined together the deltas are one JSON object, in one spelling: compact, key order kept, no
// needless escapes.
struct CallArguments {
  int32_t index = 0;
  std::string text;
  bool operator==(const CallArguments&) const = default;
};
struct CallEnd {
  int32_t index = 0;
  bool complete = true;  // false: the reply broke off inside the call
  bool operator==(const CallEnd&) const = default;
};

using ReplyEvent = std::variant<TextDelta, ReasoningDelta, CallStart, CallArguments, CallEnd>;
using ReplyEvents = std::vector<ReplyEvent>;

}  // namespace tandem::api
