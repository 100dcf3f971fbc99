// A text in windows of a fixed length, each with an empty context before it, and the logits that
// predict its tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/json_value.h"
#include "base/result.h"
#include "eval/loaded_model.h"
#include "model/sequence_runner.h"

namespace tandem::eval {

struct TextOptions {
  std::string path;
  int32_t window = 512;  // tokens, a begin-of-sequence token included
  int32_t stride = 0;    // tokens between the starts of windows; 0: the window
  int32_t limit = 0;     // tokens of the text; 0: all
  int32_t threads = 1;   // for what is computed from logits
};

// Tokens [begin, end) of the text; those from `first_scored` on are scored. Every token is scored
// once, except the first of the text (and of every window when windows do not overlap), which
// nothing precedes.
struct Window {
  size_t begin = 0;
  size_t end = 0;
  size_t first_scored = 0;
};
// `bos`: a begin-of-sequence token takes one place in each window and precedes its first token.
std::vector<Window> plan_windows(size_t tokens, int32_t window, int32_t stride, bool bos);

struct TokenizedText {
  std::vector<int32_t> tokens;
  std::string digest;  // of the ids, SHA-256
  int32_t bos = -1;    // put before each window when the tokenizer asks for it; else -1
  std::vector<Window> windows;
  int64_t positions = 0;  // scored

  // What results over this text depend on, beside the model.
  JsonValue identity(const TextOptions& options) const;
};
// Errors: 400 for a file that cannot be read or holds fewer than two tokens, a window under two
// tokens or a stride beyond it.
Result<TokenizedText> tokenize_text(const TextOptions& options, const text::Tokenizer& tokenizer);

// Runs windows through a model. Not thread-safe. The model outlives it.
class WindowRunner {
 public:
  static Result<WindowRunner> create(model::Model& model, const TextOptions& options);

  // `row(i, logits, target)` for each scored token: i counts from 0 in the window. Rows of a window
  // come in any order and from several threads at once.
  using Row = std::function<void(size_t i, std::span<const float> logits, int32_t target)>;
  Status run(const TokenizedText& text, const Window& window, const Row& row);

 private:
  WindowRunner(model::SequenceRunner runner, int32_t vocab, int32_t rows, int32_t threads)
      : runner_(std::move(runner)), vocab_(vocab), rows_(rows), threads_(threads) {}

  model::SequenceRunner runner_;
  int32_t vocab_;
  int32_t rows_;  // of one pass, so that the logits of large vocabularies stay small
  int32_t threads_;
};

}  // namespace tandem::eval
