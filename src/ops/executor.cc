#include "ops/executor.h"

#include <algorithm>

namespace tandem::ops {

Result<CpuExecutor> CpuExecutor::create(const cpu::Kernels& kernels, int threads,
                                        int32_t max_head_dim) {
  CpuExecutor executor;
  executor.kernels_ = &kernels;
  executor.threads_ = std::make_unique<device::ComputeThreads>(threads);
  const size_t floats =
      kProductFloats + std::max(cpu::kPanelFloats, cpu::attention_scratch_floats(max_head_dim));
  executor.scratch_stride_ = (floats * sizeof(float) + 4095) / 4096 * 4096;
  executor.scratch_ = allocate_aligned(executor.scratch_bytes());
  if (!executor.scratch_)
    return make_error(500, "out_of_memory", "no memory for the kernels' scratch space");
  return executor;
}

}  // namespace tandem::ops
