#include "model/tensor_loader.h"

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

Result<ops::PackedMatrix> TensorLoader::matrix(const std::string& name, int32_t rows,
                                               int32_t columns) {
  TANDEM_TRY(found, tensor(name, rows, columns));
  auto packed =
      ops::PackedMatrix::pack(found->format, rows, columns, found->bytes, executor_.threads());
  if (packed) bytes_ += packed->bytes();
  return packed;
}

Result<std::vector<float>> TensorLoader::vector(const std::string& name, int32_t size) {
  TANDEM_TRY(found, tensor(name, 1, size));
  std::vector<float> values(size);
  weights::dequantize_row(found->format, found->bytes, values);
  bytes_ += values.size() * sizeof(float);
  return values;
}

Status TensorLoader::finish() const {
  for (const weights::Tensor& found : checkpoint_.tensors()) {
    if (!taken_.contains(found.name)) {
      return unsupported_model("the model has a tensor that its architecture does not use here: " +
                               found.name.substr(0, 128));
    }
  }
  return {};
}

}  // namespace tandem::model
