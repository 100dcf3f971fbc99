#include "model/batch_check.h"

#include "ops/operators.h"
#include "protocol/page_window.h"

namespace tandem::model {
namespace {

// Every page that a row reads or writes must be there; those before a group's window may be
// missing.
Status check_pages(const ops::SequenceRows& sequence, int64_t end, const ops::PageArenaView& pages,
                   std::span<const PageGroup> groups) {
  const int32_t block_tokens = pages.layout.block_tokens;
  const int64_t blocks = (end + block_tokens - 1) / block_tokens;
  if (sequence.pages.size() < static_cast<size_t>(blocks) * groups.size())
    return internal_error("a sequence has too few pages for its positions");
  for (size_t g = 0; g < groups.size(); ++g) {
    const int64_t first =
        protocol::first_live_block(groups[g].window, sequence.first_position, block_tokens);
    for (int64_t block = first; block < blocks; ++block) {
      const int32_t page = sequence.pages[static_cast<size_t>(block) * groups.size() + g];
      if (page < 0 || page >= pages.page_count)
        return internal_error("a sequence names a page outside the arena");
    }
  }
  return {};
}

Status check_sequence(const ops::SequenceRows& sequence, int32_t rows, int32_t next_row,
                      const ops::PageArenaView& pages, const BatchLimits& limits) {
  if (sequence.first_row != next_row || sequence.row_count <= 0 ||
      sequence.row_count > rows - next_row || sequence.first_position < 0) {
    return internal_error("a batch's sequences must cover its rows in order");
  }
  if (sequence.adapter >= limits.adapters)
    return internal_error("a sequence names an adapter that is not loaded");
  const int64_t end = static_cast<int64_t>(sequence.first_position) + sequence.row_count;
  if (end > limits.config.context_length) {
    return make_error(400, "context_length_exceeded",
                      "the sequence reaches " + std::to_string(end) +
                          " tokens; the model's context is " +
                          std::to_string(limits.config.context_length));
  }
  return check_pages(sequence, end, pages, limits.groups);
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
                   const BatchLimits& limits, size_t logits_size) {
  const ModelConfig& config = limits.config;
  if (batch.tokens.size() > static_cast<size_t>(limits.max_rows))
    return internal_error("the batch has too many rows");
  if (!(pages.layout == limits.layout))
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
    TANDEM_CHECK(check_sequence(sequence, rows, next_row, pages, limits));
    next_row += sequence.row_count;
  }
  if (next_row != rows) return internal_error("a batch's sequences must cover its rows in order");
  TANDEM_CHECK(check_wanted(batch.logit_rows, rows, static_cast<size_t>(config.vocab), logits_size,
                            "logits"));
  return check_wanted(batch.hidden_rows, rows, static_cast<size_t>(config.hidden),
                      batch.hidden_out.size(), "hidden states");
}

}  // namespace tandem::model
