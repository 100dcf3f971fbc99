// ForwardBatch: what one forward pass reads and writes, with every token known. The engine builds
// it from a step plan.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

namespace tandem::ops {

// The rows of one sequence in this pass. They are consecutive tokens: row i of the sequence is
// position first_position + i. Pages cover positions 0 .. first_position + row_count - 1: block k
// holds positions [k * block_tokens, (k + 1) * block_tokens), and its page for group g is
// pages[k * groups + g], or -1 when no row of this pass can see the block through that group's
// window. The pass writes K and V of its rows
// and reads everything before.
struct SequenceRows {
  int32_t first_row = 0;
  int32_t row_count = 0;
  int32_t first_position = 0;
  std::span<const int32_t> pages;
  int32_t adapter = -1;  // -1: none
  bool prompt = false;   // rows of a prompt: a model may have other numerics for them
};

struct ForwardBatch {
  std::span<const int32_t> tokens;  // [rows]
  std::span<const SequenceRows> sequences;
  std::span<const int32_t> logit_rows;  // rows whose logits are wanted, ascending
  // Rows whose hidden state after the final norm is wanted (embeddings), ascending, and where it
  // goes: hidden_out[i * ModelConfig.hidden ..] for hidden_rows[i], float32.
  std::span<const int32_t> hidden_rows = {};
  std::span<float> hidden_out = {};
  // Called on the driving thread after layer `layer` has written all its K and V for every row. May
  // be empty.
  std::function<void(int32_t layer)> layer_done;
};

}  // namespace tandem::ops
