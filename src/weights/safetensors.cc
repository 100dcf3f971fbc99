#include "weights/safetensors.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/json_value.h"

namespace tandem::weights {
namespace {

tl::unexpected<Error> invalid(std::string message) {
  return make_error(400, "invalid_model", "safetensors: " + std::move(message));
}

std::string quoted(std::string_view name) {
  return "\"" + sanitize_utf8(name.substr(0, 128)) + "\"";
}

struct Dtype {
  std::string_view name;
  uint64_t bits;
  std::optional<Format> format;  // empty: known, but not a format that this program computes with
};
constexpr Dtype kDtypes[] = {
    {"F32", 32, Format::kF32},    {"F16", 16, Format::kF16},    {"BF16", 16, Format::kBF16},
    {"BOOL", 8, std::nullopt},    {"U8", 8, std::nullopt},      {"I8", 8, std::nullopt},
    {"F8_E4M3", 8, std::nullopt}, {"F8_E5M2", 8, std::nullopt}, {"F8_E8M0", 8, std::nullopt},
    {"I16", 16, std::nullopt},    {"U16", 16, std::nullopt},    {"I32", 32, std::nullopt},
    {"U32", 32, std::nullopt},    {"I64", 64, std::nullopt},    {"U64", 64, std::nullopt},
    {"F64", 64, std::nullopt},    {"C64", 64, std::nullopt},    {"F4", 4, std::nullopt},
    {"F6_E2M3", 6, std::nullopt}, {"F6_E3M2", 6, std::nullopt},
};

const Dtype* find_dtype(std::string_view name) {
  const auto* it = std::ranges::find(kDtypes, name, &Dtype::name);
  return it == std::end(kDtypes) ? nullptr : it;
}

// A tensor as the header lists it; the range is not yet known to be inside the data.
struct Entry {
  Tensor tensor;
  const Dtype* dtype = nullptr;
  uint64_t begin = 0;
  uint64_t end = 0;
};

std::optional<uint64_t> as_size(const JsonValue& value) {
  const std::optional<int64_t> number = value.as_integer();
  if (!number || *number < 0) return std::nullopt;
  return static_cast<uint64_t>(*number);
}

Status read_shape(const JsonValue& shape, Entry& entry, uint64_t& values) {
  const std::string name = quoted(entry.tensor.name);
  if (shape.items().size() > 4) {
    return make_error(400, "unsupported_model",
                      "safetensors: tensor " + name + " has more than four dimensions");
  }
  const size_t count = shape.items().size();
  values = 1;
  for (size_t i = 0; i < count; ++i) {
    const std::optional<uint64_t> dimension = as_size(shape.items()[i]);
    if (!dimension || *dimension == 0 || *dimension > (1ULL << 40) ||
        values > (1ULL << 48) / *dimension) {
      return invalid("tensor " + name + " has a dimension that is no number, zero or too large");
    }
    values *= *dimension;
    entry.tensor.dimensions[count - 1 - i] = static_cast<int64_t>(*dimension);
  }
  entry.tensor.dimension_count = std::max(1, static_cast<int32_t>(count));
  return {};
}

Status read_entry(const std::string& name, const JsonValue& value, Entry& entry) {
  entry.tensor.name = name;
  const JsonValue* dtype = value.find("dtype");
  const JsonValue* shape = value.find("shape");
  const JsonValue* offsets = value.find("data_offsets");
  if (dtype == nullptr || !dtype->is_string() || shape == nullptr || !shape->is_array() ||
      offsets == nullptr || !offsets->is_array() || offsets->items().size() != 2) {
    return invalid("tensor " + quoted(name) + " needs a dtype, a shape and two data_offsets");
  }
  entry.dtype = find_dtype(dtype->as_string());
  if (entry.dtype == nullptr) {
    return invalid("tensor " + quoted(name) + " has the unknown dtype " +
                   quoted(dtype->as_string()));
  }
  uint64_t values = 0;
  TANDEM_CHECK(read_shape(*shape, entry, values));
  const std::optional<uint64_t> begin = as_size(offsets->items()[0]);
  const std::optional<uint64_t> end = as_size(offsets->items()[1]);
  const uint64_t bits = values * entry.dtype->bits;  // at most 2^54
  if (!begin || !end || *end < *begin || bits % 8 != 0 || *end - *begin != bits / 8) {
    return invalid("the data_offsets of tensor " + quoted(name) +
                   " do not span its shape and dtype");
  }
  entry.begin = *begin;
  entry.end = *end;
  if (!entry.dtype->format) {
    return make_error(400, "unsupported_model",
                      "tensor " + quoted(name) + " is stored as " + std::string(entry.dtype->name) +
                          "; of safetensors, F32, F16 and BF16 are supported (for quantized "
                          "weights use a GGUF)");
  }
  entry.tensor.format = *entry.dtype->format;
  return {};
}

// Ranges in order must meet end to end and fill the data.
Status check_tiling(const std::vector<Entry>& entries, uint64_t data_bytes) {
  std::vector<const Entry*> sorted;
  sorted.reserve(entries.size());
  for (const Entry& entry : entries) sorted.push_back(&entry);
  std::ranges::sort(sorted, {}, [](const Entry* entry) { return entry->begin; });
  uint64_t at = 0;
  for (const Entry* entry : sorted) {
    if (entry->begin != at) {
      return invalid("tensor " + quoted(entry->tensor.name) +
                     (entry->begin < at ? " overlaps another" : " leaves a gap before it"));
    }
    at = entry->end;
  }
  if (at > data_bytes) return invalid("the data is cut short; is the file complete?");
  if (at < data_bytes) return invalid("there is data that belongs to no tensor");
  return {};
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  return open_mapped<SafetensorsFile>(path);
}

Result<SafetensorsFile> SafetensorsFile::parse(std::span<const std::byte> bytes) {
  uint64_t header_bytes = 0;
  if (bytes.size() < sizeof(header_bytes)) return invalid("the file is cut short");
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  if (header_bytes > kMaxHeaderBytes || header_bytes > bytes.size() - sizeof(header_bytes))
    return invalid("the header is longer than the file or than any model's");
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + sizeof(header_bytes),
                                header_bytes);
  if (!header.starts_with('{')) return invalid("the header does not start with {");
  const Result<JsonValue> parsed = parse_json(header);
  if (!parsed) return invalid("the header is not JSON: " + parsed.error().message);

  const std::span<const std::byte> data = bytes.subspan(sizeof(header_bytes) + header_bytes);
  std::vector<Entry> entries;
  for (const auto& [name, value] : parsed->members()) {
    if (name == "__metadata__") continue;
    Entry entry;
    TANDEM_CHECK(read_entry(name, value, entry));
    entries.push_back(std::move(entry));
  }
  TANDEM_CHECK(check_tiling(entries, data.size()));

  SafetensorsFile result;
  result.bytes_ = bytes;
  for (Entry& entry : entries) {
    entry.tensor.bytes = data.subspan(entry.begin, entry.end - entry.begin);
    if (reinterpret_cast<uintptr_t>(entry.tensor.bytes.data()) % (entry.dtype->bits / 8) != 0) {
      const size_t size = entry.tensor.bytes.size();
      auto& copy = result.copies_.emplace_back(std::make_unique<std::byte[]>(size));
      std::memcpy(copy.get(), entry.tensor.bytes.data(), size);
      entry.tensor.bytes = {copy.get(), size};
    }
    result.tensors_.push_back(std::move(entry.tensor));
  }
  return result;
}

}  // namespace tandem::weights
