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
               const PackedMatrix& up, float* gate_out, float* up_out, const Activations& out) {
  const auto columns = static_cast<size_t>(out.columns);
  const cpu::Kernels& kernels = executor.kernels();
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
      kernels.silu_mul(gate_out + at, up_out + at, end - begin, out.values + at);
    }
  });
  quantize(executor, out);
}

void add_rms_norm(const CpuExecutor& executor, const float* delta, float* x, const float* weight,
                  float epsilon, const Activations& out) {
  const cpu::Kernels& kernels = executor.kernels();
  executor.threads().parallel([&](int thread, int count) {
    const WorkRange rows = split_work(out.rows, thread, count);
    for (int32_t row = rows.begin; row < rows.end; ++row) {
      const size_t at = static_cast<size_t>(row) * out.columns;
      if (delta != nullptr) kernels.add(delta + at, out.columns, x + at);
      kernels.rms_norm(x + at, weight, out.columns, epsilon, out.values + at);
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

void embed(const CpuExecutor& executor, const weights::Tensor& table,
           std::span<const int32_t> tokens, float* out) {
  const auto columns = static_cast<size_t>(table.columns());
  executor.threads().parallel([&](int thread, int count) {
    const WorkRange rows = split_work(static_cast<int32_t>(tokens.size()), thread, count);
    for (int32_t row = rows.begin; row < rows.end; ++row) {
      weights::dequantize_row(table.format, table.row(tokens[row]), {out + row * columns, columns});
    }
  });
}

void rope_angles(const CpuExecutor& executor, std::span<const int32_t> positions,
                 std::span<const float> frequencies, float* cos_sin) {
  executor.threads().parallel([&](int thread, int count) {
    const WorkRange rows = split_work(static_cast<int32_t>(positions.size()), thread, count);
    for (int32_t row = rows.begin; row < rows.end; ++row) {
      float* out = cos_sin + static_cast<size_t>(row) * frequencies.size() * 2;
      for (const float frequency : frequencies) {
        const float angle = static_cast<float>(positions[row]) * frequency;
        *out++ = static_cast<float>(std::cos(static_cast<double>(angle)));
        *out++ = static_cast<float>(std::sin(static_cast<double>(angle)));
      }
    }
  });
}

}  // namespace tandem::ops
