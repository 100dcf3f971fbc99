// Regular expressions and choices.
#include "grammar/front_end.h"
#include "grammar/regex_syntax.h"

namespace tandem::grammar {

Result<NodeId> build_regex(FrontEnd& to, std::string_view text) {
  return build_inner_regex(to, text, {});
}

Result<NodeId> build_inner_regex(FrontEnd& to, std::string_view text, const InnerText& inner) {
  RegexStore& store = to.program.regex();
  TANDEM_TRY(pattern, parse_pattern(text, {.dot = Dot::kLine}));
  TANDEM_TRY(regex, match_whole(store, pattern, inner.spelling));
  return to.program.lexeme(without_markers(store, regex, inner.never, inner.spelling));
}

RegexId without_markers(RegexStore& store, RegexId content, const std::vector<std::string>& markers,
                        Spelling spelling) {
  if (markers.empty()) return content;
  const RegexId text = store.star(any_character(store, spelling));
  return store.both({content, store.negate(store.concat({text, store.literals(markers), text}))});
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
