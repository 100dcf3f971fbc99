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

// Inputs of `linear`: float32 rows and, in fast mode, the same rows quantized by `rms_norm` or
// `quantize`. Not owning. `blocks` is null in exact mode or when `columns` is not a multiple of 32.
struct Activations {
  float* values = nullptr;
  cpu::ActivationBlock* blocks = nullptr;
  int32_t rows = 0;
  int32_t columns = 0;

  size_t blocks_per_row() const { return static_cast<size_t>(columns) / 32; }
};

// One matrix of a `linear` call: out[row][0 .. weights.rows) with `stride_out` floats from row to
// row.
struct LinearTarget {
  const PackedMatrix* weights = nullptr;
  float* out = nullptr;
  size_t stride_out = 0;
};

// out = x * transpose(weights) for every target; they share x and one barrier. The weights' format
// decides the kernel: int8 when x has blocks and the format allows it, else float32.
void linear(const CpuExecutor& executor, const Activations& x,
            std::span<const LinearTarget> targets);

// out.values = silu(gate * x) * (up * x), then quantized if `out` has blocks. `gate_out` and
// `up_out` are scratch of x.rows * out.columns floats each.
void gated_ffn(const CpuExecutor& executor, const Activations& x, const PackedMatrix& gate,
               const PackedMatrix& up, float* gate_out, float* up_out, const Activations& out);

// First adds `delta` (if not null) into `x`, in place; then out = x / rms(x) * weight, quantized if
// `out` has blocks.
void add_rms_norm(const CpuExecutor& executor, const float* delta, float* x, const float* weight,
                  float epsilon, const Activations& out);

// Fills x.blocks from x.values; nothing to do without blocks.
void quantize(const CpuExecutor& executor, const Activations& x);

// Rows of a token embedding matrix, decoded from the file. Tokens must be in range.
void embed(const CpuExecutor& executor, const weights::Tensor& table,
           std::span<const int32_t> tokens, float* out);

// cos_sin[row][pairs]{cos, sin} of position * frequency[pair], the angle rounded to float32 as the
// reference does.
void rope_angles(const CpuExecutor& executor, std::span<const int32_t> positions,
                 std::span<const float> frequencies, float* cos_sin);

// Shapes of one attention layer's rows.
struct AttentionShape {
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t rope_pairs = 0;
};

// Rotates q and k in place and writes k and v of every row of the batch to its page.
void rope_and_kv_write(const CpuExecutor& executor, const AttentionShape& shape,
                       std::span<const SequenceRows> sequences, const float* cos_sin, float* q,
                       float* k, const float* v, int32_t layer, const PageArenaView& pages);

// A batch's attention work, planned once per pass and run once per layer.
class AttentionPlan {
 public:
  AttentionPlan(int32_t max_rows, const AttentionShape& shape);
  // Keeps views of `sequences`. At most max_rows rows in all.
  void plan(std::span<const SequenceRows> sequences);
  // out[row][heads * head_dim] for every planned row. K and V of the rows must have been written.
  void run(const CpuExecutor& executor, const float* q, float* out, int32_t layer,
           const PageArenaView& pages) const;

 private:
  struct Item {
    int32_t sequence;
    int32_t kv_head;
    int32_t pair_begin;
    int32_t pair_count;
  };
  AttentionShape shape_;
  std::span<const SequenceRows> sequences_;
  std::vector<Item> items_;
};

// Whether the CPU kernels can use pages of this layout; says why not.
Status check_page_layout(const PageLayout& layout);

}  // namespace tandem::ops
