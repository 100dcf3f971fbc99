// Runs token sequences through a model over private pages, without an engine: for tests, benches
// and eval.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/model.h"
#include "ops/packed_matrix.h"

namespace tandem::model {

class SequenceRunner {
 public:
  // Pages (of every group) for `sequences` sequences of up to `max_tokens` tokens each, dealt out
  // in turn from the arena's end so that nothing can rely on the order of pages. `model` outlives
  // the runner.
  static Result<SequenceRunner> create(Model& model, int32_t sequences, int32_t max_tokens,
                                       int32_t block_tokens = 16);

  // Blocks that a pass cannot see through a group's window are -1 in what the model gets; whoever
  // reads such a page reads NaN.

  // The adapter of a sequence's further tokens; -1: none.
  void set_adapter(int32_t index, int32_t adapter) { sequences_[index].adapter = adapter; }
  // Whether they are a prompt's.
  void set_prompt(int32_t index, bool prompt) { sequences_[index].prompt = prompt; }

  // Appends `tokens` to sequence `index` and returns logits [tokens][vocab] of every one of them,
  // or only of the last.
  Result<std::vector<float>> append(int32_t index, std::span<const int32_t> tokens,
                                    bool all_logits = true);

  // One pass over several sequences at once: chunks[i] is appended to sequence indices[i]. Logits
  // of every row.
  Result<std::vector<float>> append_batch(std::span<const int32_t> indices,
                                          std::span<const std::vector<int32_t>> chunks,
                                          bool all_logits = true);

  // Takes tokens off the end of a sequence, or all of them.
  void truncate(int32_t index, int32_t tokens) { sequences_[index].length = tokens; }
  int32_t length(int32_t index) const { return sequences_[index].length; }
  const ops::PageArenaView& pages() const { return view_; }

 private:
  struct Sequence {
    std::vector<int32_t> pages;  // [block][group]
    int32_t length = 0;
    int32_t adapter = -1;
    bool prompt = false;
  };
  explicit SequenceRunner(Model& model) : model_(&model), groups_(model.page_groups()) {}
  std::vector<int32_t> visible_pages(const Sequence& sequence) const;

  Model* model_;
  std::vector<PageGroup> groups_;
  ops::AlignedBytes storage_;
  ops::PageArenaView view_;
  std::vector<Sequence> sequences_;
};

}  // namespace tandem::model
