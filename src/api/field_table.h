// Field tables: one row says what a field of a request body may hold, where its value goes and what
// it means. The same rows validate requests (read_fields) and describe them (fields_schema), so the
// document at /openapi.json cannot say anything else than what the server does.
//
// Types are strict; null is as good as absent. A field that no row names is ignored. Pure and
// immutable.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "api/openai.h"
#include "base/json_value.h"
#include "base/result.h"

namespace tandem::api {

// A request while it is read: what later checks need beside the request itself.
struct Draft {
  ApiRequest request;
  std::optional<int64_t> max_tokens;
  std::optional<int64_t> max_completion_tokens;
  std::optional<int64_t> best_of;
  bool logprobs = false;
  std::optional<int64_t> top_logprobs;
  bool stream_options = false;
  bool tools_off = false;  // tool_choice "none"
  std::string reasoning_effort;
  const JsonValue* earlier = nullptr;  // items of the conversation that goes on; null: none
  std::string system;                  // comes before the messages; empty: nothing does
  std::optional<bool> thinking;        // whether the model is to reason
};

struct Field;

struct Flag {
  bool& (*at)(Draft&);
};
struct Integer {
  int64_t low;
  int64_t high;
  void (*put)(Draft&, int64_t);
};
struct Real {
  double low;
  double high;
  bool above;  // the lower bound itself is out
  float& (*at)(Draft&);
};
struct Text {
  size_t limit;  // bytes
  std::string& (*at)(Draft&);
};
// One of a few strings.
struct Words {
  std::span<const std::string_view> words;
  void (*put)(Draft&, std::string_view);
};
// An object with fields of its own.
struct Group {
  std::span<const Field> fields;
  void (*seen)(Draft&);  // may be null
};
// What no other rule says: `schema` is JSON Schema text.
struct Special {
  const char* schema;
  Status (*read)(const JsonValue& value, const std::string& pointer, Draft& draft);
};
// Accepted and without effect, but of the right kind: letters out of "bnsao" (boolean, number,
// string, array, object).
struct Unused {
  const char* kinds;
};
// Not supported yet: anything but these values (a JSON array), which mean "not used", would change
// the answer and is refused.
struct Refused {
  const char* neutral;
};

struct Field {
  const char* name;
  const char* help;
  std::variant<Flag, Integer, Real, Text, Words, Group, Special, Unused, Refused> rule;
  const char* absent = nullptr;  // what an absent field means, as JSON text; null: nothing to say
  bool required = false;
};

// Reads `object` by `fields`. Errors: 400 with the pointer of the field and OpenAI's code
// ("invalid_type", "decimal_above_max_value", "unsupported_parameter", ...).
Status read_fields(std::span<const Field> fields, const JsonValue& object,
                   const std::string& pointer, Draft& draft);

// The members of a JSON Schema object: {"name": {...}, ...}; `required` gets the names of required
// fields.
JsonValue fields_schema(std::span<const Field> fields, JsonValue& required);

// A key given twice means one value to one reader and the other to the next.
Status check_keys(const JsonValue& object, const std::string& pointer);

}  // namespace tandem::api
