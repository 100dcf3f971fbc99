#include "weights/checkpoint.h"

#include <chrono>
#include <filesystem>
#include <utility>

#include "weights/digest_cache.h"

namespace tandem::weights {
namespace {

tl::unexpected<Error> invalid(std::string message) {
  return make_error(400, "invalid_model", std::move(message));
}

// NAME-00002-of-00003.gguf as its three parts.
struct SplitName {
  std::string stem;  // path up to and without "-00002-of-00003"
  int32_t number = 0;
  int32_t count = 0;

  std::string part(int32_t index) const {  // from 1
    const auto digits = [](int32_t value) {
      const std::string text = std::to_string(value);
      return std::string(5 - text.size(), '0') + text;
    };
    return stem + "-" + digits(index) + "-of-" + digits(count) + ".gguf";
  }
};

bool read_five_digits(std::string_view text, int32_t& value) {
  value = 0;
  for (const char digit : text.substr(0, 5)) {
    if (digit < '0' || digit > '9') return false;
    value = value * 10 + (digit - '0');
  }
  return value > 0;
}

std::optional<SplitName> split_name(std::string_view path) {
  constexpr std::string_view kPattern = "-00000-of-00000.gguf";
  if (path.size() <= kPattern.size()) return std::nullopt;
  const std::string_view tail = path.substr(path.size() - kPattern.size());
  SplitName name;
  name.stem = path.substr(0, path.size() - kPattern.size());
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || tail.substr(15) != ".gguf" ||
      !read_five_digits(tail.substr(1), name.number) ||
      !read_five_digits(tail.substr(10), name.count) || name.number > name.count) {
    return std::nullopt;
  }
  return name;
}

// Number of parts that a file says its model has; 1 when it does not say.
Result<int64_t> split_count(const GgufFile& file) {
  if (file.find("split.count") == nullptr) return 1;
  TANDEM_TRY(count, file.integer("split.count"));
  if (count < 0 || count > 99999) return invalid("GGUF: split.count is out of range");
  return count < 1 ? 1 : count;
}

Result<std::vector<GgufFile>> open_parts(const std::string& path, int64_t count) {
  const std::optional<SplitName> name = split_name(path);
  if (!name || name->count != count) {
    return invalid(path + " is one of " + std::to_string(count) +
                   " parts of a model; keep the parts' own names (NAME-00001-of-0000N.gguf)");
  }
  std::vector<GgufFile> parts;
  for (int32_t number = 1; number <= name->count; ++number) {
    TANDEM_TRY(opened, GgufFile::open(name->part(number)));
    parts.push_back(std::move(opened));
    TANDEM_TRY(part_count, split_count(parts.back()));
    TANDEM_TRY(part_number, parts.back().integer("split.no"));
    if (part_count != count || part_number != number - 1) {
      return invalid(name->part(number) + " says that it is part " +
                     std::to_string(part_number + 1) + " of " + std::to_string(part_count));
    }
  }
  return parts;
}

// Below this size a digest takes less than finding it in the cache may.
constexpr uint64_t kRemembered = uint64_t{16} << 20;

numerics::Digest digest_of(const GgufFile& file) {
  const DigestCache cache(file.file_bytes() < kRemembered ? "" : DigestCache::default_folder());
  if (const auto known = cache.find(file.identity())) return *known;
  // Before reading: a file that changes meanwhile must not pass for one that had been settled.
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const numerics::Digest digest = numerics::sha256(file.bytes());
  cache.store(file.identity(), digest,
              std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
  return digest;
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::string& path) {
  const std::filesystem::path file(path);
  std::error_code unused;  // what cannot be looked at cannot be opened either, and that says why
  if (std::filesystem::is_directory(file, unused)) return open_directory(path, "");
  if (file.extension() == ".safetensors") {
    const std::string directory = file.parent_path().empty() ? "." : file.parent_path().string();
    return open_directory(directory, file.filename().string());
  }
  return open_gguf(path);
}

Result<Checkpoint> Checkpoint::open_gguf(const std::string& path) {
  Checkpoint result;
  TANDEM_TRY(file, GgufFile::open(path));
  TANDEM_TRY(count, split_count(file));
  if (count > 1) {
    TANDEM_TRY(parts, open_parts(path, count));
    result.parts_ = std::move(parts);
  } else {
    result.parts_.push_back(std::move(file));
  }
  for (const GgufFile& part : result.parts_) TANDEM_CHECK(result.add_tensors(part.tensors()));
  const GgufFile& first = result.parts_.front();
  if (first.find("split.tensors.count") != nullptr) {
    TANDEM_TRY(tensors, first.integer("split.tensors.count"));
    if (static_cast<uint64_t>(tensors) != result.tensors_.size()) {
      return invalid("GGUF: the parts hold " + std::to_string(result.tensors_.size()) +
                     " tensors; split.tensors.count says " + std::to_string(tensors));
    }
  }
  return result;
}

Status Checkpoint::add_tensors(const std::vector<Tensor>& tensors) {
  for (const Tensor& tensor : tensors) {
    if (!tensor_index_.emplace(tensor.name, tensors_.size()).second) {
      return invalid("tensor " + tensor.name.substr(0, 128) + " is in two of the model's files");
    }
    tensors_.push_back(tensor);
  }
  return {};
}

const JsonValue* Checkpoint::json(std::string_view file_name) const {
  const auto it = documents_.find(file_name);
  return it == documents_.end() || !it->second.json ? nullptr : &*it->second.json;
}

std::optional<std::string> Checkpoint::text(std::string_view file_name) const {
  const auto it = documents_.find(file_name);
  if (it == documents_.end()) return std::nullopt;
  const std::span<const std::byte> bytes = it->second.file.bytes();
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::vector<std::string> Checkpoint::documents() const {
  std::vector<std::string> names;
  names.reserve(documents_.size());
  for (const auto& [name, document] : documents_) names.push_back(name);
  return names;
}

const Tensor* Checkpoint::find_tensor(std::string_view name) const {
  const auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

numerics::Digest Checkpoint::digest() const {
  if (parts_.size() == 1) return digest_of(parts_.front());
  numerics::Sha256 sha;
  const auto add = [&](std::string_view name, std::span<const std::byte> bytes) {
    const uint64_t sizes[] = {name.size(), bytes.size()};
    sha.update(std::as_bytes(std::span(sizes)));
    sha.update(std::as_bytes(std::span(name)));
    sha.update(bytes);
  };
  for (size_t i = 0; i < parts_.size(); ++i) add(std::to_string(i), parts_[i].bytes());
  for (const auto& [name, document] : documents_) add(name, document.file.bytes());
  for (const auto& [name, shard] : shards_) add(name, shard.bytes());
  return sha.finish();
}

uint64_t Checkpoint::file_bytes() const {
  uint64_t sum = 0;
  for (const GgufFile& part : parts_) sum += part.file_bytes();
  for (const auto& [name, document] : documents_) sum += document.file.bytes().size();
  for (const auto& [name, shard] : shards_) sum += shard.bytes().size();
  return sum;
}

void Checkpoint::release_resident() {
  for (const GgufFile& part : parts_) part.release_resident();
  for (const auto& [name, shard] : shards_) shard.release_resident();
  documents_.clear();
}

}  // namespace tandem::weights
