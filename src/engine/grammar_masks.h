// GrammarMasks: the masks of a pass, computed by a thread of its own while the pass runs.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "grammar/grammar.h"
#include "text/tokenizer.h"

namespace tandem::engine {

// What a grammar sees of a tokenizer: control tokens add no text and can be named, user-defined
// ones both. `vocab`: of the model, at least the tokenizer's.
grammar::VocabularyTable vocabulary_table(const text::Tokenizer& tokenizer, int32_t vocab);

class GrammarMasks {
 public:
  // Of one token. Everything but `point` is read after wait().
  struct Mask {
    grammar::Matcher::Point point;
    grammar::TokenMask tokens;
    Status status = {};
    bool done = false;  // under the lock
  };
  GrammarMasks() = default;
  ~GrammarMasks();  // what was not begun is not computed
  GrammarMasks(const GrammarMasks&) = delete;
  GrammarMasks& operator=(const GrammarMasks&) = delete;

  std::shared_ptr<Mask> start(grammar::Matcher::Point point);
  // Until it is computed. Any thread.
  void wait(const Mask& mask);

 private:
  void loop();
  std::mutex mutex_;  // queue_, stop_, Mask::done
  std::condition_variable wake_;
  std::condition_variable done_;
  std::deque<std::shared_ptr<Mask>> queue_;
  bool stop_ = false;
  std::thread thread_;  // started with the first mask
};

}  // namespace tandem::engine
