// The CPU kernels: one table of functions per instruction set, chosen once (dispatch.h).
//
// Every kernel obeys the same rules. It allocates nothing and throws nothing. For one instruction
// set the bits of a row's result depend only on that row's inputs: reductions run in a fixed order
// that does not know how many other rows there are or which thread runs. Between instruction sets
// the order may differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/cpu_level.h"
#include "ops/packed_matrix.h"
#include "ops/page_layout.h"

namespace tandem::ops::cpu {

using Isa = CpuLevel;

// Bumped whenever a kernel's bits change: it is part of the name of the numeric path.
inline constexpr int kKernelVersion = 2;

// 32 activations as int8 with one scale. The sums are precomputed so that kernels can keep codes
// unsigned (a weight is d * (code - zero), and the zero's share of a dot product is -zero * sum(q))
// and add minimums once per block; of both halves, for formats that scale 16 columns. Not 64 bytes:
// rows of 2048 columns would then share their cache sets.
struct alignas(16) ActivationBlock {
  int8_t q[32];
  float d;                // value = d * q; NaN when any of the 32 inputs was not finite
  float d_times_sum;      // d * sum(q)
  int32_t minus_8_sum;    // -8 * sum(q)
  int16_t minus_half[2];  // -sum(q[0..15]), -sum(q[16..31])
};
static_assert(sizeof(ActivationBlock) == 48);

struct LinearF32 {
  PackedView weights;
  int32_t group_begin = 0;
  int32_t group_end = 0;
  const float* x = nullptr;  // [rows][stride_x], `weights.columns` values used
  size_t stride_x = 0;
  int32_t rows = 0;
  float* out = nullptr;  // [rows][stride_out], only the groups' columns written
  size_t stride_out = 0;
  float* panel = nullptr;  // scratch of kPanelFloats, 64-byte aligned
};

struct LinearI8 {
  PackedView weights;  // any quantized format
  int32_t group_begin = 0;
  int32_t group_end = 0;
  const ActivationBlock* x = nullptr;  // [rows][stride_x], `weights.columns / 32` blocks used
  size_t stride_x = 0;                 // blocks
  int32_t rows = 0;
  float* out = nullptr;
  size_t stride_out = 0;
};

struct LinearBf16 {
  PackedView weights;  // with `pairs`
  int32_t group_begin = 0;
  int32_t group_end = 0;
  const uint16_t* x = nullptr;  // BF16, zeros from the last column to an even one; 4-byte aligned
  size_t stride_x = 0;          // values; even
  int32_t rows = 0;
  float* out = nullptr;
  size_t stride_out = 0;
};

inline constexpr int32_t kPanelDepth = 256;  // 16 KiB of float32: half of a small L1
inline constexpr size_t kPanelFloats = static_cast<size_t>(kPanelDepth) * kGroupRows;
inline constexpr int32_t kRowBlock = 64;  // rows that share one decoded panel

// A (row, query head) pair of a tile of several sequences.
struct SharedPair {
  int32_t row = 0;            // of q
  int32_t head = 0;           // in the KV head's group
  int32_t position = 0;       // of the row
  float* partials = nullptr;  // where its result of span 0 would go
  size_t partial_stride = 0;  // from one span's to the next one's
};

// One tile of attention: `pair_count` (row, query head) pairs of one sequence that share a KV head.
// Pair i of the sequence is row i / group and head kv_head * group + i % group.
//
// Or, with `shared`, of several sequences that have the same pages for positions [begin, end), all
// of which lie before every pair's own: pair i is shared[i], and results go to its partials.
struct AttentionTile {
  // K of page p starts at page_base + p * page_stride + k_offset. Plain numbers rather than a
  // PageArenaView: calling inline functions of shared headers from an AVX file could make the
  // linker keep an AVX copy for everybody.
  const std::byte* page_base = nullptr;
  size_t page_stride = 0;
  size_t k_offset = 0;
  size_t v_offset = 0;
  KvDtype dtype = KvDtype::kF32;
  int32_t head_dim = 0;
  int32_t block_tokens = 16;
  // log2(block_tokens) where it is whole, else -1: divisions cost as much as a key.
  int32_t block_shift = -1;
  const int32_t* page_ids = nullptr;  // block k's page is page_ids[k * page_id_step]
  size_t page_id_step = 1;
  int32_t window = 0;  // 0: a row sees every position up to its own; else the last `window` of them
  int32_t kv_head = 0;
  int32_t group = 1;           // query heads per KV head
  int32_t first_position = 0;  // of the sequence's first row in this pass
  int32_t pair_begin = 0;
  int32_t pair_count = 0;    // at most Kernels::attention_pairs; with `shared`, kTilePairs
  const float* q = nullptr;  // the sequence's first row, [row][heads * head_dim]
  size_t stride_q = 0;
  float* out = nullptr;  // like q
  size_t stride_out = 0;
  float scale = 1;           // of every score, kFp8Static's scale of K included
  float value_scale = 1;     // factor of the weighted values: kFp8Static's scale of V
  float softcap = 0;         // above 0: scores become softcap * tanh(score / softcap)
  float* scratch = nullptr;  // attention_scratch_floats(head_dim), 64-byte aligned
  // Only positions [begin, end) are read, both multiples of kSpanTokens (or `end` beyond the last).
  int32_t begin = 0;
  int32_t end = INT32_MAX;
  // Null: `out` is written. Else each span's result goes, before any merge, to
  // partials[span * partial_stride + i * partial_floats(head_dim) ..] for pair i of this tile: its
  // maximum and total, and from float 16 on the weighted values.
  float* partials = nullptr;
  size_t partial_stride = 0;
  const SharedPair* shared = nullptr;
};

inline constexpr int32_t kTilePairs = 32;
inline constexpr int32_t kWidePairs = 128;  // where many pairs can share what a tile makes of pages
// Softmax runs over spans of this many positions, aligned to multiples of it; spans are merged in
// order. The split is a constant so that a row's bits depend on its position only, whoever computes
// which span.
inline constexpr int32_t kSpanTokens = 256;

// Floats from one pair's scores to the next one's in tiles: rows that are a power of two apart fall
// into the same few sets of a cache.
inline constexpr int32_t kScoreStride = kSpanTokens + 16;

constexpr size_t round_up_16(size_t value) { return (value + 15) / 16 * 16; }
// Queries (in two orders; AMX: BF16 ones and panels of keys), one span's scores, the span's and the
// running accumulators, one panel, the inline scales of one span; for wide tiles one span's keys
// and values as BF16, and each pair's query and running accumulator.
constexpr size_t attention_scratch_floats(int32_t head_dim) {
  const size_t dim = round_up_16(static_cast<size_t>(head_dim));
  const size_t depth = dim > kSpanTokens ? dim : static_cast<size_t>(kSpanTokens);
  const size_t wide = (dim + 16) * (kSpanTokens + 2 * kWidePairs);
  return kTilePairs * (4 * dim + kScoreStride) + depth * 16 + 2 * kTilePairs + 2 * kSpanTokens +
         wide;
}

// One pair's result of one span (AttentionTile::partials).
constexpr size_t partial_floats(int32_t head_dim) {
  return 16 + round_up_16(static_cast<size_t>(head_dim));
}

// `count` values of one dtype. Value i's scale is scales[i * scale_step]: step 0 when they share
// one, 1 when neighbours are tokens with scales of their own. Dtypes without scales ignore them.
struct StoredValues {
  KvDtype dtype = KvDtype::kF32;
  int32_t count = 0;
  const float* scales = nullptr;
  int32_t scale_step = 0;
};

struct Kernels {
  Isa isa = Isa::kScalar;
  const char* name = "scalar";

  // What products are faster in: groups of outputs side by side, and rows whose gated products are
  // combined while they are in a cache.
  int32_t product_groups = 1;
  int32_t product_rows = 64;
  int32_t attention_pairs = kTilePairs;  // most of an attention tile

  void (*linear_f32)(const LinearF32& params);
  void (*linear_i8)(const LinearI8& params);
  // Null where the machine has no product of BF16 pairs that is faster than float32's. AMX's takes
  // denormals for zeros.
  void (*linear_bf16)(const LinearBf16& params) = nullptr;
  // `columns` is a multiple of 32.
  void (*quantize_row)(const float* x, int32_t columns, ActivationBlock* out);
  void (*rms_norm)(const float* x, const float* weight, int32_t columns, float epsilon, float* out);
  // Rotates adjacent pairs (2i, 2i+1), i < pairs, of each head. cos_sin: [pairs]{cos, sin}.
  void (*rope)(float* x, int32_t heads, int32_t head_dim, int32_t pairs, const float* cos_sin);
  // Rotates pairs (i, pairs + i), i < pairs, of each head. cos_sin: [pairs] cos, [pairs] sin.
  void (*rope_halves)(float* x, int32_t heads, int32_t head_dim, int32_t pairs,
                      const float* cos_sin);
  void (*silu_mul)(const float* gate, const float* up, int32_t columns, float* out);
  // gelu by its tanh approximation.
  void (*gelu_mul)(const float* gate, const float* up, int32_t columns, float* out);
  void (*add)(const float* x, int32_t columns, float* in_out);
  void (*add_scaled)(const float* x, float factor, int32_t columns, float* in_out);
  void (*scale)(float factor, int32_t columns, float* in_out);
  void (*soft_cap)(float cap, int32_t columns, float* in_out);  // cap * tanh(x / cap)
  void (*attention)(const AttentionTile& tile);                 // pages of any dtype
  // Merges the spans of [begin, end) out of `partials` and writes `out`.
  void (*merge_attention)(const AttentionTile& tile);
  // PageTrait's load and store, bit for bit on every instruction set.
  void (*load_values)(const StoredValues& from, const std::byte* values, float* out);
  void (*store_values)(const StoredValues& to, const float* x, std::byte* out);
  // in_out[i] = max(in_out[i], |x[i]|), and NaN from the first NaN on.
  void (*raise_peaks)(const float* x, int32_t count, float* in_out);
};

}  // namespace tandem::ops::cpu
