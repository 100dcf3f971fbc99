#include "model/sequence_runner.h"

#include <cstring>

#include "protocol/page_window.h"

namespace tandem::model {

Result<SequenceRunner> SequenceRunner::create(Model& model, int32_t sequences, int32_t max_tokens,
                                              int32_t block_tokens) {
  SequenceRunner runner(model);
  const int32_t per_sequence = (max_tokens + block_tokens - 1) / block_tokens;
  runner.view_.layout = model.page_layout(block_tokens);
  runner.view_.stride = (runner.view_.layout.page_bytes() + 63) / 64 * 64;
  const int32_t groups = runner.view_.layout.groups;
  runner.view_.page_count = per_sequence * sequences * groups;
  // One page more, before the first: what a kernel that took -1 for a page would read.
  const size_t bytes = runner.view_.stride * (static_cast<size_t>(runner.view_.page_count) + 1);
  runner.storage_ = ops::allocate_aligned(bytes);
  if (!runner.storage_) return make_error(500, "out_of_memory", "no memory for pages");
  // Unwritten slots hold NaN: whoever reads one shows it.
  std::memset(runner.storage_.get(), 0xFF, bytes);
  runner.view_.base = runner.storage_.get() + runner.view_.stride;
  runner.sequences_.resize(sequences);
  // Pages are dealt out from the end, in turn.
  for (int32_t i = runner.view_.page_count - 1; i >= 0; --i)
    runner.sequences_[i % sequences].pages.push_back(i);
  return runner;
}

std::vector<int32_t> SequenceRunner::visible_pages(const Sequence& sequence) const {
  std::vector<int32_t> pages = sequence.pages;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const int64_t first =
        protocol::first_live_block(groups_[g].window, sequence.length, view_.layout.block_tokens);
    for (int64_t block = 0; block < first; ++block)
      pages[static_cast<size_t>(block) * groups_.size() + g] = -1;
  }
  return pages;
}

Result<std::vector<float>> SequenceRunner::append(int32_t index, std::span<const int32_t> tokens,
                                                  bool all_logits) {
  const std::vector<int32_t> chunk(tokens.begin(), tokens.end());
  return append_batch(std::span(&index, 1), std::span(&chunk, 1), all_logits);
}

Result<std::vector<float>> SequenceRunner::append_batch(
    std::span<const int32_t> indices, std::span<const std::vector<int32_t>> chunks,
    bool all_logits) {
  std::vector<int32_t> tokens;
  std::vector<ops::SequenceRows> rows;
  std::vector<int32_t> logit_rows;
  std::vector<std::vector<int32_t>> pages;
  for (const int32_t index : indices) pages.push_back(visible_pages(sequences_[index]));
  for (size_t i = 0; i < indices.size(); ++i) {
    const Sequence& sequence = sequences_[indices[i]];
    rows.push_back({.first_row = static_cast<int32_t>(tokens.size()),
                    .row_count = static_cast<int32_t>(chunks[i].size()),
                    .first_position = sequence.length,
                    .pages = pages[i],
                    .adapter = sequence.adapter,
                    .prompt = sequence.prompt});
    for (size_t j = 0; j < chunks[i].size(); ++j) {
      if (all_logits || j + 1 == chunks[i].size())
        logit_rows.push_back(static_cast<int32_t>(tokens.size()));
      tokens.push_back(chunks[i][j]);
    }
  }
  std::vector<float> logits(logit_rows.size() * static_cast<size_t>(model_->config().vocab));
  TANDEM_CHECK(model_->forward(
      {.tokens = tokens, .sequences = rows, .logit_rows = logit_rows, .layer_done = {}}, view_,
      logits));
  for (size_t i = 0; i < indices.size(); ++i)
    sequences_[indices[i]].length += static_cast<int32_t>(chunks[i].size());
  return logits;
}

}  // namespace tandem::model
