// GrammarSpec: what the text of an answer must look like, as a client or a tool list says it. Made
// by the API dialects, carried with a request to the engine, which compiles it (grammar/grammar.h).
#pragma once

#include <cstdint>
#include <string>

namespace tandem::protocol {

enum class GrammarKind : uint8_t {
  kJsonSchema,  // `text` is the schema, as JSON
  kJsonObject,  // any JSON object; `text` is empty
  kRegex,       // `text` is a regular expression that the whole answer matches
  kGbnf,        // `text` is a grammar in GBNF, rule "root"
  kLark,        // `text` is a grammar in our Lark (src/grammar/README.md), rule "start"
  kChoice,      // `text` is a JSON array of strings, one of which is the answer
};

// How JSON is spelled. There is exactly one spelling of whitespace and of strings, so that nothing
// can run on and what was generated is rendered again with the same tokens.
enum class JsonSpelling : uint8_t {
  kSpaced,   // {"a": 1, "b": [2, 3]}: as templates' tojson and Python write it
  kCompact,  // {"a":1,"b":[2,3]}
};

struct GrammarSpec {
  GrammarKind kind = GrammarKind::kJsonObject;
  std::string text = {};
  // Refuses what could only be approximated (oneOf whose branches overlap); otherwise it is
  // approximated and the compiled grammar has a note that says so.
  bool strict = false;
  JsonSpelling spelling = JsonSpelling::kSpaced;  // of everything that comes from a JSON schema
  // JSON pointer of `text` in the request's body ("/response_format/json_schema/schema"): begins
  // every error's pointer.
  std::string pointer = {};

  bool operator==(const GrammarSpec&) const = default;
};

}  // namespace tandem::protocol
