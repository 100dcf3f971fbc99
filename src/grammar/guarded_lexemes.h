// The lexemes of a client's grammar inside a text where some markers must not stand.
#pragma once

#include <string>
#include <vector>

#include "grammar/front_end.h"

namespace tandem::grammar {

// Of one grammar. Not thread-safe.
class GuardedLexemes {
 public:
  // `inner` is null where the grammar is not inside a text; both outlive this.
  GuardedLexemes(FrontEnd& to, const InnerText* inner) : to_(to), inner_(inner) {}

  bool guarded() const { return inner_ != nullptr && !inner_->never.empty(); }
  // A lexeme of the program; when guarded() without the texts that hold a marker.
  NodeId lexeme(RegexId regex);
  // A marker that several of the lexemes could still spell together; empty: surely none. 400 when
  // the limits of compiling end the search.
  Result<std::string> spelled_across();

 private:
  Result<bool> may_spell(const std::string& marker);
  Result<bool> meets(RegexId lexeme, RegexId other);
  RegexStore& store() { return to_.program.regex(); }

  FrontEnd& to_;
  const InnerText* inner_;
  std::vector<RegexId> lexemes_;  // when guarded(): each once, until they are too many
};

}  // namespace tandem::grammar
