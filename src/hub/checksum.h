// The two checksums that a hub tells of its files. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace tandem::hub {

class Checksum {
 public:
  static Checksum sha256();
  // Git's name of a blob: SHA-1 of "blob SIZE\0" and the bytes.
  static Checksum git_blob(uint64_t size);
  ~Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;

  void update(std::string_view bytes);
  std::string hex();  // once, at the end

 private:
  struct Context;
  explicit Checksum(std::unique_ptr<Context> context);
  std::unique_ptr<Context> context_;
};

}  // namespace tandem::hub
