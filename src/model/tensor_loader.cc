#include "model/tensor_loader.h"

#include <algorithm>

#include "model/config_reader.h"

namespace tandem::model {

Result<const weights::Tensor*> TensorLoader::tensor(const std::string& name, int32_t rows,
                                                    int32_t columns) {
  const weights::Tensor* found = checkpoint_.find_tensor(name);
  if (found == nullptr) return invalid_model("the model has no tensor " + name);
  if (found->columns() != columns || found->rows() != rows) {
    return invalid_model("tensor " + name + " is " + std::to_string(found->rows()) + " x " +
                         std::to_string(found->columns()) + "; the configuration asks for " +
                         std::to_string(rows) + " x " + std::to_string(columns));
  }
  taken_.insert(name);
  return found;
}

Result<ops::PackedMatrix> TensorLoader::matrix_rows(const std::string& name, int32_t total,
                                                    int32_t columns, int32_t begin, int32_t rows,
                                                    RowsOfX rows_of_x) {
  TANDEM_TRY(found, tensor(name, total, columns));
  const size_t row_bytes = weights::row_bytes(found->format, columns);
  const bool fast = numerics_ != Numerics::kExact;
  ops::Pairs pairs = ops::Pairs::kNone;
  if (fast && executor_.kernels().linear_bf16 != nullptr) {
    pairs = numerics_ == Numerics::kBf16 && rows_of_x == RowsOfX::kMany ? ops::Pairs::kAll
                                                                        : ops::Pairs::kF16AndBf16;
  }
  auto packed = ops::PackedMatrix::pack(found->format, rows, columns,
                                        found->bytes.subspan(static_cast<size_t>(begin) * row_bytes,
                                                             static_cast<size_t>(rows) * row_bytes),
                                        executor_.threads(), &arena_, pairs);
  if (!packed) return packed;
  const bool bf16 = packed->view().pairs;
  const bool int8 = fast && !bf16 && ops::has_int8_kernel(found->format);
  forms_.bf16 = forms_.bf16 || bf16;
  forms_.int8 = forms_.int8 || int8;
  forms_.f32 = forms_.f32 || (!bf16 && !(int8 && columns % 32 == 0));
  bytes_ += packed->bytes();
  return packed;
}

Result<std::vector<float>> TensorLoader::vector(const std::string& name, int32_t size) {
  TANDEM_TRY(found, tensor(name, 1, size));
  std::vector<float> values(size);
  weights::dequantize_row(found->format, found->bytes, values);
  bytes_ += values.size() * sizeof(float);
  return values;
}

Status TensorLoader::finish(std::span<const std::string> other_prefixes) const {
  for (const weights::Tensor& found : checkpoint_.tensors()) {
    const auto starts = [&](const std::string& prefix) { return found.name.starts_with(prefix); };
    if (taken_.contains(found.name) || std::ranges::any_of(other_prefixes, starts) ||
        found.name.ends_with(".rotary_emb.inv_freq")) {
      continue;
    }
    return unsupported_model("the model has a tensor that its architecture does not use here: " +
                             found.name.substr(0, 128));
  }
  return {};
}

}  // namespace tandem::model
