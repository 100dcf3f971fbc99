// The plan that cuts a batch's attention into tiles and long tiles into ranges of positions.
#include <algorithm>
#include <atomic>
#include <bit>

#include "ops/operators.h"

namespace tandem::ops {
namespace {

// Pieces of work for each thread: so many that the last ones to end are short.
constexpr int64_t kItemsPerThread = 8;

int32_t spans_before(int32_t position) {
  return (position + cpu::kSpanTokens - 1) / cpu::kSpanTokens;
}

}  // namespace

AttentionPlan::AttentionPlan(int32_t max_rows, const AttentionShape& shape) : shape_(shape) {
  const int32_t group = shape.heads / shape.kv_heads;
  // Each sequence has at most one partly filled tile per KV head, and there are no more sequences
  // than rows.
  const size_t tiles =
      static_cast<size_t>(max_rows) * group / cpu::kTilePairs + static_cast<size_t>(max_rows);
  tiles_.reserve(tiles * shape.kv_heads);
  items_.reserve(tiles * shape.kv_heads);
}

int64_t AttentionPlan::cut_tiles() {
  const int32_t group = shape_.heads / shape_.kv_heads;
  int64_t total = 0;
  for (size_t s = 0; s < sequences_.size(); ++s) {
    const int32_t pairs = sequences_[s].row_count * group;
    for (int32_t head = 0; head < shape_.kv_heads; ++head) {
      // The tiles that see most come first, and one head's after one another: its pages stay in
      // the cache.
      const int32_t last = (pairs - 1) / cpu::kTilePairs * cpu::kTilePairs;
      for (int32_t begin = last; begin >= 0; begin -= cpu::kTilePairs) {
        Tile tile = {.sequence = static_cast<int32_t>(s), .kv_head = head, .pair_begin = begin};
        tile.pair_count = std::min(cpu::kTilePairs, pairs - begin);
        const int32_t last_row = (begin + tile.pair_count - 1) / group;
        tile.spans = spans_before(sequences_[s].first_position + last_row + 1);
        total += tile.spans * tile.span_cost();
        tiles_.push_back(tile);
      }
    }
  }
  return total;
}

void AttentionPlan::plan(std::span<const SequenceRows> sequences, int threads) {
  sequences_ = sequences;
  tiles_.clear();
  items_.clear();
  const int64_t most = cut_tiles() / (threads * kItemsPerThread);
  size_t floats = 0;
  for (size_t i = 0; i < tiles_.size(); ++i) {
    Tile& tile = tiles_[i];
    const auto spans = static_cast<int32_t>(std::max<int64_t>(1, most / tile.span_cost()));
    tile.items = threads > 1 ? (tile.spans + spans - 1) / spans : 1;
    const size_t needed =
        static_cast<size_t>(tile.spans) * tile.pair_count * cpu::partial_floats(shape_.head_dim);
    if ((floats + needed) * sizeof(float) > kMostPartialBytes) tile.items = 1;
    if (tile.items > 1) {
      tile.partials = floats;
      floats += needed;
    }
    for (int32_t item = 0; item < tile.items; ++item) {
      const device::WorkRange range = device::split_work(tile.spans, item, tile.items);
      items_.push_back({static_cast<int32_t>(i), range.begin, range.end});
    }
  }
  if (partials_.size() < floats) partials_.resize(floats);
}

cpu::AttentionTile AttentionPlan::describe(const Tile& tile, const float* q, float* out,
                                           const AttentionLayer& layer,
                                           const PageArenaView& pages) {
  const SequenceRows& sequence = sequences_[tile.sequence];
  const auto columns = static_cast<size_t>(shape_.q_columns());
  const size_t first = static_cast<size_t>(sequence.first_row) * columns;
  const auto block_tokens = static_cast<uint32_t>(pages.layout.block_tokens);
  const KvScaleView scales =
      pages.layout.dtype == KvDtype::kFp8Static ? layer.scales : KvScaleView{};
  return {.page_base = pages.base,
          .page_stride = pages.stride,
          .k_offset = pages.layout.k_offset(layer.place.slot, tile.kv_head),
          .v_offset = pages.layout.v_offset(layer.place.slot, tile.kv_head),
          .dtype = pages.layout.dtype,
          .head_dim = shape_.head_dim,
          .block_tokens = pages.layout.block_tokens,
          .block_shift = std::has_single_bit(block_tokens) ? std::countr_zero(block_tokens) : -1,
          .page_ids = sequence.pages.data() + layer.place.group,
          .page_id_step = static_cast<size_t>(pages.layout.groups),
          .window = layer.window,
          .kv_head = tile.kv_head,
          .group = shape_.heads / shape_.kv_heads,
          .first_position = sequence.first_position,
          .pair_begin = tile.pair_begin,
          .pair_count = tile.pair_count,
          .q = q + first,
          .stride_q = columns,
          .out = out + first,
          .stride_out = columns,
          .scale = shape_.scale * scales.k_of(tile.kv_head),
          .value_scale = scales.v_of(tile.kv_head),
          .softcap = shape_.softcap,
          .partials = tile.items > 1 ? partials_.data() + tile.partials : nullptr,
          .partial_stride = tile.pair_count * cpu::partial_floats(shape_.head_dim)};
}

void AttentionPlan::run(const CpuExecutor& executor, const float* q, float* out,
                        const AttentionLayer& layer, const PageArenaView& pages) {
  const cpu::Kernels& kernels = executor.kernels();
  for (Tile& tile : tiles_) tile.left = tile.items;
  std::atomic<size_t> next = 0;
  executor.threads().parallel([&](int thread, int) {
    // Whoever is free takes the next piece: what it computes does not depend on who.
    for (size_t i = next.fetch_add(1, std::memory_order_relaxed); i < items_.size();
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      const Item& item = items_[i];
      Tile& tile = tiles_[item.tile];
      cpu::AttentionTile work = describe(tile, q, out, layer, pages);
      work.scratch = executor.scratch(thread);
      if (tile.items == 1) {
        kernels.attention(work);
        continue;
      }
      work.begin = item.first_span * cpu::kSpanTokens;
      if (item.end_span < tile.spans) work.end = item.end_span * cpu::kSpanTokens;
      kernels.attention(work);
      if (std::atomic_ref(tile.left).fetch_sub(1, std::memory_order_acq_rel) > 1) continue;
      work.begin = 0;
      work.end = INT32_MAX;
      kernels.merge_attention(work);
    }
  });
}

}  // namespace tandem::ops
