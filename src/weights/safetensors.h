// Safetensors: a JSON directory of tensors, then their data. Read in place from bytes that may be
// hostile.
//
// parse() checks the header's length and every number in it before use: a tensor's range must equal
// its shape times its number format, and the ranges must tile the data with no gap and no overlap
// (so no byte is two tensors, and none is hidden). Tensors that are not aligned for their element
// type, as some writers leave them, are copied. Immutable after construction, so safe to read from
// any thread; movable, tensors stay valid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "weights/mapped_file.h"
#include "weights/tensor.h"

namespace tandem::weights {

class SafetensorsFile {
 public:
  static constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // as the reference reader

  // Maps and parses. Errors name the file and what is wrong: 400 "model_not_found",
  // "invalid_model", or "unsupported_model" for a tensor that is not F32, F16 or BF16 or has more
  // than four dimensions.
  static Result<SafetensorsFile> open(const std::string& path);
  // `bytes` must outlive the result.
  static Result<SafetensorsFile> parse(std::span<const std::byte> bytes);

  // In the order of the header. A tensor of shape [a, b] has b columns and a rows.
  const std::vector<Tensor>& tensors() const { return tensors_; }
  std::span<const std::byte> bytes() const { return bytes_; }

  // See MappedFile::release_resident(); nothing to do for parsed bytes.
  void release_resident() const {
    if (file_) file_->release_resident();
  }

 private:
  friend Result<SafetensorsFile> open_mapped<SafetensorsFile>(const std::string& path);
  SafetensorsFile() = default;

  std::optional<MappedFile> file_;
  std::span<const std::byte> bytes_;
  std::vector<std::unique_ptr<std::byte[]>> copies_;
  std::vector<Tensor> tensors_;
};

}  // namespace tandem::weights
