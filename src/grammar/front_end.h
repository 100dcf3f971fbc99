// Front ends: texts of each kind of grammar to programs. Each checks its input itself; errors as
// grammar.h says.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_value.h"
#include "base/result.h"
#include "grammar/program.h"
#include "grammar/vocabulary.h"
#include "protocol/grammar_spec.h"

namespace tandem::grammar {

struct FrontEnd {
  Program& program;
  const Vocabulary* vocabulary;  // null: names of special tokens are not looked up
  bool strict = false;
  protocol::JsonSpelling spelling = protocol::JsonSpelling::kSpaced;
  size_t size_limit = 0;
  std::chrono::steady_clock::time_point deadline;
  std::vector<std::string> notes = {};

  // To be called now and then.
  Status check_limits() const;
  // The tokens that `text` names: "<|name|>" or "<[12,20-25]>".
  Result<NodeId> special(std::string_view text);
};

Result<NodeId> build_json_schema(FrontEnd& to, const JsonValue& schema, const std::string& pointer);
Result<NodeId> build_regex(FrontEnd& to, std::string_view text);
Result<NodeId> build_gbnf(FrontEnd& to, std::string_view text);
Result<NodeId> build_lark(FrontEnd& to, std::string_view text);
Result<NodeId> build_choice(FrontEnd& to, std::string_view text);

}  // namespace tandem::grammar
