// Grammars: what the text of an answer must look like, as masks over tokens.
//
//   auto vocabulary = std::make_shared<const Vocabulary>(table);          // once for a model
//   TANDEM_TRY(grammar, compile({.kind = GrammarKind::kJsonSchema, .text = schema}, vocabulary));
//   Matcher matcher(grammar);                                             // one for each sequence
//   TANDEM_CHECK(matcher.mask(mask)); ... matcher.accept(token); ... matcher.rollback(2);
//
// A Grammar is shared by any number of sequences and threads. What runs never reads a clock: limits
// are counted in states, so that the same grammar fails or works everywhere; only compiling also
// has a time limit.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "grammar/machine.h"
#include "grammar/token_mask.h"
#include "grammar/vocabulary.h"
#include "protocol/grammar_spec.h"

namespace tandem::grammar {

struct CompileLimits {
  size_t text = size_t{1} << 20;  // bytes of the grammar's text
  size_t size = 1'000'000;        // parts of the compiled grammar
  std::chrono::milliseconds time{2000};
  MachineLimits machine = {};
};

class Grammar {
 public:
  Grammar(std::shared_ptr<const Program> program, std::shared_ptr<const Vocabulary> vocabulary,
          std::vector<std::string> notes, const MachineLimits& limits);

  // What was approximated, a sentence each; empty when the grammar is exact.
  const std::vector<std::string>& notes() const { return notes_; }
  const Vocabulary& vocabulary() const { return *vocabulary_; }
  // States for a new sequence: those that others made, unless these have become too many.
  std::shared_ptr<Machine> machine() const;

 private:
  const std::shared_ptr<const Program> program_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  const std::vector<std::string> notes_;
  const MachineLimits limits_;
  mutable std::mutex mutex_;  // machine_
  mutable std::shared_ptr<Machine> machine_;
};

// Errors are 400s whose pointer is spec.pointer and, in a JSON schema, the place of the keyword:
// "invalid_grammar" (not what its kind says), "unsupported_grammar" (a construct that is refused,
// named), "grammar_too_large", "grammar_timeout".
Result<std::shared_ptr<const Grammar>> compile(const protocol::GrammarSpec& spec,
                                               std::shared_ptr<const Vocabulary> vocabulary,
                                               const CompileLimits& limits = {});
// The same checks where no vocabulary is at hand: the names of special tokens are not looked up.
Status validate(const protocol::GrammarSpec& spec, const CompileLimits& limits = {});

// Where one sequence is. One owner at a time; cheap to copy.
class Matcher {
 public:
  explicit Matcher(const std::shared_ptr<const Grammar>& grammar);

  // False, and nothing changes, when the token may not come here. A token that ends generation is
  // accepted where the grammar is complete; nothing may follow it.
  bool accept(int32_t token);
  // How many of `tokens`, from the first on, were accepted: the check of a draft.
  size_t accept(std::span<const int32_t> tokens);
  // Takes back the last `count` tokens, at most all.
  void rollback(size_t count);
  size_t size() const { return path_.size() - 1; }  // tokens accepted

  // The tokens that may come next; those that end generation too where the grammar is complete.
  // Errors: 400 "grammar_too_complex"; 500 "grammar_dead_end" when no token may come, since the
  // vocabulary cannot spell what must.
  Status mask(TokenMask& out) const;
  // masks[i]: what may come after the first i of `draft`; as many as it takes tokens, plus one.
  Result<std::vector<TokenMask>> draft_masks(std::span<const int32_t> draft) const;
  // The text may end here.
  bool accepting() const;
  // The text must end here.
  bool finished() const;
  // The bytes that must come next, at most `limit`.
  std::string forced(size_t limit) const;
  // The tokens of `tokens` (which spell a beginning of the forced bytes) that may be taken without
  // asking the model: not the last ones when a longer token could stand there.
  Result<size_t> certain(std::span<const int32_t> tokens) const;

  // A point to ask for a mask from another thread, while this goes on.
  struct Point {
    std::shared_ptr<Machine> machine;
    ConfigId config = kDeadConfig;
    bool ended = false;
  };
  Point point() const { return {machine_, path_.back(), ended()}; }
  static Status mask_at(const Point& point, TokenMask& out);

 private:
  static constexpr ConfigId kEnded = UINT32_MAX;
  bool ended() const { return path_.back() == kEnded; }
  std::shared_ptr<Machine> machine_;
  std::vector<ConfigId> path_;  // after each token
};

// Compiled grammars by what they were made of: those in use, and the latest others. Any thread.
// Errors are not kept.
class GrammarCache {
 public:
  GrammarCache(std::shared_ptr<const Vocabulary> vocabulary, CompileLimits limits = {},
               size_t kept = 64);
  Result<std::shared_ptr<const Grammar>> get(const protocol::GrammarSpec& spec);

 private:
  struct Entry {
    std::weak_ptr<const Grammar> grammar;
    std::shared_ptr<const Grammar> held;  // while among the latest
    uint64_t used = 0;
  };
  void trim();
  const std::shared_ptr<const Vocabulary> vocabulary_;
  const CompileLimits limits_;
  const size_t kept_;
  std::mutex mutex_;
  std::unordered_map<std::string, Entry> entries_;
  uint64_t clock_ = 0;
};

}  // namespace tandem::grammar
