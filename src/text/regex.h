// Regular expressions of tokenizer files, through PCRE2: for patterns that no scanner knows.
// Bounded: a search that takes too many steps, too much heap or depth gives up and says so; nothing
// recurses on the machine stack. Immutable; split() may be called from any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "text/function_ref.h"

namespace tandem::text {

class Regex {
 public:
  // `pattern` in the syntax that Oniguruma and Rust's regex share with PCRE2; \s and \S mean
  // White_Space. Errors: 400 "invalid_tokenizer" with what is wrong and where, or
  // "unsupported_tokenizer" for a class intersection.
  static Result<Regex> compile(std::string_view pattern);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Calls piece(part, matched) for each match that is not empty and each gap between matches, in
  // order; together they are `text`. A byte that is not UTF-8 is in a gap of its own. Text is
  // searched in windows of 16 KiB that end before a word (or, in a longer word, anywhere between
  // characters), so that no pattern costs more than 16 KiB squared; a search that hits its bounds
  // matches the rest of its window.
  void split(std::string_view text, FunctionRef<void(std::string_view, bool)> piece) const;

 private:
  struct State;
  explicit Regex(std::unique_ptr<State> state);
  void split_window(std::string_view text, FunctionRef<void(std::string_view, bool)> piece) const;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::text
