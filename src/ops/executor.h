// CpuExecutor: what an operator needs besides its operands: the chosen kernels, the threads, and
// each thread's scratch. One per model; used by one driving thread at a time.
#pragma once

#include <cstddef>

#include "base/result.h"
#include "device/compute_threads.h"
#include "ops/cpu/kernels.h"
#include "ops/packed_matrix.h"

namespace tandem::ops {

class CpuExecutor {
 public:
  // `kernels` outlives the executor. `max_head_dim` sizes attention's scratch.
  static Result<CpuExecutor> create(const cpu::Kernels& kernels, int threads, int32_t max_head_dim);

  const cpu::Kernels& kernels() const { return *kernels_; }
  device::ComputeThreads& threads() const { return *threads_; }
  float* scratch(int thread) const {
    return reinterpret_cast<float*>(scratch_.get() + static_cast<size_t>(thread) * scratch_stride_);
  }
  // Of kProductFloats, beside scratch().
  float* product_scratch(int thread) const {
    return scratch(thread) + scratch_stride_ / sizeof(float) - kProductFloats;
  }
  static constexpr size_t kProductFloats = size_t{256} * 32 * 3;
  size_t scratch_bytes() const { return scratch_stride_ * static_cast<size_t>(threads_->count()); }

 private:
  CpuExecutor() = default;
  const cpu::Kernels* kernels_ = nullptr;
  std::unique_ptr<device::ComputeThreads> threads_;
  AlignedBytes scratch_;
  size_t scratch_stride_ = 0;
};

}  // namespace tandem::ops
