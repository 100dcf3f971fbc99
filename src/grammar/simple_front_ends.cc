// Regular expressions and choices.
#include "grammar/front_end.h"
#include "grammar/regex_syntax.h"

namespace tandem::grammar {

Result<NodeId> build_regex(FrontEnd& to, std::string_view text, Spelling spelling) {
  TANDEM_TRY(pattern, parse_pattern(text));
  TANDEM_TRY(regex, match_whole(to.program.regex(), pattern, spelling));
  return to.program.lexeme(regex);
}

Result<NodeId> build_choice(FrontEnd& to, std::string_view text) {
  auto choices = parse_json(text);
  if (!choices || !choices->is_array() || choices->items().empty())
    return make_error(400, "invalid_grammar", "The choices must be a list of at least one text.");
  std::vector<std::string> texts;
  for (const JsonValue& choice : choices->items()) {
    if (!choice.is_string() || choice.as_string().empty())
      return make_error(400, "invalid_grammar", "Every choice must be a text that is not empty.");
    texts.push_back(choice.as_string());
  }
  return to.program.lexeme(to.program.regex().literals(std::move(texts)));
}

}  // namespace tandem::grammar
