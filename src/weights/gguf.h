// GGUF version 3: typed metadata and a directory of tensors, read in place from bytes that may be
// hostile.
//
// Parsing walks the header once, checks every length against what is left of the file, and copies
// only names. After parse() succeeds, every span it hands out lies inside the given bytes.
// Immutable after construction, so safe to read from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "weights/mapped_file.h"
#include "weights/tensor.h"

namespace tandem::weights {

struct GgufLimits {  // far above any published model, far below what could hurt
  uint64_t metadata_entries = 65536;
  uint64_t tensors = 1U << 20;
  uint64_t key_bytes = 65535;
  uint64_t tensor_name_bytes = 1024;
  uint64_t alignment = 1U << 20;
};

enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// A metadata value, still encoded. For arrays `bytes` are the elements and `element` their type;
// nested arrays are refused by parse().
struct GgufValue {
  GgufType type = GgufType::kU8;
  GgufType element = GgufType::kU8;
  uint64_t count = 1;
  std::span<const std::byte> bytes;
};

class GgufFile {
 public:
  // Maps and parses. All errors have code "invalid_model" or "model_not_found" and name what is
  // wrong.
  static Result<GgufFile> open(const std::string& path);
  // `bytes` must outlive the result.
  static Result<GgufFile> parse(std::span<const std::byte> bytes, const GgufLimits& limits = {});

  const GgufValue* find(std::string_view key) const;
  const Tensor* find_tensor(std::string_view name) const;
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }

  // Typed access. An absent key, a value of another kind, or one out of range is an error that
  // names the key. Integers accept every integer width; reals accept both float widths; strings
  // view the file's bytes.
  Result<std::string_view> string(std::string_view key) const;
  Result<int64_t> integer(std::string_view key) const;
  Result<double> real(std::string_view key) const;
  Result<bool> boolean(std::string_view key) const;
  Result<std::vector<std::string_view>> strings(std::string_view key) const;
  Result<std::vector<int64_t>> integers(std::string_view key) const;
  Result<std::vector<float>> reals(std::string_view key) const;

  // See MappedFile::release_resident(); nothing to do for parsed bytes.
  void release_resident() const {
    if (file_) file_->release_resident();
  }

  uint64_t file_bytes() const { return bytes_.size(); }
  // See MappedFile::identity(); of parsed bytes nothing is known.
  FileIdentity identity() const { return file_ ? file_->identity() : FileIdentity{}; }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  friend Result<GgufFile> open_mapped<GgufFile>(const std::string& path);
  GgufFile() = default;
  Result<const GgufValue*> require(std::string_view key) const;

  std::optional<MappedFile> file_;
  std::span<const std::byte> bytes_;
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::vector<Tensor> tensors_;
  std::map<std::string, size_t, std::less<>> tensor_index_;
};

}  // namespace tandem::weights
