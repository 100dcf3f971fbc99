// Takes a checkpoint's tensors by name and shape and packs them; remembers which were taken, so
// that a file with tensors that the architecture does not know (biases, experts, adapters) is
// refused instead of being run wrongly.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "model/model.h"
#include "ops/executor.h"
#include "ops/packed_matrix.h"
#include "weights/checkpoint.h"

namespace tandem::model {

// Which forms of their inputs the packed matrices multiply with.
struct InputForms {
  bool f32 = false;
  bool int8 = false;
  bool bf16 = false;

  InputForms operator|(const InputForms& other) const {
    return {f32 || other.f32, int8 || other.int8, bf16 || other.bf16};
  }
};

// What a matrix is multiplied with. With Numerics::kBf16 one for few rows keeps its format, of
// which less is to be read.
enum class RowsOfX : uint8_t { kMany, kFew };

class TensorLoader {
 public:
  // All three outlive the loader; `arena` also the matrices, whose memory it is.
  TensorLoader(const weights::Checkpoint& checkpoint, const ops::CpuExecutor& executor,
               ops::WeightArena& arena, Numerics numerics)
      : checkpoint_(checkpoint), executor_(executor), arena_(arena), numerics_(numerics) {}

  // The raw tensor; `rows` outputs by `columns` inputs.
  Result<const weights::Tensor*> tensor(const std::string& name, int32_t rows, int32_t columns);
  // Rows [begin, begin + rows) of a tensor of `total` rows, packed.
  Result<ops::PackedMatrix> matrix_rows(const std::string& name, int32_t total, int32_t columns,
                                        int32_t begin, int32_t rows,
                                        RowsOfX rows_of_x = RowsOfX::kMany);
  // A vector decoded to float32.
  Result<std::vector<float>> vector(const std::string& name, int32_t size);

  // Counts a tensor as taken.
  void leave_out(const std::string& name) { taken_.insert(name); }
  // Error when the checkpoint has tensors that nobody took, other than those of `other_prefixes`.
  Status finish(std::span<const std::string> other_prefixes) const;
  // Of all matrices handed out since the last call.
  InputForms take_forms() { return std::exchange(forms_, {}); }
  size_t bytes() const { return bytes_; }  // of everything handed out so far, as packed or decoded

 private:
  const weights::Checkpoint& checkpoint_;
  const ops::CpuExecutor& executor_;
  ops::WeightArena& arena_;
  Numerics numerics_;
  InputForms forms_;
  std::set<std::string, std::less<>> taken_;
  size_t bytes_ = 0;
};

}  // namespace tandem::model
