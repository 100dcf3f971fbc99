// ReshardPlan: which bytes of which rank go where, between two workers whose ranks hold KV
// differently (DESIGN §4, Resharding), for sequences of any length.
//
// A plan is a list of copies. One copy says for a run of layers and heads, and for a series of
// blocks, which rank reads from which and the runs of bytes within the two pages. Because the
// blocks are series (first, step), a plan is made and proven once for a pair of workers and
// then used for every handoff.
//
// Where several source ranks hold the same bytes they share the work: of R holders and D ranks
// that want those bytes, each reader uses R / gcd(R, D) holders, taking turns by block, and every
// holder serves equally many blocks (to within one of each series).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kv/reshard/kv_layout.h"

namespace tandem::kv {

// `count` pieces; piece i lies at offset + i * stride in both pages. The byte counts differ only
// where values are converted: then each piece is whole heads (K and V) of one layer.
struct CopyRun {
  uint64_t source_offset = 0;
  uint64_t dest_offset = 0;
  uint64_t source_stride = 0;
  uint64_t dest_stride = 0;
  uint64_t source_bytes = 0;
  uint64_t dest_bytes = 0;
  uint32_t count = 1;
  bool operator==(const CopyRun&) const = default;
};

struct ReshardCopy {
  int32_t source_rank = 0;
  int32_t dest_rank = 0;
  int32_t source_group = 0;
  int32_t dest_group = 0;
  // Layers first_layer + i * layer_step, i < layers.
  int32_t first_layer = 0;
  int32_t layer_step = 1;
  int32_t layers = 1;
  int32_t first_head = 0;  // of the model
  int32_t heads = 1;
  // Source block source_block + i * source_step goes to dest block dest_block + i * dest_step, for
  // every i >= 0: `tokens` tokens, from source_token in the one to dest_token in the other.
  int64_t source_block = 0;
  int64_t source_step = 1;
  int64_t dest_block = 0;
  int64_t dest_step = 1;
  int32_t source_token = 0;
  int32_t dest_token = 0;
  int32_t tokens = 0;
  // Runs of the first layer; the next layer's lie this much further.
  std::vector<CopyRun> runs;
  uint64_t source_layer_stride = 0;
  uint64_t dest_layer_stride = 0;

  uint64_t dest_bytes() const;  // of one layer in one block
};

// Tokens first .. end - 1 of a sequence.
struct TokenRange {
  int64_t first = 0;
  int64_t end = 0;
};

// One page to one page, one layer: the runs of `copy`, each this much further in the pages.
struct PageCopy {
  const ReshardCopy* copy = nullptr;
  int64_t source_block = 0;
  int64_t dest_block = 0;
  uint64_t source_shift = 0;
  uint64_t dest_shift = 0;
};

class ReshardPlan {
 public:
  // Errors: code "kv_layout", when no plan exists; the sentence says why.
  static Result<ReshardPlan> make(const std::vector<LayerShape>& model, const KvPlace& source,
                                  const KvPlace& dest);
  // Anybody's copies; see prove_coverage.
  ReshardPlan(int32_t dest_block_tokens, std::vector<ReshardCopy> copies);

  std::span<const ReshardCopy> copies() const { return copies_; }
  // What `dest_rank` reads from `source_rank` of one layer so that `tokens` are there, by source
  // block. A block is named if it holds one of the tokens; the rest of it comes along where that
  // needs no further block. Pointers live as long as the plan.
  std::vector<PageCopy> pages(int32_t source_rank, int32_t dest_rank, int32_t layer,
                              TokenRange tokens) const;
  std::vector<int32_t> sources_of(int32_t dest_rank) const;  // ascending

 private:
  int32_t dest_block_tokens_ = 1;
  std::vector<ReshardCopy> copies_;  // by (dest rank, source rank)
};

}  // namespace tandem::kv
