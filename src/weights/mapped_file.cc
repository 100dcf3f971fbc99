#include "weights/mapped_file.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tandem::weights {

Result<MappedFile> MappedFile::open(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    return make_error(400, "model_not_found", "cannot open " + path + ": " + std::strerror(errno));
  }
  struct stat info = {};
  if (::fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size <= 0) {
    ::close(descriptor);
    return make_error(400, "invalid_model", path + " is empty or not a regular file");
  }
  const auto size = static_cast<size_t>(info.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
  const int map_error = errno;
  ::close(descriptor);
  if (data == MAP_FAILED) {
    return make_error(500, "map_failed", "cannot map " + path + ": " + std::strerror(map_error));
  }
  ::madvise(data, size, MADV_WILLNEED);
  const auto nanoseconds = [](const timespec& time) {
    return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
  };
  return MappedFile(static_cast<const std::byte*>(data), {.device = info.st_dev,
                                                          .inode = info.st_ino,
                                                          .size = size,
                                                          .modified_ns = nanoseconds(info.st_mtim),
                                                          .changed_ns = nanoseconds(info.st_ctim)});
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      identity_(other.identity_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    reset();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    identity_ = other.identity_;
  }
  return *this;
}

MappedFile::~MappedFile() { reset(); }

void MappedFile::release_resident() const {
  if (data_ != nullptr) ::madvise(const_cast<std::byte*>(data_), size_, MADV_DONTNEED);
}

void MappedFile::reset() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  data_ = nullptr;
  size_ = 0;
}

}  // namespace tandem::weights
