// The plan that cuts a batch's attention into tiles and long tiles into ranges of positions.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>

#include "ops/operators.h"

namespace tandem::ops {
namespace {

// Pieces of work for each thread: so many that the last ones to end are short.
constexpr int64_t kItemsPerThread = 8;

int32_t spans_before(int32_t position) {
  return (position + cpu::kSpanTokens - 1) / cpu::kSpanTokens;
}

}  // namespace

AttentionPlan::AttentionPlan(int32_t max_rows, const AttentionShape& shape, int32_t max_positions)
    : shape_(shape) {
  const int32_t group = shape.heads / shape.kv_heads;
  const auto rows = static_cast<size_t>(max_rows);
  // Each sequence has at most one partly filled tile per KV head, and there are no more sequences
  // than rows.
  const size_t tiles = (rows * group / cpu::kTilePairs + rows) * shape.kv_heads;
  tiles_.reserve(tiles);
  items_.reserve(2 * tiles + kItemsPerThread * device::ComputeThreads::kMaxThreads);
  first_tiles_.reserve(rows);
  candidates_.reserve(rows);
  members_.reserve(4 * rows);  // a sequence is there once for each depth of a tree of prefixes
  shared_.reserve(2 * rows * shape.kv_heads);
  partial_floats_ = kMostPartialBytes / sizeof(float);
  if (max_positions > 0) {
    partial_floats_ = std::min(partial_floats_, rows * shape.heads * spans_before(max_positions) *
                                                    cpu::partial_floats(shape.head_dim));
  }
  // Not cleared: it is written before it is read, and most of it may never be.
  const size_t bytes = (partial_bytes() + 63) / 64 * 64;
  partials_ = AlignedBytes(static_cast<std::byte*>(std::aligned_alloc(64, bytes)));
  if (!partials_) partial_floats_ = 0;
}

void AttentionPlan::cut_tiles(int32_t most_pairs) {
  const int32_t group = shape_.heads / shape_.kv_heads;
  for (size_t s = 0; s < sequences_.size(); ++s) {
    const int32_t pairs = pairs_of(static_cast<int32_t>(s));
    first_tiles_.push_back(static_cast<int32_t>(tiles_.size()));
    for (int32_t head = 0; head < shape_.kv_heads; ++head) {
      // The tiles that see most come first, and one head's after one another: its pages stay in
      // the cache.
      const int32_t last = (pairs - 1) / most_pairs * most_pairs;
      for (int32_t begin = last; begin >= 0; begin -= most_pairs) {
        Tile tile = {.sequence = static_cast<int32_t>(s), .kv_head = head, .pair_begin = begin};
        tile.pair_count = std::min(most_pairs, pairs - begin);
        const int32_t last_row = (begin + tile.pair_count - 1) / group;
        tile.spans = spans_before(sequences_[s].first_position + last_row + 1);
        tiles_.push_back(tile);
      }
    }
  }
}

bool AttentionPlan::take_partials(Tile& tile) {
  const size_t needed = partials_of(tile);
  if (!tile.in_parts && partials_used_ + needed <= partial_floats_) {
    tile.partials = partials_used_;
    partials_used_ += needed;
    tile.in_parts = true;
  }
  return tile.in_parts;
}

int32_t AttentionPlan::add_items(int32_t tile, bool shared, int32_t pairs, int32_t first,
                                 int32_t end, int64_t most) {
  const int32_t spans = end - first;
  const auto each = static_cast<int32_t>(std::clamp<int64_t>(most / cost_of(pairs, 1), 1, spans));
  const int32_t count = (spans + each - 1) / each;
  for (int32_t item = 0; item < count; ++item) {
    const device::WorkRange range = device::split_work(spans, item, count);
    items_.push_back({tile, first + range.begin, first + range.end, shared});
  }
  return count;
}

void AttentionPlan::plan(std::span<const SequenceRows> sequences, const PageLayout& layout,
                         const CpuExecutor& executor) {
  const int threads = executor.threads().count();
  sequences_ = sequences;
  tiles_.clear();
  first_tiles_.clear();
  items_.clear();
  partials_used_ = 0;
  cut_tiles(executor.kernels().attention_pairs);
  find_shared(layout);
  int64_t total = 0;
  for (const SharedTile& tile : shared_)
    total += cost_of(tile.pair_count, tile.end_span - tile.first_span);
  for (const Tile& tile : tiles_) total += cost_of(tile.pair_count, tile.spans - tile.first_span);
  const int64_t most = threads > 1 ? total / (threads * kItemsPerThread) : total;
  for (Tile& tile : tiles_) tile.parts = 0;
  for (size_t i = 0; i < shared_.size(); ++i) {
    const SharedTile& tile = shared_[i];
    const int32_t count = add_items(static_cast<int32_t>(i), true, tile.pair_count, tile.first_span,
                                    tile.end_span, most);
    for (int32_t m = 0; m < tile.member_count; ++m)
      tiles_[first_tiles_[members_[tile.first_member + m]] + tile.kv_head].parts += count;
  }
  for (size_t i = 0; i < tiles_.size(); ++i) {
    Tile& tile = tiles_[i];
    const int32_t spans = tile.spans - tile.first_span;
    const bool cut = cost_of(tile.pair_count, spans) > most && spans > 1 && take_partials(tile);
    tile.parts += add_items(static_cast<int32_t>(i), false, tile.pair_count, tile.first_span,
                            tile.spans, cut ? most : total);
  }
}

int64_t AttentionPlan::planned_spans() const {
  int64_t spans = 0;
  for (const Item& item : items_) spans += item.end_span - item.first_span;
  return spans;
}

cpu::AttentionTile AttentionPlan::describe_pages(int32_t sequence, int32_t kv_head,
                                                 const AttentionLayer& layer,
                                                 const PageArenaView& pages) {
  const auto block_tokens = static_cast<uint32_t>(pages.layout.block_tokens);
  const KvScaleView scales =
      pages.layout.dtype == KvDtype::kFp8Static ? layer.scales : KvScaleView{};
  cpu::AttentionTile tile;
  tile.page_base = pages.base;
  tile.page_stride = pages.stride;
  tile.k_offset = pages.layout.k_offset(layer.place.slot, kv_head);
  tile.v_offset = pages.layout.v_offset(layer.place.slot, kv_head);
  tile.dtype = pages.layout.dtype;
  tile.head_dim = shape_.head_dim;
  tile.block_tokens = pages.layout.block_tokens;
  tile.block_shift = std::has_single_bit(block_tokens) ? std::countr_zero(block_tokens) : -1;
  tile.page_ids = sequences_[sequence].pages.data() + layer.place.group;
  tile.page_id_step = static_cast<size_t>(pages.layout.groups);
  tile.window = layer.window;
  tile.kv_head = kv_head;
  tile.group = shape_.heads / shape_.kv_heads;
  tile.stride_q = static_cast<size_t>(shape_.q_columns());
  tile.stride_out = tile.stride_q;
  tile.scale = shape_.scale * scales.k_of(kv_head);
  tile.value_scale = scales.v_of(kv_head);
  tile.softcap = shape_.softcap;
  return tile;
}

cpu::AttentionTile AttentionPlan::describe(const Tile& tile, const float* q, float* out,
                                           const AttentionLayer& layer,
                                           const PageArenaView& pages) {
  const SequenceRows& sequence = sequences_[tile.sequence];
  const size_t first = static_cast<size_t>(sequence.first_row) * shape_.q_columns();
  cpu::AttentionTile work = describe_pages(tile.sequence, tile.kv_head, layer, pages);
  work.first_position = sequence.first_position;
  work.pair_begin = tile.pair_begin;
  work.pair_count = tile.pair_count;
  work.q = q + first;
  work.out = out + first;
  if (tile.in_parts) {
    work.partials = reinterpret_cast<float*>(partials_.get()) + tile.partials;
    work.partial_stride = tile.pair_count * cpu::partial_floats(shape_.head_dim);
  }
  return work;
}

void AttentionPlan::run(const CpuExecutor& executor, const float* q, float* out,
                        const AttentionLayer& layer, const PageArenaView& pages) {
  const cpu::Kernels& kernels = executor.kernels();
  for (Tile& tile : tiles_) tile.left = tile.parts;
  std::atomic<size_t> next = 0;
  executor.threads().parallel([&](int thread, int) {
    float* const scratch = executor.scratch(thread);
    // A part of the tile is done; whoever does the last one merges them.
    const auto done = [&](Tile& tile) {
      if (std::atomic_ref(tile.left).fetch_sub(1, std::memory_order_acq_rel) > 1) return;
      cpu::AttentionTile work = describe(tile, q, out, layer, pages);
      work.scratch = scratch;
      kernels.merge_attention(work);
    };
    // Whoever is free takes the next piece: what it computes does not depend on who.
    for (size_t i = next.fetch_add(1, std::memory_order_relaxed); i < items_.size();
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      const Item& item = items_[i];
      if (item.shared) {
        std::array<cpu::SharedPair, cpu::kTilePairs> pairs;
        const SharedTile& tile = shared_[item.tile];
        cpu::AttentionTile work = describe(tile, q, layer, pages, pairs);
        work.scratch = scratch;
        work.begin = item.first_span * cpu::kSpanTokens;
        work.end = item.end_span * cpu::kSpanTokens;
        kernels.attention(work);
        for (int32_t m = 0; m < tile.member_count; ++m)
          done(tiles_[first_tiles_[members_[tile.first_member + m]] + tile.kv_head]);
        continue;
      }
      Tile& tile = tiles_[item.tile];
      cpu::AttentionTile work = describe(tile, q, out, layer, pages);
      work.scratch = scratch;
      work.begin = item.first_span * cpu::kSpanTokens;
      if (item.end_span < tile.spans) work.end = item.end_span * cpu::kSpanTokens;
      kernels.attention(work);
      if (tile.in_parts) done(tile);
    }
  });
}

}  // namespace tandem::ops
