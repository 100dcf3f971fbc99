// Writes small GGUF files in memory, for tests and generated models. Header-only so that the
// program does not carry it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weights/format.h"
#include "weights/gguf.h"

namespace tandem::weights {

class GgufWriter {
 public:
  void add_u32(std::string_view key, uint32_t value) { put_scalar(key, GgufType::kU32, value); }
  void add_i32(std::string_view key, int32_t value) { put_scalar(key, GgufType::kI32, value); }
  void add_u64(std::string_view key, uint64_t value) { put_scalar(key, GgufType::kU64, value); }
  void add_f32(std::string_view key, float value) { put_scalar(key, GgufType::kF32, value); }
  void add_bool(std::string_view key, bool value) {
    put_scalar(key, GgufType::kBool, static_cast<uint8_t>(value));
  }
  void add_string(std::string_view key, std::string_view value) {
    put_key(key, GgufType::kString);
    put_string(metadata_, value);
  }
  void add_strings(std::string_view key, std::span<const std::string> values) {
    put_array(key, GgufType::kString, values.size());
    for (const std::string& value : values) put_string(metadata_, value);
  }
  void add_bools(std::string_view key, std::span<const std::byte> values) {
    put_array(key, GgufType::kBool, values.size());
    for (const std::byte value : values) put(metadata_, value);
  }
  void add_i32s(std::string_view key, std::span<const int32_t> values) {
    put_array(key, GgufType::kI32, values.size());
    for (const int32_t value : values) put(metadata_, value);
  }
  void add_f32s(std::string_view key, std::span<const float> values) {
    put_array(key, GgufType::kF32, values.size());
    for (const float value : values) put(metadata_, value);
  }

  // `dimensions` in GGUF's order (inputs first); `bytes` already encoded in `format`.
  void add_tensor(std::string_view name, Format format, std::vector<int64_t> dimensions,
                  std::vector<std::byte> bytes) {
    tensors_.push_back({std::string(name), format, std::move(dimensions), std::move(bytes)});
  }
  // Encodes float32 values row by row.
  void add_matrix(std::string_view name, Format format, int64_t rows, int64_t columns,
                  std::span<const float> values) {
    const size_t size = row_bytes(format, columns);
    std::vector<std::byte> bytes(size * static_cast<size_t>(rows));
    for (int64_t row = 0; row < rows; ++row) {
      quantize_row(format,
                   values.subspan(static_cast<size_t>(row * columns), static_cast<size_t>(columns)),
                   std::span(bytes).subspan(static_cast<size_t>(row) * size, size));
    }
    add_tensor(name, format, {columns, rows}, std::move(bytes));
  }
  void add_vector(std::string_view name, std::span<const float> values) {
    std::vector<std::byte> bytes(values.size_bytes());
    std::memcpy(bytes.data(), values.data(), bytes.size());
    add_tensor(name, Format::kF32, {static_cast<int64_t>(values.size())}, std::move(bytes));
  }

  std::vector<std::byte> finish() const {
    std::vector<std::byte> out;
    put(out, uint32_t{0x46554747});
    put(out, uint32_t{3});
    put(out, static_cast<uint64_t>(tensors_.size()));
    put(out, metadata_count_);
    out.insert(out.end(), metadata_.begin(), metadata_.end());
    uint64_t offset = 0;
    for (const Item& tensor : tensors_) {
      put_string(out, tensor.name);
      put(out, static_cast<uint32_t>(tensor.dimensions.size()));
      for (const int64_t dimension : tensor.dimensions) put(out, dimension);
      put(out, static_cast<uint32_t>(tensor.format));
      put(out, offset);
      offset += round_up(tensor.bytes.size());
    }
    out.resize(round_up(out.size()));
    for (const Item& tensor : tensors_) {
      out.insert(out.end(), tensor.bytes.begin(), tensor.bytes.end());
      out.resize(round_up(out.size()));
    }
    return out;
  }

 private:
  struct Item {
    std::string name;
    Format format;
    std::vector<int64_t> dimensions;
    std::vector<std::byte> bytes;
  };

  static size_t round_up(size_t size) { return (size + 31) / 32 * 32; }
  template <typename T>
  static void put(std::vector<std::byte>& out, const T& value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    out.insert(out.end(), bytes.begin(), bytes.end());
  }
  static void put_string(std::vector<std::byte>& out, std::string_view text) {
    put(out, static_cast<uint64_t>(text.size()));
    const auto bytes = std::as_bytes(std::span(text));
    out.insert(out.end(), bytes.begin(), bytes.end());
  }
  void put_key(std::string_view key, GgufType type) {
    ++metadata_count_;
    put_string(metadata_, key);
    put(metadata_, static_cast<uint32_t>(type));
  }
  template <typename T>
  void put_scalar(std::string_view key, GgufType type, T value) {
    put_key(key, type);
    put(metadata_, value);
  }
  void put_array(std::string_view key, GgufType element, size_t count) {
    put_key(key, GgufType::kArray);
    put(metadata_, static_cast<uint32_t>(element));
    put(metadata_, static_cast<uint64_t>(count));
  }

  std::vector<std::byte> metadata_;
  uint64_t metadata_count_ = 0;
  std::vector<Item> tensors_;
};

}  // namespace tandem::weights
