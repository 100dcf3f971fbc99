// Takes a checkpoint's tensors by name and shape and packs them; remembers which were taken, so
// that a file with tensors that the architecture does not know (biases, experts, adapters) is
// refused instead of being run wrongly.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "ops/executor.h"
#include "ops/packed_matrix.h"
#include "weights/checkpoint.h"

namespace tandem::model {

class TensorLoader {
 public:
  // Both outlive the loader.
  TensorLoader(const weights::Checkpoint& checkpoint, const ops::CpuExecutor& executor)
      : checkpoint_(checkpoint), executor_(executor) {}

  bool has(std::string_view name) const { return checkpoint_.find_tensor(name) != nullptr; }
  // The raw tensor; `rows` outputs by `columns` inputs.
  Result<const weights::Tensor*> tensor(const std::string& name, int32_t rows, int32_t columns);
  Result<ops::PackedMatrix> matrix(const std::string& name, int32_t rows, int32_t columns);
  // A vector decoded to float32.
  Result<std::vector<float>> vector(const std::string& name, int32_t size);

  // Error when the file has tensors that nobody took.
  Status finish() const;
  size_t bytes() const { return bytes_; }  // of everything handed out so far, as packed or decoded

 private:
  const weights::Checkpoint& checkpoint_;
  const ops::CpuExecutor& executor_;
  std::set<std::string, std::less<>> taken_;
  size_t bytes_ = 0;
};

}  // namespace tandem::model
