#include "grammar/guarded_lexemes.h"

#include <algorithm>
#include <string_view>

namespace tandem::grammar {
namespace {

constexpr size_t kMostLexemes = 64;  // of which combinations are looked at

}  // namespace

NodeId GuardedLexemes::lexeme(RegexId regex) {
  if (!guarded()) return to_.program.lexeme(regex);
  const RegexId clean = without_markers(store(), regex, inner_->never, inner_->spelling);
  if (lexemes_.size() <= kMostLexemes && std::ranges::find(lexemes_, clean) == lexemes_.end())
    lexemes_.push_back(clean);
  return to_.program.lexeme(clean);
}

Result<std::string> GuardedLexemes::spelled_across() {
  if (!guarded()) return std::string();
  for (const std::string& marker : inner_->never) {
    TANDEM_TRY(may, may_spell(marker));
    if (may) return marker;
  }
  return std::string();
}

// Each search may be long and makes the store larger.
Result<bool> GuardedLexemes::meets(RegexId lexeme, RegexId other) {
  constexpr size_t kEffort = 2000;
  TANDEM_CHECK(to_.check_limits());
  return !store().is_empty(store().both({lexeme, other}), kEffort);
}

// A lexeme ends with the marker's beginning, others are what is in the middle, one begins with the
// rest.
Result<bool> GuardedLexemes::may_spell(const std::string& marker) {
  if (lexemes_.size() > kMostLexemes) return true;
  const RegexId any = store().star(store().bytes(ByteSet::all()));
  const std::string_view text = marker;
  std::vector<bool> reached(text.size(), false);
  for (size_t at = 1; at < text.size(); ++at) {
    const RegexId head = store().concat(any, store().literal(text.substr(0, at)));
    for (size_t i = 0; i < lexemes_.size() && !reached[at]; ++i) {
      TANDEM_TRY(ends, meets(lexemes_[i], head));
      reached[at] = ends;
    }
  }
  for (size_t at = 1; at < text.size(); ++at) {
    if (!reached[at]) continue;
    const RegexId rest = store().concat(store().literal(text.substr(at)), any);
    for (const RegexId one : lexemes_) {
      for (size_t to = at + 1; to < text.size(); ++to)
        reached[to] = reached[to] || store().matches(one, text.substr(at, to - at));
      TANDEM_TRY(begins, meets(one, rest));
      if (begins) return true;
    }
  }
  return false;
}

}  // namespace tandem::grammar
