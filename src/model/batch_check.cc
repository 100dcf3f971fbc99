#include "model/batch_check.h"

#include "ops/operators.h"

namespace tandem::model {
namespace {

Status check_sequence(const ops::SequenceRows& sequence, int32_t rows, int32_t next_row,
                      const ops::PageArenaView& pages, const ModelConfig& config) {
  if (sequence.first_row != next_row || sequence.row_count <= 0 ||
      sequence.row_count > rows - next_row || sequence.first_position < 0) {
    return internal_error("a batch's sequences must cover its rows in order");
  }
  if (sequence.adapter >= 0) return invalid_request("the model has no adapters");
  const int64_t end = static_cast<int64_t>(sequence.first_position) + sequence.row_count;
  if (end > config.context_length) {
    return make_error(400, "context_length_exceeded",
                      "the sequence reaches " + std::to_string(end) +
                          " tokens; the model's context is " +
                          std::to_string(config.context_length));
  }
  const int32_t block = pages.layout.block_tokens;
  const auto needed = static_cast<size_t>((end + block - 1) / block);
  if (sequence.pages.size() < needed)
    return internal_error("a sequence has too few pages for its positions");
  for (const int32_t page : sequence.pages.first(needed)) {
    if (page < 0 || page >= pages.page_count)
      return internal_error("a sequence names a page outside the arena");
  }
  return {};
}

Status check_wanted(std::span<const int32_t> wanted, int32_t rows, size_t width, size_t room,
                    const char* what) {
  int32_t previous = -1;
  for (const int32_t row : wanted) {
    if (row <= previous || row >= rows)
      return internal_error(std::string(what) + " rows must be ascending rows of the batch");
    previous = row;
  }
  if (room < wanted.size() * width)
    return internal_error(std::string("the buffer for ") + what + " is too small");
  return {};
}

}  // namespace

Status check_batch(const ops::ForwardBatch& batch, const ops::PageArenaView& pages,
                   const ModelConfig& config, const ops::PageLayout& expected_layout,
                   int32_t max_rows, size_t logits_size) {
  if (batch.tokens.size() > static_cast<size_t>(max_rows))
    return internal_error("the batch has too many rows");
  if (!(pages.layout == expected_layout))
    return internal_error("the pages have another layout than the model's");
  TANDEM_CHECK(ops::check_page_layout(pages.layout));
  if (pages.stride < pages.layout.page_bytes() || pages.stride % 64 != 0) {
    return internal_error("the page stride must be a multiple of 64 that holds a page");
  }
  const auto rows = static_cast<int32_t>(batch.tokens.size());
  for (const int32_t token : batch.tokens) {
    if (token < 0 || token >= config.vocab)
      return invalid_request("token " + std::to_string(token) + " is not in the vocabulary");
  }
  int32_t next_row = 0;
  for (const ops::SequenceRows& sequence : batch.sequences) {
    TANDEM_CHECK(check_sequence(sequence, rows, next_row, pages, config));
    next_row += sequence.row_count;
  }
  if (next_row != rows) return internal_error("a batch's sequences must cover its rows in order");
  TANDEM_CHECK(check_wanted(batch.logit_rows, rows, static_cast<size_t>(config.vocab), logits_size,
                            "logits"));
  return check_wanted(batch.hidden_rows, rows, static_cast<size_t>(config.hidden),
                      batch.hidden_out.size(), "hidden states");
}

}  // namespace tandem::model
