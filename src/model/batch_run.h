// BatchRun: some neighbouring sequences of a ForwardBatch as a batch of their own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/forward_batch.h"

namespace tandem::model {

class BatchRun {
 public:
  // Sequences [begin, end) of `batch`, which lie next to each other in its rows; hidden states have
  // `hidden` floats. layer_done is kept where these are the batch's last sequences: by then the
  // others' layers are done. What it returns reads `batch` and this object, and lasts until the
  // next call.
  ops::ForwardBatch take(const ops::ForwardBatch& batch, size_t begin, size_t end, size_t hidden) {
    const int32_t first = batch.sequences[begin].first_row;
    const int32_t last = batch.sequences[end - 1].first_row + batch.sequences[end - 1].row_count;
    sequences_.assign(batch.sequences.begin() + static_cast<ptrdiff_t>(begin),
                      batch.sequences.begin() + static_cast<ptrdiff_t>(end));
    for (ops::SequenceRows& sequence : sequences_) sequence.first_row -= first;
    rows_of(batch.logit_rows, first, last, logit_rows_);
    const size_t before = rows_of(batch.hidden_rows, first, last, hidden_rows_);
    ops::ForwardBatch out;
    out.tokens =
        batch.tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(last - first));
    out.sequences = sequences_;
    out.logit_rows = logit_rows_;
    out.hidden_rows = hidden_rows_;
    out.hidden_out = batch.hidden_out.subspan(before * hidden);
    if (end == batch.sequences.size()) out.layer_done = batch.layer_done;
    return out;
  }

 private:
  // Those of `rows`, ascending, in [first, last), counted from `first`. Returns how many lie
  // before.
  static size_t rows_of(std::span<const int32_t> rows, int32_t first, int32_t last,
                        std::vector<int32_t>& out) {
    const auto begin = std::ranges::lower_bound(rows, first);
    const auto end = std::ranges::lower_bound(rows, last);
    out.assign(begin, end);
    for (int32_t& row : out) row -= first;
    return static_cast<size_t>(begin - rows.begin());
  }

  std::vector<ops::SequenceRows> sequences_;
  std::vector<int32_t> logit_rows_;
  std::vector<int32_t> hidden_rows_;
};

}  // namespace tandem::model
