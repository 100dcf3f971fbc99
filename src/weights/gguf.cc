#include "weights/gguf.h"

#include <bit>
#include <cstring>
#include <limits>
#include <utility>

namespace tandem::weights {
namespace {

tl::unexpected<Error> invalid(std::string message) {
  return make_error(400, "invalid_model", "GGUF: " + std::move(message));
}

std::string quoted(std::string_view name) {
  std::string text = "\"";
  for (const char c : name.substr(0, 128)) text.push_back(c >= ' ' && c < 127 ? c : '?');
  return text + "\"";
}

// Reads forward only, never past the end.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  size_t position() const { return position_; }
  size_t left() const { return bytes_.size() - position_; }

  template <typename T>
  bool read(T& value) {
    if (left() < sizeof(T)) return false;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return true;
  }

  bool take(uint64_t count, std::span<const std::byte>& out) {
    if (count > left()) return false;
    out = bytes_.subspan(position_, static_cast<size_t>(count));
    position_ += static_cast<size_t>(count);
    return true;
  }

  bool read_string(uint64_t limit, std::string_view& out) {
    uint64_t size = 0;
    std::span<const std::byte> text;
    if (!read(size) || size > limit || !take(size, text)) return false;
    out = {reinterpret_cast<const char*>(text.data()), text.size()};
    return true;
  }

 private:
  std::span<const std::byte> bytes_;
  size_t position_ = 0;
};

size_t scalar_bytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
      return 8;
    default:
      return 0;  // strings, arrays and unknown types
  }
}

bool read_array(Cursor& cursor, GgufValue& value) {
  uint32_t element = 0;
  if (!cursor.read(element) || !cursor.read(value.count)) return false;
  value.element = static_cast<GgufType>(element);
  if (value.element == GgufType::kString) {
    Cursor walk = cursor;
    // Each string takes at least its eight length bytes, so the loop is bounded by the file's size.
    for (uint64_t i = 0; i < value.count; ++i) {
      std::string_view text;
      if (!walk.read_string(std::numeric_limits<uint64_t>::max(), text)) return false;
    }
    return cursor.take(walk.position() - cursor.position(), value.bytes);
  }
  const size_t size = scalar_bytes(value.element);
  if (size == 0 || value.count > cursor.left() / size) return false;
  return cursor.take(value.count * size, value.bytes);
}

bool read_value(Cursor& cursor, GgufValue& value) {
  uint32_t type = 0;
  if (!cursor.read(type)) return false;
  value.type = static_cast<GgufType>(type);
  if (value.type == GgufType::kArray) return read_array(cursor, value);
  if (value.type == GgufType::kString) {
    std::string_view text;
    if (!cursor.read_string(std::numeric_limits<uint64_t>::max(), text)) return false;
    value.bytes = std::as_bytes(std::span(text));
    return true;
  }
  const size_t size = scalar_bytes(value.type);
  return size != 0 && cursor.take(size, value.bytes);
}

template <typename T>
T load(std::span<const std::byte> bytes, size_t index = 0) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

std::optional<int64_t> load_integer(GgufType type, std::span<const std::byte> bytes, size_t index) {
  switch (type) {
    case GgufType::kU8:
      return load<uint8_t>(bytes, index);
    case GgufType::kI8:
      return load<int8_t>(bytes, index);
    case GgufType::kU16:
      return load<uint16_t>(bytes, index);
    case GgufType::kI16:
      return load<int16_t>(bytes, index);
    case GgufType::kU32:
      return load<uint32_t>(bytes, index);
    case GgufType::kI32:
      return load<int32_t>(bytes, index);
    case GgufType::kI64:
      return load<int64_t>(bytes, index);
    case GgufType::kU64: {
      const auto value = load<uint64_t>(bytes, index);
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> load_real(GgufType type, std::span<const std::byte> bytes, size_t index) {
  if (type == GgufType::kF32) return load<float>(bytes, index);
  if (type == GgufType::kF64) return load<double>(bytes, index);
  return std::nullopt;
}

// A tensor as the directory lists it, before its data range is known to be inside the file.
struct Entry {
  Tensor tensor;
  uint64_t offset = 0;
  uint64_t size = 0;
};

Status read_entry(Cursor& cursor, const GgufLimits& limits, Entry& entry) {
  std::string_view name;
  if (!cursor.read_string(limits.tensor_name_bytes, name))
    return invalid("a tensor's name is cut short or too long");
  entry.tensor.name = name;
  uint32_t dimensions = 0;
  if (!cursor.read(dimensions)) return invalid("the tensor directory is cut short");
  if (dimensions < 1 || dimensions > 4)
    return invalid("tensor " + quoted(name) + " must have 1 to 4 dimensions");
  entry.tensor.dimension_count = static_cast<int32_t>(dimensions);
  uint64_t values = 1;
  for (uint32_t i = 0; i < dimensions; ++i) {
    uint64_t dimension = 0;
    if (!cursor.read(dimension)) return invalid("the tensor directory is cut short");
    if (dimension == 0 || dimension > (1ULL << 40) || values > (1ULL << 48) / dimension) {
      return invalid("tensor " + quoted(name) + " has a dimension that is zero or too large");
    }
    values *= dimension;
    entry.tensor.dimensions[i] = static_cast<int64_t>(dimension);
  }
  uint32_t type = 0;
  if (!cursor.read(type) || !cursor.read(entry.offset))
    return invalid("the tensor directory is cut short");
  const std::optional<Format> format = format_from_gguf(type);
  if (!format) {
    return invalid("tensor " + quoted(name) + " has type id " + std::to_string(type) +
                   "; supported are " + format_names());
  }
  entry.tensor.format = *format;
  if (entry.tensor.columns() % block_values(*format) != 0) {
    return invalid("tensor " + quoted(name) + " has rows that are not whole blocks of " +
                   std::string(format_name(*format)));
  }
  entry.size =
      row_bytes(*format, entry.tensor.columns()) * static_cast<uint64_t>(entry.tensor.rows());
  return {};
}

}  // namespace

Result<GgufFile> GgufFile::open(const std::string& path) { return open_mapped<GgufFile>(path); }

Result<GgufFile> GgufFile::parse(std::span<const std::byte> bytes, const GgufLimits& limits) {
  static_assert(std::endian::native == std::endian::little);
  Cursor cursor(bytes);
  GgufFile result;
  result.bytes_ = bytes;
  uint32_t magic = 0;
  uint32_t version = 0;
  uint64_t tensor_count = 0;
  uint64_t metadata_count = 0;
  if (!cursor.read(magic) || magic != 0x46554747U)
    return invalid("the file does not start with GGUF");
  if (!cursor.read(version) || version != 3) return invalid("only version 3 is supported");
  if (!cursor.read(tensor_count) || !cursor.read(metadata_count))
    return invalid("the header is cut short");
  if (tensor_count > limits.tensors || metadata_count > limits.metadata_entries) {
    return invalid("the header counts more tensors or metadata entries than any model has");
  }

  for (uint64_t i = 0; i < metadata_count; ++i) {
    std::string_view key;
    if (!cursor.read_string(limits.key_bytes, key))
      return invalid("a metadata key is cut short or too long");
    GgufValue value;
    if (!read_value(cursor, value)) {
      return invalid("metadata " + quoted(key) + " is cut short or has an unsupported type");
    }
    if (!result.metadata_.emplace(key, value).second)
      return invalid("metadata " + quoted(key) + " appears twice");
  }

  uint64_t alignment = 32;
  if (result.find("general.alignment") != nullptr) {
    TANDEM_TRY(value, result.integer("general.alignment"));
    if (value < 8 || value % 8 != 0 || static_cast<uint64_t>(value) > limits.alignment) {
      return invalid("general.alignment must be a multiple of 8 of sensible size");
    }
    alignment = static_cast<uint64_t>(value);
  }

  std::vector<Entry> entries;
  for (uint64_t i = 0; i < tensor_count; ++i) {
    Entry entry;
    TANDEM_CHECK(read_entry(cursor, limits, entry));
    entries.push_back(std::move(entry));
  }

  const uint64_t header_end = cursor.position();
  const uint64_t data_start = (header_end + alignment - 1) / alignment * alignment;
  if (!entries.empty() && data_start > bytes.size()) return invalid("the tensor data is missing");
  result.tensors_.reserve(entries.size());
  for (Entry& entry : entries) {
    const uint64_t available = bytes.size() - data_start;
    if (entry.offset % alignment != 0)
      return invalid("tensor " + quoted(entry.tensor.name) + " is misaligned");
    if (entry.offset > available || entry.size > available - entry.offset) {
      return invalid("tensor " + quoted(entry.tensor.name) +
                     " reaches past the end of the file; is it complete?");
    }
    entry.tensor.bytes = bytes.subspan(data_start + entry.offset, entry.size);
    if (!result.tensor_index_.emplace(entry.tensor.name, result.tensors_.size()).second) {
      return invalid("tensor " + quoted(entry.tensor.name) + " appears twice");
    }
    result.tensors_.push_back(std::move(entry.tensor));
  }
  return result;
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto it = metadata_.find(key);
  return it == metadata_.end() ? nullptr : &it->second;
}

const Tensor* GgufFile::find_tensor(std::string_view name) const {
  const auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

Result<const GgufValue*> GgufFile::require(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return invalid("metadata " + quoted(key) + " is missing");
  return value;
}

Result<std::string_view> GgufFile::string(std::string_view key) const {
  TANDEM_TRY(value, require(key));
  if (value->type != GgufType::kString)
    return invalid("metadata " + quoted(key) + " must be a string");
  return std::string_view(reinterpret_cast<const char*>(value->bytes.data()), value->bytes.size());
}

Result<int64_t> GgufFile::integer(std::string_view key) const {
  TANDEM_TRY(value, require(key));
  const std::optional<int64_t> number = load_integer(value->type, value->bytes, 0);
  if (!number) return invalid("metadata " + quoted(key) + " must be an integer");
  return *number;
}

Result<double> GgufFile::real(std::string_view key) const {
  TANDEM_TRY(value, require(key));
  const std::optional<double> number = load_real(value->type, value->bytes, 0);
  if (!number) return invalid("metadata " + quoted(key) + " must be a floating-point number");
  return *number;
}

Result<bool> GgufFile::boolean(std::string_view key) const {
  TANDEM_TRY(value, require(key));
  if (value->type != GgufType::kBool)
    return invalid("metadata " + quoted(key) + " must be a boolean");
  return load<uint8_t>(value->bytes) != 0;
}

Result<std::vector<std::string_view>> GgufFile::strings(std::string_view key) const {
  TANDEM_TRY(value, require(key));
  if (value->type != GgufType::kArray || value->element != GgufType::kString) {
    return invalid("metadata " + quoted(key) + " must be an array of strings");
  }
  std::vector<std::string_view> result;
  result.reserve(value->count);
  Cursor cursor(value->bytes);
  for (uint64_t i = 0; i < value->count; ++i) {
    std::string_view text;
    if (!cursor.read_string(std::numeric_limits<uint64_t>::max(), text)) {
      return invalid("metadata " + quoted(key) + " is cut short");
    }
    result.push_back(text);
  }
  return result;
}

Result<std::vector<int64_t>> GgufFile::integers(std::string_view key) const {
  TANDEM_TRY(value, require(key));
  std::vector<int64_t> result;
  if (value->type == GgufType::kArray) result.reserve(value->count);
  for (uint64_t i = 0; value->type == GgufType::kArray && i < value->count; ++i) {
    const std::optional<int64_t> number = load_integer(value->element, value->bytes, i);
    if (!number) return invalid("metadata " + quoted(key) + " must be an array of integers");
    result.push_back(*number);
  }
  if (value->type != GgufType::kArray)
    return invalid("metadata " + quoted(key) + " must be an array of integers");
  return result;
}

Result<std::vector<float>> GgufFile::reals(std::string_view key) const {
  TANDEM_TRY(value, require(key));
  if (value->type != GgufType::kArray || scalar_bytes(value->element) == 0) {
    return invalid("metadata " + quoted(key) + " must be an array of numbers");
  }
  std::vector<float> result;
  result.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const std::optional<double> number = load_real(value->element, value->bytes, i);
    if (!number)
      return invalid("metadata " + quoted(key) + " must be an array of floating-point numbers");
    result.push_back(static_cast<float>(*number));
  }
  return result;
}

}  // namespace tandem::weights
