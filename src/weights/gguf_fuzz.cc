// Any bytes may be a model file. Walks everything a parsed file offers.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "weights/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem::weights;
  const auto file = GgufFile::parse(std::as_bytes(std::span(data, size)));
  if (!file) return 0;
  for (const auto& [key, value] : file->metadata()) {
    (void)file->string(key);
    (void)file->integer(key);
    (void)file->real(key);
    (void)file->boolean(key);
    (void)file->strings(key);
    (void)file->integers(key);
    (void)file->reals(key);
  }
  for (const Tensor& tensor : file->tensors()) {
    std::vector<float> row(static_cast<size_t>(tensor.columns()));
    dequantize_row(tensor.format, tensor.row(0), row);
    dequantize_row(tensor.format, tensor.row(tensor.rows() - 1), row);
    if (file->find_tensor(tensor.name) != &tensor) std::abort();
  }
  return 0;
}
