// Penalties for what the text holds already, rebuilt from its tokens: a sequence can move at any
// moment.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace tandem::sample {

// How often each token occurs in a sequence: kept up to date token by token, so that a step costs
// the distinct tokens and not the length. One owner at a time.
class TokenCounts {
 public:
  struct Entry {
    int32_t token = 0;
    int32_t generated = 0;
    bool in_prompt = false;
  };

  // `count_prompt`: whether the prompt's tokens are to be known (repetition penalty).
  TokenCounts(std::span<const int32_t> prompt, bool count_prompt);
  // `tokens` stand at `position` and on, whatever was generated there or after it before. Prompt
  // positions change nothing.
  void set(int64_t position, std::span<const int32_t> tokens);
  std::span<const Entry> entries() const { return entries_; }

 private:
  Entry& entry(int32_t token);
  int64_t prompt_size_;
  std::vector<int32_t> generated_;
  std::vector<Entry> entries_;
  std::unordered_map<int32_t, uint32_t> index_;
};

struct Penalties {
  float presence = 0;
  float frequency = 0;
  float repetition = 1;
  bool any() const { return presence != 0 || frequency != 0 || repetition != 1; }
};

// vLLM's order and formulas: repetition (prompt and output; divides a positive logit, multiplies a
// negative one), then frequency (times the count in the output), then presence (once).
void penalize(std::span<float> logits, const TokenCounts& counts, const Penalties& penalties);

}  // namespace tandem::sample
