// Writes small safetensors files in memory, for tests and generated models. Header-only so that the
// program does not carry it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_value.h"
#include "weights/format.h"

namespace tandem::weights {

class SafetensorsWriter {
 public:
  // `shape` in safetensors' order (outputs first). F32, F16 or BF16.
  void add(std::string_view name, Format format, const std::vector<int64_t>& shape,
           std::span<const float> values) {
    std::vector<std::byte> bytes(row_bytes(format, static_cast<int64_t>(values.size())));
    quantize_row(format, values, bytes);
    add_bytes(name, format_name(format), shape, bytes);
  }
  void add_bytes(std::string_view name, std::string_view dtype, const std::vector<int64_t>& shape,
                 std::span<const std::byte> bytes) {
    JsonValue dimensions = JsonValue::array();
    for (const int64_t dimension : shape) dimensions.push_back(JsonValue::integer(dimension));
    JsonValue offsets = JsonValue::array();
    offsets.push_back(JsonValue::unsigned_integer(data_.size()));
    data_.insert(data_.end(), bytes.begin(), bytes.end());
    offsets.push_back(JsonValue::unsigned_integer(data_.size()));
    JsonValue entry = JsonValue::object();
    entry.set("dtype", JsonValue::string(std::string(dtype)));
    entry.set("shape", std::move(dimensions));
    entry.set("data_offsets", std::move(offsets));
    header_.set(name, std::move(entry));
  }

  JsonValue& header() { return header_; }

  std::vector<std::byte> finish() const {
    std::string header = header_.dump();
    header.append((8 - header.size() % 8) % 8, ' ');
    const uint64_t size = header.size();
    const auto size_bytes = std::as_bytes(std::span(&size, 1));
    std::vector<std::byte> out(size_bytes.begin(), size_bytes.end());
    const auto header_bytes = std::as_bytes(std::span(header));
    out.insert(out.end(), header_bytes.begin(), header_bytes.end());
    out.insert(out.end(), data_.begin(), data_.end());
    return out;
  }

 private:
  JsonValue header_ = JsonValue::object();
  std::vector<std::byte> data_;
};

}  // namespace tandem::weights
