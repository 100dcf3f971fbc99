// The operators a model is written in. Each call runs on every thread of the executor and returns
// when all are done.
//
// Shapes are [rows][columns], row-major float32. All operators are batch-invariant (DESIGN I13): a
// row's bits do not depend on the other rows, on how a prompt was cut into chunks, or on the number
// of threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "ops/executor.h"
#include "ops/forward_batch.h"
#include "ops/packed_matrix.h"
#include "ops/page_layout.h"
#include "weights/tensor.h"

namespace tandem::ops {

// Inputs of `linear`: float32 rows and, in fast mode, the same rows in the forms that the weights'
// kernels take, made by `add_rms_norm`, `gated_ffn`, `gate` or `quantize`. Not owning. `blocks` and
// `bf16` are null in exact mode and where no weights want them, `blocks` also when `columns` is not
// a multiple of 32. What follows a row of `bf16` up to the next one is zeros.
struct Activations {
  float* values = nullptr;
  cpu::ActivationBlock* blocks = nullptr;
  int32_t rows = 0;
  int32_t columns = 0;
  uint16_t* bf16 = nullptr;
  // False: what makes the other forms may leave anything in `values`. Many rows are then written to
  // memory once, not twice.
  bool keep_values = true;

  size_t blocks_per_row() const { return static_cast<size_t>(columns) / 32; }
  // Rows [first, first + count).
  Activations slice(int32_t first, int32_t count) const {
    const auto at = static_cast<size_t>(first);
    Activations part = *this;
    part.rows = count;
    part.values += at * static_cast<size_t>(columns);
    if (blocks != nullptr) part.blocks += at * blocks_per_row();
    if (bf16 != nullptr) part.bf16 += at * bf16_per_row();
    return part;
  }
  // An odd number of cache lines, so that rows do not share their cache sets.
  size_t bf16_per_row() const { return ((static_cast<size_t>(columns) + 31) / 32 | 1) * 32; }
};

// One matrix of a `linear` call: out[row][0 .. weights.rows) with `stride_out` floats from row to
// row.
struct LinearTarget {
  const PackedMatrix* weights = nullptr;
  float* out = nullptr;
  size_t stride_out = 0;
};

// out = x * transpose(weights) for every target; they share x and one barrier. The weights' format
// decides the kernel: BF16 for weights packed in pairs, which x.bf16 must be there for; int8 when x
// has blocks and the format allows it; else float32.
void linear(const CpuExecutor& executor, const Activations& x,
            std::span<const LinearTarget> targets);

enum class Activation : uint8_t {
  kSilu,
  kGeluTanh,  // gelu by its tanh approximation
};

// out.values = activation(gate * x) * (up * x), then quantized if `out` asks for it. `gate_out` and
// `up_out` are scratch of kGatedRows * out.columns floats each.
inline constexpr int32_t kGatedRows = 32;
void gated_ffn(const CpuExecutor& executor, const Activations& x, const PackedMatrix& gate,
               const PackedMatrix& up, Activation activation, float* gate_out, float* up_out,
               const Activations& out);

// The second half of gated_ffn, for products that something was added to:
// out.values = activation(gate) * up, then quantized if `out` asks for it.
void gate(const CpuExecutor& executor, const float* gate, const float* up, Activation activation,
          const Activations& out);

// What one block of a layer adds to the residual stream.
struct Residual {
  float* delta = nullptr;       // [rows][columns], overwritten when there is a norm; null: nothing
  const float* norm = nullptr;  // weight of an RMS norm that delta passes first; null: none
};

// x += delta, in place; then out = x / rms(x) * weight (or just x when `weight` is null), quantized
// if `out` asks for it. `epsilon` is that of both norms.
void add_rms_norm(const CpuExecutor& executor, const Residual& residual, float* x,
                  const float* weight, float epsilon, const Activations& out);

// Adds a vector of `columns` values to each of `rows` rows.
void add_bias(const CpuExecutor& executor, const float* bias, int32_t rows, int32_t columns,
              float* in_out);

// x = cap * tanh(x / cap).
void soft_cap(const CpuExecutor& executor, float cap, int32_t rows, int32_t columns, float* in_out);

// One pair of low-rank matrices that an adapter adds to a product: out += scale * B (A x).
struct LowRank {
  PackedMatrix a;  // [rank][inputs], F32
  PackedMatrix b;  // [outputs][rank], F32
  float scale = 1;
};

// For rows [first, first + count) of x: out[row] += scale * B (A x[row]), in float32 whatever the
// mode. `scratch` holds count * (rank + outputs) floats.
void add_low_rank(const CpuExecutor& executor, const Activations& x, int32_t first, int32_t count,
                  const LowRank& low_rank, float* out, size_t stride_out, float* scratch);

// Fills x.blocks and x.bf16, those that there are, from x.values.
void quantize(const CpuExecutor& executor, const Activations& x);

// Rows of a token embedding matrix, decoded from the file and multiplied by `scale`. Tokens must be
// in range.
void embed(const CpuExecutor& executor, const weights::Tensor& table, float scale,
           std::span<const int32_t> tokens, float* out);

// Which two values of a head are rotated together.
enum class RopePairing : uint8_t {
  kAdjacent,  // 2i and 2i + 1
  kHalves,    // i and pairs + i
};

// Rotations by position, one frequency (radians per position) for each pair.
struct Rope {
  RopePairing pairing = RopePairing::kAdjacent;
  std::vector<float> frequencies;
  float amplitude = 1;  // factor of every cosine and sine

  int32_t pairs() const { return static_cast<int32_t>(frequencies.size()); }
};

// cos_sin[row][2 * pairs] of position * frequency[pair], the angle rounded to float32 as the
// reference does; in the order that the pairing's kernel reads.
void rope_angles(const CpuExecutor& executor, std::span<const int32_t> positions, const Rope& rope,
                 float* cos_sin);

// Shapes of one attention layer's rows.
struct AttentionShape {
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  float scale = 1;    // factor of every score
  float softcap = 0;  // above 0: scores become softcap * tanh(score / softcap)

  int32_t q_columns() const { return heads * head_dim; }
  int32_t kv_columns() const { return kv_heads * head_dim; }
};

// Where a layer's pages are, and how far back it sees.
struct AttentionLayer {
  LayerPlace place;
  int32_t window = 0;  // 0: everything; else the last `window` positions, the row's own included
  KvScaleView scales = {};  // of pages of kFp8Static
};

// What happens to q, k and v between their products and the pages, in this order. Null: nothing.
struct QkvTransform {
  const float* q_bias = nullptr;  // [q_columns]
  const float* k_bias = nullptr;  // [kv_columns]
  const float* v_bias = nullptr;
  // RMS norm weights: [head_dim], applied to each head; or, with norm_whole, [q_columns] and
  // [kv_columns], applied to all heads as one row.
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  bool norm_whole = false;
  float epsilon = 0;
  const Rope* rope = nullptr;
  const float* cos_sin = nullptr;  // rope_angles() of the batch's rows
};

// Transforms q, k and v in place and writes k and v of every row of the batch to its page.
void finish_qkv(const CpuExecutor& executor, const AttentionShape& shape,
                const QkvTransform& transform, std::span<const SequenceRows> sequences, float* q,
                float* k, float* v, const AttentionLayer& layer, const PageArenaView& pages);

// A batch's attention work, planned once per pass and run once per layer.
//
// A tile is up to Kernels::attention_pairs (row, query head) pairs of one sequence that share a KV
// head. Tiles with more positions than a fair share of a thread are cut into ranges of whole spans,
// whose results the last one to end merges in order: a result has the same bits however a tile was
// cut. So it has when sequences whose leading pages are the same ones (prefixes out of the cache)
// have the spans that lie in them read once for all of them (attention_sharing.cc).
class AttentionPlan {
 public:
  // Room for at most `max_rows` rows at positions below `max_positions` (0: any). Where there is no
  // memory, tiles are not cut.
  AttentionPlan(int32_t max_rows, const AttentionShape& shape, int32_t max_positions = 0);
  // What it may write to at once. It is taken from the system as it is first needed.
  size_t partial_bytes() const { return partial_floats_ * sizeof(float); }
  // Keeps views of `sequences`. At most max_rows rows in all. For run() by this executor.
  void plan(std::span<const SequenceRows> sequences, const PageLayout& layout,
            const CpuExecutor& executor);
  // Spans of KV heads that run() reads: those that are shared count once for each tile.
  int64_t planned_spans() const;
  // out[row][heads * head_dim] for every planned row. K and V of the rows must have been written.
  // Pages whose positions lie before every row's window are not touched.
  void run(const CpuExecutor& executor, const float* q, float* out, const AttentionLayer& layer,
           const PageArenaView& pages);

 private:
  struct Tile {
    int32_t sequence = 0;
    int32_t kv_head = 0;
    int32_t pair_begin = 0;
    int32_t pair_count = 0;
    int32_t first_span = 0;  // spans before are read by shared tiles
    int32_t spans = 0;       // of kSpanTokens positions, from position 0 on
    int32_t parts = 1;       // pieces of work that its result is made of
    int32_t left = 0;        // of them, those that run still
    bool in_parts = false;   // spans' results go to `partials`, to be merged
    size_t partials = 0;     // where they start
  };
  // The tiles of several sequences for one KV head, for spans that lie in the same pages.
  struct SharedTile {
    int32_t kv_head = 0;
    int32_t first_member = 0;  // members_[first_member .. first_member + member_count)
    int32_t member_count = 0;
    int32_t pair_count = 0;
    int32_t first_span = 0;
    int32_t end_span = 0;
  };
  struct Item {
    int32_t tile;
    int32_t first_span;
    int32_t end_span;
    bool shared;
  };
  struct Candidate {  // a sequence that may share
    int32_t sequence = 0;
    int32_t spans = 0;  // that lie before all of its rows
    int32_t same = 0;   // spans whose pages are those of the candidate before this one
  };

  int32_t pairs_of(int32_t sequence) const {
    return sequences_[sequence].row_count * (shape_.heads / shape_.kv_heads);
  }
  // Widening and reading a value costs about two multiply-adds of a pair.
  static int64_t cost_of(int32_t pairs, int32_t spans) { return int64_t{2 + pairs} * spans; }
  size_t partials_of(const Tile& tile) const {
    return static_cast<size_t>(tile.spans) * tile.pair_count * cpu::partial_floats(shape_.head_dim);
  }
  void cut_tiles(int32_t most_pairs);
  bool take_partials(Tile& tile);
  // Fills shared_ and the tiles' first spans.
  void find_shared(const PageLayout& layout);
  void find_candidates(const PageLayout& layout);
  void share(int32_t begin, int32_t end, int32_t depth);
  void share_spans(int32_t begin, int32_t end, int32_t first_span, int32_t end_span);
  // Cuts spans [first, end) of a tile into items that each cost about `most`; how many.
  int32_t add_items(int32_t tile, bool shared, int32_t pairs, int32_t first, int32_t end,
                    int64_t most);
  cpu::AttentionTile describe(const Tile& tile, const float* q, float* out,
                              const AttentionLayer& layer, const PageArenaView& pages);
  cpu::AttentionTile describe(const SharedTile& tile, const float* q, const AttentionLayer& layer,
                              const PageArenaView& pages, std::span<cpu::SharedPair> pairs);
  cpu::AttentionTile describe_pages(int32_t sequence, int32_t kv_head, const AttentionLayer& layer,
                                    const PageArenaView& pages);

  AttentionShape shape_;
  std::span<const SequenceRows> sequences_;
  std::vector<Tile> tiles_;
  std::vector<int32_t> first_tiles_;  // of each sequence; KV head by KV head when it has one each
  std::vector<Candidate> candidates_;
  std::vector<int32_t> members_;  // sequences
  std::vector<SharedTile> shared_;
  std::vector<Item> items_;
  static constexpr size_t kMostPartialBytes = size_t{32} << 20;
  size_t partial_floats_ = 0;
  size_t partials_used_ = 0;
  AlignedBytes partials_;
};

// Whether the CPU kernels can use pages of this layout; says why not.
Status check_page_layout(const PageLayout& layout);

}  // namespace tandem::ops
