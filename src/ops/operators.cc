#include "ops/operators.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace tandem::ops {
namespace {

using device::split_work;
using device::WorkRange;

// out[row][0 .. weights.rows) of the rows of x.
void multiply(const CpuExecutor& executor, int thread, const Activations& x,
              const PackedView& weights, float* out, size_t stride_out) {
  assert(weights.columns == x.columns);
  const cpu::Kernels& kernels = executor.kernels();
  if (weights.pairs) {
    assert(x.bf16 != nullptr);
    kernels.linear_bf16({.weights = weights,
                         .group_end = weights.groups,
                         .x = x.bf16,
                         .stride_x = x.bf16_per_row(),
                         .rows = x.rows,
                         .out = out,
                         .stride_out = stride_out});
  } else if (x.blocks != nullptr && has_int8_kernel(weights.format)) {
    kernels.linear_i8({.weights = weights,
                       .group_end = weights.groups,
                       .x = x.blocks,
                       .stride_x = x.blocks_per_row(),
                       .rows = x.rows,
                       .out = out,
                       .stride_out = stride_out});
  } else {
    kernels.linear_f32({.weights = weights,
                        .group_end = weights.groups,
                        .x = x.values,
                        .stride_x = static_cast<size_t>(x.columns),
                        .rows = x.rows,
                        .out = out,
                        .stride_out = stride_out,
                        .panel = executor.scratch(thread)});
  }
}

// `values`, the columns [begin, begin + count) of one row, in the forms that are asked for; `begin`
// is a multiple of 32.
void quantize_columns(const cpu::Kernels& kernels, const float* values, int32_t begin,
                      int32_t count, const Activations& out, int32_t row) {
  const auto at = static_cast<size_t>(row);
  if (out.blocks != nullptr)
    kernels.quantize_row(values, count, out.blocks + at * out.blocks_per_row() + begin / 32);
  if (out.bf16 != nullptr) {
    kernels.store_values({.dtype = KvDtype::kBF16, .count = count}, values,
                         reinterpret_cast<std::byte*>(out.bf16 + at * out.bf16_per_row() + begin));
  }
}

void quantize_row(const cpu::Kernels& kernels, const Activations& x, int32_t row) {
  quantize_columns(kernels, x.values + static_cast<size_t>(row) * x.columns, 0, x.columns, x, row);
}

// Parts of an operator: a few for each thread, so that one that is held up for a moment leaves its
// share to the others; one, which is a plain call, when there is no work for two.
constexpr int32_t kPartsPerThread = 4;
int32_t part_count(const CpuExecutor& executor, int32_t units) {
  const int32_t threads = executor.threads().count();
  return threads == 1 ? 1 : std::min(units, threads * kPartsPerThread);
}

// function(row) for each row.
template <typename Function>
void for_rows(const CpuExecutor& executor, int32_t rows, const Function& function) {
  const int32_t parts = part_count(executor, rows);
  executor.threads().parallel_parts(parts, [&](int, int part) {
    const WorkRange range = split_work(rows, part, parts);
    for (int32_t row = range.begin; row < range.end; ++row) function(row);
  });
}

// How a product's `units` (groups of outputs, or a few of them) are cut into parts: `run` in each.
struct ProductParts {
  int32_t run = 1;
  int32_t count = 1;
  WorkRange range(int part, int32_t units) const {
    return {part * run, std::min((part + 1) * run, units)};
  }
};

// With few rows the weights come from memory, and each piece's start waits for it: one long piece
// for each thread reads 57 GB/s where four read 40 (Zen 4, matrices of 640 KB). With many, threads
// that claim small pieces end together: a piece takes some ten microseconds, and among those no
// longer than a few for each thread the length that divides best. Where a second cache does not
// hold the rows' inputs, each piece reads them anew: at least kUnitsForInputs units share that.
ProductParts cut_product(const CpuExecutor& executor, int32_t units, int32_t rows, int64_t columns,
                         int64_t multiply_adds_per_unit) {
  constexpr int32_t kFewRows = 8;
  constexpr int64_t kSmallPiece = 2'000'000;  // multiply-adds
  constexpr int64_t kManyInputs = 1 << 20;
  constexpr int64_t kUnitsForInputs = 4;
  const int32_t threads = executor.threads().count();
  if (threads == 1 || units == 0) return {.run = std::max(units, 1)};
  const auto cut = [&](int32_t run) {
    return ProductParts{.run = run, .count = (units + run - 1) / run};
  };
  if (rows <= kFewRows) return cut((units + threads - 1) / threads);
  const auto longest_load = [&](int32_t run) {
    return (cut(run).count + threads - 1) / threads * run;
  };
  int64_t small = kSmallPiece / std::max<int64_t>(multiply_adds_per_unit, 1) + 1;
  const bool many_inputs = rows * columns > kManyInputs;
  if (many_inputs) small = std::max(small, kUnitsForInputs);
  int32_t best = std::max(units / (threads * kPartsPerThread), 1);
  best = static_cast<int32_t>(std::min<int64_t>(best, small));
  const int32_t least = many_inputs ? (best + 1) / 2 : 1;
  for (int32_t run = best - 1; run >= least; --run) {
    if (longest_load(run) < longest_load(best)) best = run;
  }
  return cut(best);
}

using ActivationKernel = void (*)(const float* gate, const float* up, int32_t columns, float* out);

ActivationKernel activation_kernel(const cpu::Kernels& kernels, Activation activation) {
  return activation == Activation::kSilu ? kernels.silu_mul : kernels.gelu_mul;
}

}  // namespace

void linear(const CpuExecutor& executor, const Activations& x,
            std::span<const LinearTarget> targets) {
  int32_t total = 0;
  // Products of pairs take two groups at a time.
  int32_t step = executor.kernels().product_groups;
  for (const LinearTarget& target : targets) {
    total += target.weights->view().groups;
    if (target.weights->view().pairs) step = 2;
  }
  const int32_t units = (total + step - 1) / step;
  const ProductParts parts = cut_product(executor, units, x.rows, x.columns,
                                         int64_t{step} * kGroupRows * x.columns * x.rows);
  executor.threads().parallel_parts(parts.count, [&](int thread, int part) {
    // The targets' groups stand in one row; a part is a range of it.
    WorkRange range = parts.range(part, units);
    range = {range.begin * step, std::min(range.end * step, total)};
    for (const LinearTarget& target : targets) {
      const int32_t groups = target.weights->view().groups;
      const WorkRange own = {std::max(range.begin, 0), std::min(range.end, groups)};
      if (own.begin < own.end) {
        multiply(executor, thread, x, target.weights->view().slice(own.begin, own.end),
                 target.out + static_cast<ptrdiff_t>(own.begin) * kGroupRows, target.stride_out);
      }
      range = {range.begin - groups, range.end - groups};
    }
  });
}

namespace {

// What gated_ffn() computes, for the parts that threads take.
struct GatedFfn {
  const CpuExecutor& executor;
  const Activations& x;
  const PackedView& gate;
  const PackedView& up;
  ActivationKernel activate;
  const Activations& out;

  static constexpr int32_t kStep = 32;  // columns: whole blocks of activations, whole groups

  // Columns [begin, end) of a few rows: a part's groups are one long read of each matrix.
  void few_rows(int thread, int32_t begin, int32_t end, float* gate_out, float* up_out) const {
    const auto stride = static_cast<size_t>(out.columns);
    products(thread, x, begin, end, gate_out + begin, up_out + begin, stride);
    for (int32_t row = 0; row < x.rows; ++row) {
      const size_t at = row * stride + begin;
      activate(gate_out + at, up_out + at, end - begin, out.values + at);
      quantize_columns(executor.kernels(), out.values + at, begin, end - begin, out, row);
    }
  }

  // One step's columns of many rows: the products of some rows stay in a cache until they are
  // combined.
  void many_rows(int thread, int32_t begin, int32_t end) const {
    const int32_t most = executor.kernels().product_rows;
    assert(static_cast<size_t>(most) * kStep * 3 <= CpuExecutor::kProductFloats);
    float* gate_out = executor.product_scratch(thread);
    float* up_out = gate_out + static_cast<ptrdiff_t>(most) * kStep;
    float* combined = up_out + static_cast<ptrdiff_t>(most) * kStep;
    for (int32_t first = 0; first < x.rows; first += most) {
      const int32_t rows = std::min(most, x.rows - first);
      products(thread, x.slice(first, rows), begin, end, gate_out, up_out, kStep);
      for (int32_t m = 0; m < rows; ++m) {
        const int32_t row = first + m;
        float* values = out.keep_values
                            ? out.values + static_cast<size_t>(row) * out.columns + begin
                            : combined;
        activate(gate_out + m * kStep, up_out + m * kStep, end - begin, values);
        quantize_columns(executor.kernels(), values, begin, end - begin, out, row);
      }
    }
  }

 private:
  void products(int thread, const Activations& rows, int32_t begin, int32_t end, float* gate_out,
                float* up_out, size_t stride) const {
    const WorkRange groups = {begin / kGroupRows, (end + kGroupRows - 1) / kGroupRows};
    multiply(executor, thread, rows, gate.slice(groups.begin, groups.end), gate_out, stride);
    multiply(executor, thread, rows, up.slice(groups.begin, groups.end), up_out, stride);
  }
};

}  // namespace

void gated_ffn(const CpuExecutor& executor, const Activations& x, const PackedMatrix& gate,
               const PackedMatrix& up, Activation activation, float* gate_out, float* up_out,
               const Activations& out) {
  const GatedFfn ffn = {.executor = executor,
                        .x = x,
                        .gate = gate.view(),
                        .up = up.view(),
                        .activate = activation_kernel(executor.kernels(), activation),
                        .out = out};
  constexpr int32_t kStep = GatedFfn::kStep;
  const int32_t steps = (out.columns + kStep - 1) / kStep;
  const ProductParts parts =
      cut_product(executor, steps, x.rows, 0, int64_t{2} * kStep * x.columns * x.rows);
  executor.threads().parallel_parts(parts.count, [&](int thread, int part) {
    const WorkRange range = parts.range(part, steps);
    if (x.rows <= kGatedRows) {
      ffn.few_rows(thread, range.begin * kStep, std::min(range.end * kStep, out.columns), gate_out,
                   up_out);
      return;
    }
    for (int32_t step = range.begin; step < range.end; ++step)
      ffn.many_rows(thread, step * kStep, std::min((step + 1) * kStep, out.columns));
  });
}

void gate(const CpuExecutor& executor, const float* gate, const float* up, Activation activation,
          const Activations& out) {
  const auto activate = activation_kernel(executor.kernels(), activation);
  for_rows(executor, out.rows, [&](int32_t row) {
    const size_t at = static_cast<size_t>(row) * out.columns;
    activate(gate + at, up + at, out.columns, out.values + at);
    quantize_row(executor.kernels(), out, row);
  });
}

void add_rms_norm(const CpuExecutor& executor, const Residual& residual, float* x,
                  const float* weight, float epsilon, const Activations& out) {
  const cpu::Kernels& kernels = executor.kernels();
  const int32_t columns = out.columns;
  const int32_t parts = part_count(executor, out.rows);
  executor.threads().parallel_parts(parts, [&](int, int part) {
    const WorkRange range = split_work(out.rows, part, parts);
    for (int32_t row = range.begin; row < range.end; ++row) {
      const size_t at = static_cast<size_t>(row) * columns;
      if (residual.delta != nullptr) {
        float* delta = residual.delta + at;
        if (residual.norm != nullptr)
          kernels.rms_norm(delta, residual.norm, columns, epsilon, delta);
        kernels.add(delta, columns, x + at);
      }
      // Values that nobody reads later all go through the part's first row, which stays in the
      // cache.
      float* values =
          out.values + static_cast<size_t>(out.keep_values ? row : range.begin) * columns;
      if (weight != nullptr) {
        kernels.rms_norm(x + at, weight, columns, epsilon, values);
      } else {
        std::copy_n(x + at, columns, values);
      }
      quantize_columns(kernels, values, 0, columns, out, row);
    }
  });
}

void quantize(const CpuExecutor& executor, const Activations& x) {
  if (x.blocks == nullptr && x.bf16 == nullptr) return;
  for_rows(executor, x.rows, [&](int32_t row) { quantize_row(executor.kernels(), x, row); });
}

void add_bias(const CpuExecutor& executor, const float* bias, int32_t rows, int32_t columns,
              float* in_out) {
  for_rows(executor, rows, [&](int32_t row) {
    executor.kernels().add(bias, columns, in_out + static_cast<size_t>(row) * columns);
  });
}

void soft_cap(const CpuExecutor& executor, float cap, int32_t rows, int32_t columns,
              float* in_out) {
  // Split by columns: a decode step has few rows and a large vocabulary.
  constexpr int32_t kStep = 1024;
  executor.threads().parallel([&](int thread, int count) {
    const WorkRange steps = split_work((columns + kStep - 1) / kStep, thread, count);
    const int32_t begin = steps.begin * kStep;
    const int32_t end = std::min(steps.end * kStep, columns);
    for (int32_t row = 0; row < rows && begin < end; ++row)
      executor.kernels().soft_cap(cap, end - begin,
                                  in_out + static_cast<size_t>(row) * columns + begin);
  });
}

void add_low_rank(const CpuExecutor& executor, const Activations& x, int32_t first, int32_t count,
                  const LowRank& low_rank, float* out, size_t stride_out, float* scratch) {
  const int32_t rank = low_rank.a.view().rows;
  const int32_t outputs = low_rank.b.view().rows;
  float* products = scratch + static_cast<size_t>(count) * rank;
  const Activations inputs = {.values = x.values + static_cast<size_t>(first) * x.columns,
                              .blocks = nullptr,
                              .rows = count,
                              .columns = x.columns};
  const LinearTarget down[] = {{&low_rank.a, scratch, static_cast<size_t>(rank)}};
  linear(executor, inputs, down);
  const Activations low = {.values = scratch, .blocks = nullptr, .rows = count, .columns = rank};
  const LinearTarget up[] = {{&low_rank.b, products, static_cast<size_t>(outputs)}};
  linear(executor, low, up);
  for_rows(executor, count, [&](int32_t row) {
    executor.kernels().add_scaled(products + static_cast<size_t>(row) * outputs, low_rank.scale,
                                  outputs, out + static_cast<size_t>(first + row) * stride_out);
  });
}

void embed(const CpuExecutor& executor, const weights::Tensor& table, float scale,
           std::span<const int32_t> tokens, float* out) {
  const auto columns = static_cast<size_t>(table.columns());
  for_rows(executor, static_cast<int32_t>(tokens.size()), [&](int32_t row) {
    weights::dequantize_row(table.format, table.row(tokens[row]), {out + row * columns, columns});
    if (scale != 1.0F) {
      executor.kernels().scale(scale, static_cast<int32_t>(columns), out + row * columns);
    }
  });
}

void rope_angles(const CpuExecutor& executor, std::span<const int32_t> positions, const Rope& rope,
                 float* cos_sin) {
  const auto pairs = rope.frequencies.size();
  const bool adjacent = rope.pairing == RopePairing::kAdjacent;
  for_rows(executor, static_cast<int32_t>(positions.size()), [&](int32_t row) {
    float* out = cos_sin + static_cast<size_t>(row) * pairs * 2;
    for (size_t i = 0; i < pairs; ++i) {
      const float angle = static_cast<float>(positions[row]) * rope.frequencies[i];
      const auto cosine = static_cast<float>(std::cos(static_cast<double>(angle)));
      const auto sine = static_cast<float>(std::sin(static_cast<double>(angle)));
      out[adjacent ? 2 * i : i] = cosine * rope.amplitude;
      out[adjacent ? 2 * i + 1 : pairs + i] = sine * rope.amplitude;
    }
  });
}

}  // namespace tandem::ops
