// Sequences with the same leading pages: their attention reads those pages once.
//
// Which spans of which sequences lie in the same pages is a tree: all that share the system prompt,
// among them those that share a conversation, and so on. Sequences in the order of their page
// tables have it in plain sight: those that share more than the least that neighbours have in
// common are next to each other. Each node gives tiles of as many sequences as their pairs fit.
//
// Bits: a span's result of a pair does not depend on the other pairs of its tile, and the spans of
// a pair are merged in order out of its own partials, whoever wrote them. So a request has the same
// bits alone, in a batch and in one that shares (DESIGN I13); only how often pages are read
// changes.
#include <algorithm>
#include <compare>

#include "ops/operators.h"

namespace tandem::ops {
namespace {

// Spans of `tokens` positions that lie wholly in the leading pages that both have.
int32_t common_spans(const SequenceRows& a, const SequenceRows& b, const PageLayout& layout) {
  const auto [end, other] = std::ranges::mismatch(a.pages, b.pages);
  const int64_t blocks = (end - a.pages.begin()) / layout.groups;
  return static_cast<int32_t>(blocks * layout.block_tokens / cpu::kSpanTokens);
}

}  // namespace

// Leaves out what cannot share: sequences with too many rows (their own tiles are full), without a
// span that is all in the past, with nobody beside them that has the same pages, without room.
void AttentionPlan::find_candidates(const PageLayout& layout) {
  candidates_.clear();
  for (size_t s = 0; s < sequences_.size(); ++s) {
    const auto sequence = static_cast<int32_t>(s);
    const int32_t spans = sequences_[s].first_position / cpu::kSpanTokens;
    if (spans > 0 && pairs_of(sequence) <= cpu::kTilePairs / 2)
      candidates_.push_back({sequence, spans, 0});
  }
  if (candidates_.size() < 2) return candidates_.clear();
  std::ranges::sort(candidates_, [&](const Candidate& a, const Candidate& b) {
    const auto order = std::lexicographical_compare_three_way(
        sequences_[a.sequence].pages.begin(), sequences_[a.sequence].pages.end(),
        sequences_[b.sequence].pages.begin(), sequences_[b.sequence].pages.end());
    return order != 0 ? order < 0 : a.sequence < b.sequence;
  });
  for (size_t i = 1; i < candidates_.size(); ++i) {
    Candidate& here = candidates_[i];
    const Candidate& before = candidates_[i - 1];
    here.same =
        std::min({before.spans, here.spans,
                  common_spans(sequences_[before.sequence], sequences_[here.sequence], layout)});
  }
}

void AttentionPlan::find_shared(const PageLayout& layout) {
  shared_.clear();
  members_.clear();
  if (sequences_.size() < 2) return;
  find_candidates(layout);
  size_t kept = 0;
  int32_t same = 0;  // since the last one that was kept
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const int32_t next = i + 1 < candidates_.size() ? candidates_[i + 1].same : 0;
    same = i == 0 ? 0 : std::min(same, candidates_[i].same);
    Tile* const tiles = &tiles_[first_tiles_[candidates_[i].sequence]];
    size_t needed = 0;
    for (int32_t head = 0; head < shape_.kv_heads; ++head) needed += partials_of(tiles[head]);
    // All heads or none; a quarter is left for long tiles that will be cut.
    if (std::max(candidates_[i].same, next) == 0 ||
        partials_used_ + needed > partial_floats_ / 4 * 3)
      continue;
    for (int32_t head = 0; head < shape_.kv_heads; ++head) take_partials(tiles[head]);
    candidates_[kept] = candidates_[i];
    candidates_[kept++].same = same;
    same = INT32_MAX;
  }
  candidates_.resize(kept);
  share(0, static_cast<int32_t>(kept), 0);
}

// Candidates [begin, end) have their first `depth` spans in common, which are dealt with.
void AttentionPlan::share(int32_t begin, int32_t end, int32_t depth) {
  if (end - begin < 2) return;
  int32_t least = INT32_MAX;
  for (int32_t i = begin + 1; i < end; ++i) least = std::min(least, candidates_[i].same);
  if (least > depth) share_spans(begin, end, depth, least);
  for (int32_t first = begin, i = begin + 1; i <= end; ++i) {
    if (i < end && candidates_[i].same > least) continue;
    share(first, i, least);
    first = i;
  }
}

void AttentionPlan::share_spans(int32_t begin, int32_t end, int32_t first_span, int32_t end_span) {
  int32_t pairs = 0;
  for (int32_t i = begin; i < end; ++i) pairs += pairs_of(candidates_[i].sequence);
  // As even as whole sequences allow.
  const int32_t tiles = (pairs + cpu::kTilePairs - 1) / cpu::kTilePairs;
  const int32_t most = (end - begin + tiles - 1) / tiles;
  for (int32_t i = begin; i < end;) {
    SharedTile tile = {.first_member = static_cast<int32_t>(members_.size()),
                       .first_span = first_span,
                       .end_span = end_span};
    while (i < end && tile.member_count < most &&
           tile.pair_count + pairs_of(candidates_[i].sequence) <= cpu::kTilePairs) {
      const int32_t sequence = candidates_[i++].sequence;
      members_.push_back(sequence);
      ++tile.member_count;
      tile.pair_count += pairs_of(sequence);
      for (int32_t head = 0; head < shape_.kv_heads; ++head)
        tiles_[first_tiles_[sequence] + head].first_span = end_span;
    }
    for (tile.kv_head = 0; tile.kv_head < shape_.kv_heads; ++tile.kv_head) shared_.push_back(tile);
  }
}

cpu::AttentionTile AttentionPlan::describe(const SharedTile& tile, const float* q,
                                           const AttentionLayer& layer, const PageArenaView& pages,
                                           std::span<cpu::SharedPair> pairs) {
  const int32_t group = shape_.heads / shape_.kv_heads;
  const size_t each = cpu::partial_floats(shape_.head_dim);
  int32_t count = 0;
  for (int32_t m = 0; m < tile.member_count; ++m) {
    const int32_t index = members_[tile.first_member + m];
    const SequenceRows& sequence = sequences_[index];
    const Tile& own = tiles_[first_tiles_[index] + tile.kv_head];
    float* const partials = reinterpret_cast<float*>(partials_.get()) + own.partials;
    for (int32_t i = 0; i < own.pair_count; ++i) {
      pairs[count++] = {.row = sequence.first_row + i / group,
                        .head = i % group,
                        .position = sequence.first_position + i / group,
                        .partials = partials + i * each,
                        .partial_stride = own.pair_count * each};
    }
  }
  cpu::AttentionTile work = describe_pages(members_[tile.first_member], tile.kv_head, layer, pages);
  work.pair_count = count;
  work.q = q;
  work.shared = pairs.data();
  return work;
}

}  // namespace tandem::ops
