// ScriptedModel: emits chosen tokens through the real tokenizer, scheduler, KV and streaming path,
// so that whole sessions can be tested deterministically without weights (`scripted:FILE`).
//
// It keeps nothing about a sequence but what it wrote into the pages: each token's id stands in the
// keys of its position, and every pass reads the whole sequence back from there. So a page that was
// lost, mixed up or never transferred shows as a wrong answer. With "windows" each layer is a page
// group of its own, and passes check what each row can see of it: a page given back too early
// shows too. Layer 0 sees everything.
//
// The script is JSON:
//   {"tokenizer": "model.gguf", "chat_template": "{{ ... }}", "context_length": 4096, "step_ms": 0,
//   "row_ms": 0, "windows": [64],
//    "marker": "<|im_start|>assistant\n",
//    "replies": [{"when": "text in the prompt", "reply": "what to say"}, {"reply": "otherwise"}]}
// The reply is the first whose `when` stands in the text before the last marker; `{echo:N}` in a
// reply becomes the N-th word of that text that begins with "fact-". Instead of "reply" there may
// be "choices": ["red", "green"], equally likely continuations, or "tokens": [ids], for bytes and
// control tokens that text cannot spell. "nan_at": N makes the logits of the N-th token (from 0)
// not numbers, and with 0 the hidden states of such a prompt. step_ms and row_ms slow each pass
// down.
//
// What may come next has logit 100 and everything else 0. "noise": X adds a number in [0, X) to
// each logit of a text that no reply fits, which depends on all tokens so far. The hidden state of
// a row depends on its token and position (scripted_hidden).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/json_value.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace tandem::engine {

struct Script {
  struct Reply {
    std::string when;
    std::string reply = {};
    std::vector<std::string> choices = {};
    std::vector<int32_t> tokens = {};
    int32_t nan_at = -1;
  };
  std::string tokenizer = {};      // path, relative to the script
  std::string chat_template = {};  // empty: the tokenizer's own
  int32_t context_length = 4096;
  int32_t step_ms = 0;
  double row_ms = 0;
  std::vector<int32_t> windows =
      {};  // of the layers after the first; empty: one group of two layers
  double noise = 0;
  std::string marker = "<|im_start|>assistant\n";
  std::vector<Reply> replies = {};
};

// Component `index` of the hidden state of `token` at `position`.
float scripted_hidden(int32_t token, int32_t position, int32_t index);

Result<Script> read_script(const std::string& path);
std::unique_ptr<model::Model> make_scripted_model(Script script,
                                                  std::shared_ptr<const text::Tokenizer> tokenizer,
                                                  int32_t max_rows);

}  // namespace tandem::engine
