#include "ops/operators.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace tandem::ops {
namespace {

using device::split_work;
using device::WorkRange;

void linear_groups(const CpuExecutor& executor, int thread, const Activations& x,
                   const LinearTarget& target, WorkRange groups) {
  const PackedView& weights = target.weights->view();
  assert(weights.columns == x.columns);
  if (x.blocks != nullptr && has_int8_kernel(weights.format)) {
    executor.kernels().linear_i8({.weights = weights,
                                  .group_begin = groups.begin,
                                  .group_end = groups.end,
                                  .x = x.blocks,
                                  .stride_x = x.blocks_per_row(),
                                  .rows = x.rows,
                                  .out = target.out,
                                  .stride_out = target.stride_out});
    return;
  }
  executor.kernels().linear_f32({.weights = weights,
                                 .group_begin = groups.begin,
                                 .group_end = groups.end,
                                 .x = x.values,
                                 .stride_x = static_cast<size_t>(x.columns),
                                 .rows = x.rows,
                                 .out = target.out,
                                 .stride_out = target.stride_out,
                                 .panel = executor.scratch(thread)});
}

void quantize_one(const cpu::Kernels& kernels, const Activations& x, int32_t row) {
  if (x.blocks == nullptr) return;
  kernels.quantize_row(x.values + static_cast<size_t>(row) * x.columns, x.columns,
                       x.blocks + static_cast<size_t>(row) * x.blocks_per_row());
}

using ActivationKernel = void (*)(const float* gate, const float* up, int32_t columns, float* out);

ActivationKernel activation_kernel(const cpu::Kernels& kernels, Activation activation) {
  return activation == Activation::kSilu ? kernels.silu_mul : kernels.gelu_mul;
}

}  // namespace

void linear(const CpuExecutor& executor, const Activations& x,
            std::span<const LinearTarget> targets) {
  executor.threads().parallel([&](int thread, int count) {
    for (const LinearTarget& target : targets) {
      linear_groups(executor, thread, x, target,
                    split_work(target.weights->view().groups, thread, count));
    }
  });
}

void gated_ffn(const CpuExecutor& executor, const Activations& x, const PackedMatrix& gate,
               const PackedMatrix& up, Activation activation, float* gate_out, float* up_out,
               const Activations& out) {
  const auto columns = static_cast<size_t>(out.columns);
  const auto activate = activation_kernel(executor.kernels(), activation);
  executor.threads().parallel([&](int thread, int count) {
    // A thread's groups of gate and of up are the same columns, so it can combine them without
    // waiting for others.
    const WorkRange groups = split_work(gate.view().groups, thread, count);
    linear_groups(executor, thread, x, {&gate, gate_out, columns}, groups);
    linear_groups(executor, thread, x, {&up, up_out, columns}, groups);
    const int32_t begin = groups.begin * kGroupRows;
    const int32_t end = std::min(groups.end * kGroupRows, out.columns);
    for (int32_t row = 0; row < x.rows && begin < end; ++row) {
      const size_t at = row * columns + begin;
      activate(gate_out + at, up_out + at, end - begin, out.values + at);
    }
  });
  quantize(executor, out);
}

void gate(const CpuExecutor& executor, const float* gate, const float* up, Activation activation,
          const Activations& out) {
  const auto activate = activation_kernel(executor.kernels(), activation);
  executor.threads().parallel([&](int thread, int count) {
    const WorkRange rows = split_work(out.rows, thread, count);
    for (int32_t row = rows.begin; row < rows.end; ++row) {
      const size_t at = static_cast<size_t>(row) * out.columns;
      activate(gate + at, up + at, out.columns, out.values + at);
      quantize_one(executor.kernels(), out, row);
    }
  });
}

void add_rms_norm(const CpuExecutor& executor, const Residual& residual, float* x,
                  const float* weight, float epsilon, const Activations& out) {
  const cpu::Kernels& kernels = executor.kernels();
  executor.threads().parallel([&](int thread, int count) {
    const WorkRange rows = split_work(out.rows, thread, count);
    for (int32_t row = rows.begin; row < rows.end; ++row) {
      const size_t at = static_cast<size_t>(row) * out.columns;
      if (residual.delta != nullptr) {
        float* delta = residual.delta + at;
        if (residual.norm != nullptr)
          kernels.rms_norm(delta, residual.norm, out.columns, epsilon, delta);
        kernels.add(delta, out.columns, x + at);
      }
      if (weight != nullptr) {
        kernels.rms_norm(x + at, weight, out.columns, epsilon, out.values + at);
      } else {
        std::copy_n(x + at, out.columns, out.values + at);
      }
      quantize_one(kernels, out, row);
    }
  });
}

void quantize(const CpuExecutor& executor, const Activations& x) {
  if (x.blocks == nullptr) return;
  executor.threads().parallel([&](int thread, int count) {
    const WorkRange rows = split_work(x.rows, thread, count);
    for (int32_t row = rows.begin; row < rows.end; ++row) quantize_one(executor.kernels(), x, row);
  });
}

void add_bias(const CpuExecutor& executor, const float* bias, int32_t rows, int32_t columns,
              float* in_out) {
  executor.threads().parallel([&](int thread, int count) {
    const WorkRange range = split_work(rows, thread, count);
    for (int32_t row = range.begin; row < range.end; ++row)
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
  executor.threads().parallel([&](int thread, int threads) {
    const WorkRange rows = split_work(count, thread, threads);
    for (int32_t row = rows.begin; row < rows.end; ++row) {
      executor.kernels().add_scaled(products + static_cast<size_t>(row) * outputs, low_rank.scale,
                                    outputs, out + static_cast<size_t>(first + row) * stride_out);
    }
  });
}

void embed(const CpuExecutor& executor, const weights::Tensor& table, float scale,
           std::span<const int32_t> tokens, float* out) {
  const auto columns = static_cast<size_t>(table.columns());
  executor.threads().parallel([&](int thread, int count) {
    const WorkRange rows = split_work(static_cast<int32_t>(tokens.size()), thread, count);
    for (int32_t row = rows.begin; row < rows.end; ++row) {
      weights::dequantize_row(table.format, table.row(tokens[row]), {out + row * columns, columns});
      if (scale != 1.0F) {
        executor.kernels().scale(scale, static_cast<int32_t>(columns), out + row * columns);
      }
    }
  });
}

void rope_angles(const CpuExecutor& executor, std::span<const int32_t> positions, const Rope& rope,
                 float* cos_sin) {
  const auto pairs = rope.frequencies.size();
  const bool adjacent = rope.pairing == RopePairing::kAdjacent;
  executor.threads().parallel([&](int thread, int count) {
    const WorkRange rows = split_work(static_cast<int32_t>(positions.size()), thread, count);
    for (int32_t row = rows.begin; row < rows.end; ++row) {
      float* out = cos_sin + static_cast<size_t>(row) * pairs * 2;
      for (size_t i = 0; i < pairs; ++i) {
        const float angle = static_cast<float>(positions[row]) * rope.frequencies[i];
        const auto cosine = static_cast<float>(std::cos(static_cast<double>(angle)));
        const auto sine = static_cast<float>(std::sin(static_cast<double>(angle)));
        out[adjacent ? 2 * i : i] = cosine * rope.amplitude;
        out[adjacent ? 2 * i + 1 : pairs + i] = sine * rope.amplitude;
      }
    }
  });
}

}  // namespace tandem::ops
