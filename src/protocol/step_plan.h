// StepPlan: what one forward pass does. Emitted by the scheduler, run by the executor; plain and
// serializable so that it can be broadcast to a group of ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/request.h"
#include "protocol/scored_token.h"

namespace tandem::protocol {

using SequenceId = uint64_t;

// A token that the scheduler does not know yet: the one that an earlier step in flight samples for
// this sequence.
inline constexpr int32_t kPendingToken = -1;

struct StepSequence {
  SequenceId sequence = 0;
  int32_t first_position = 0;
  std::vector<int32_t>
      tokens;  // consecutive positions from first_position; only a decode row may be kPendingToken
  // [block][group], covering positions 0 .. first_position + tokens.size() - 1; -1 where no row
  // here can see the block through the group's window.
  std::vector<int32_t> pages;
  bool sample =
      false;  // sample from the last row: the token at position first_position + tokens.size()
  // The tokens that follow the rows, from the first row on, whose logprobs are wanted: all rows but
  // possibly the last. Empty: none.
  std::vector<int32_t> targets;
  bool prompt = false;   // rows of the prompt; false: of what was generated, also when read again
  bool pool = false;     // the rows' hidden states go into the sequence's embedding
  int32_t adapter = -1;  // index in the model, -1: none
};

struct StepPlan {
  uint64_t step = 0;
  std::vector<StepSequence> sequences;
  int32_t rows() const {
    int32_t total = 0;
    for (const auto& sequence : sequences) total += static_cast<int32_t>(sequence.tokens.size());
    return total;
  }
};

struct SampledToken {
  SequenceId sequence = 0;
  int32_t token = 0;
  float logprob = 0;    // 0 unless asked for
  bool failed = false;  // non-finite logits in any of its rows: the sequence must end with an error
  std::vector<Chance> top = {};
};

// What the model thinks of known tokens, StepSequence::targets.
struct PromptScores {
  SequenceId sequence = 0;
  int32_t first_position = 0;  // of the first token scored
  std::vector<ScoredToken> tokens;
};

// The embedding of a sequence whose last row this pass computed.
struct PooledRows {
  SequenceId sequence = 0;
  std::vector<float> values;
};

struct StepOutcome {
  uint64_t step = 0;
  std::vector<SampledToken> sampled;
  std::string error = {};  // not empty: the whole pass failed
  std::vector<PromptScores> scores = {};
  std::vector<PooledRows> pooled = {};
  // Taken out of the pass before it read anything, because their pages are not what they expect.
  std::vector<SequenceId> refused = {};
};

}  // namespace tandem::protocol
