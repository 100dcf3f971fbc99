// Any bytes may be a model file. Walks everything a parsed file offers.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "weights/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem::weights;
  const auto file = SafetensorsFile::parse(std::as_bytes(std::span(data, size)));
  if (!file) return 0;
  size_t bytes = 0;
  for (const Tensor& tensor : file->tensors()) {
    bytes += tensor.bytes.size();
    std::vector<float> row(static_cast<size_t>(tensor.columns()));
    dequantize_row(tensor.format, tensor.row(0), row);
    dequantize_row(tensor.format, tensor.row(tensor.rows() - 1), row);
  }
  if (bytes > size) std::abort();  // two tensors share bytes
  return 0;
}
