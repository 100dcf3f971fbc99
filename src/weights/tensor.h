// Tensor: a view of one tensor of a checkpoint, whatever kind of file it came from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "weights/format.h"

namespace tandem::weights {

struct Tensor {
  std::string name;
  Format format = Format::kF32;
  // GGUF's order: dimension 0 is the fastest (input features). Unused dimensions are 1.
  int64_t dimensions[4] = {1, 1, 1, 1};
  int32_t dimension_count = 1;
  std::span<const std::byte> bytes;  // rows() * row_bytes(format, columns()), owned by the file

  int64_t columns() const { return dimensions[0]; }
  int64_t rows() const { return dimensions[1] * dimensions[2] * dimensions[3]; }
  std::span<const std::byte> row(int64_t index) const {
    const size_t size = row_bytes(format, columns());
    return bytes.subspan(static_cast<size_t>(index) * size, size);
  }
};

}  // namespace tandem::weights
