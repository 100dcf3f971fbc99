// What KV bytes are in the simulation: one word for each (layer, token), which only the adapter,
// the tokens up to that position and the layer determine. A word of another sequence, position,
// layer or time is therefore seen wherever it is read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kv/handoff/send_handoff.h"
#include "sim/event_loop.h"
#include "sim/plan.h"

namespace tandem::sim {

inline constexpr int32_t kVocabulary = 1000;

// The tokens of a sequence and what its words must be.
class Content {
 public:
  // Of another tenant (salt) every word is another one, so that a shared block shows.
  explicit Content(std::string_view adapter, std::string_view salt = {})
      : start_(mix(0x6b76, adapter.size())) {
    for (const char c : adapter) start_ = mix(start_, static_cast<unsigned char>(c));
    for (const char c : salt) start_ = mix(start_, static_cast<unsigned char>(c));
  }
  void push(int32_t token) {
    states_.push_back(mix(states_.empty() ? start_ : states_.back(), static_cast<uint64_t>(token)));
    tokens_.push_back(token);
  }
  size_t size() const { return tokens_.size(); }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  uint64_t word(size_t position, uint32_t layer) const { return mix(states_[position], layer + 1); }
  // What the model samples after the first `size` tokens.
  int32_t next(size_t size) const {
    return static_cast<int32_t>(mix(states_[size - 1], 0) % kVocabulary);
  }

 private:
  uint64_t start_;
  std::vector<uint64_t> states_;
  std::vector<int32_t> tokens_;
};

// Where words lie in pages.
struct Layout {
  explicit Layout(const Plan& plan)
      : block_tokens(plan.block_tokens),
        groups(static_cast<int32_t>(plan.windows.size())),
        windows(plan.windows),
        layer_groups(plan.layer_groups) {
    std::vector<int32_t> used(plan.windows.size(), 0);
    for (const int32_t group : layer_groups) slots.push_back(used[static_cast<size_t>(group)]++);
    words_per_page = used.front() * block_tokens;
  }
  uint32_t layers() const { return static_cast<uint32_t>(layer_groups.size()); }
  // Of the layer's first word in its page.
  int32_t offset(uint32_t layer) const { return slots[layer] * block_tokens; }
  // In a page table [block][group].
  size_t entry(size_t block, uint32_t layer) const {
    return block * static_cast<size_t>(groups) + static_cast<size_t>(layer_groups[layer]);
  }
  kv::HandoffShape shape() const {
    return {.block_tokens = block_tokens,
            .page_bytes = static_cast<uint64_t>(words_per_page) * sizeof(uint64_t),
            .windows = windows,
            .layer_groups = layer_groups};
  }

  int32_t block_tokens;
  int32_t groups;
  std::vector<int32_t> windows;
  std::vector<int32_t> layer_groups;
  std::vector<int32_t> slots;  // by layer
  int32_t words_per_page = 0;
};

// The pages of one start of one node. A peer that has it mapped keeps it alive.
struct Arena {
  Arena(int32_t pages, int32_t words_each)
      : words_per_page(words_each),
        generations(static_cast<size_t>(pages), 0),
        words(static_cast<size_t>(pages) * static_cast<size_t>(words_each), 0) {}
  uint64_t* page(int32_t index) {
    return words.data() + static_cast<size_t>(index) * static_cast<size_t>(words_per_page);
  }
  int32_t words_per_page;
  std::vector<uint64_t> generations;
  std::vector<uint64_t> words;
};

}  // namespace tandem::sim
