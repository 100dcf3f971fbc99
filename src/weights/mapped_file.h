// A file mapped read-only. The kernel shares its pages between processes that map the same model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"

namespace tandem::weights {

// What the system says about an open file; `size` 0: nothing is known.
struct FileIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t size = 0;
  int64_t modified_ns = 0;  // since 1970
  int64_t changed_ns = 0;

  bool operator==(const FileIdentity&) const = default;
};

class MappedFile {
 public:
  // Errors: 400 "model_not_found" when the file cannot be opened, 400 "invalid_model" when it is
  // empty or not a file.
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  // Valid for this object's life. A file truncated by another process while mapped raises SIGBUS;
  // model files are replaced by rename, not rewritten in place.
  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // What the system said about the file when it was opened.
  const FileIdentity& identity() const { return identity_; }

  // Tells the kernel that this process will not read the bytes soon; they stay valid and come back
  // from the page cache.
  void release_resident() const;

 private:
  MappedFile(const std::byte* data, const FileIdentity& identity)
      : data_(data), size_(identity.size), identity_(identity) {}
  void reset();

  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  FileIdentity identity_;
};

// File::parse() of the mapped `path`; errors name the path. The result keeps the mapping as
// `file_`.
template <typename File>
Result<File> open_mapped(const std::string& path) {
  TANDEM_TRY(file, MappedFile::open(path));
  Result<File> parsed = File::parse(file.bytes());
  if (!parsed) {
    Error error = std::move(parsed).error();
    error.message = path + ": " + error.message;
    return tl::unexpected(std::move(error));
  }
  parsed->file_.emplace(std::move(file));
  return parsed;
}

}  // namespace tandem::weights
