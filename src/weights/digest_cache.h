// DigestCache: remembers the digests of large files between starts, so that a start does not read a
// model twice. An entry is a small file in the user's own cache folder, named by what the system
// says about the file: device, inode, size, and times of its last modification and change to the
// nanosecond (a program can set the first of the two back, not the second). Whoever changes, copies
// or replaces a model has another name, and the digest is computed again. Files changed within the
// last seconds are not remembered: a later change might have the same times.
//
// Nothing here fails: what cannot be read or written is not remembered. Entries are written beside
// their place and renamed, so that concurrent starts see whole ones. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "numerics/digest.h"
#include "weights/mapped_file.h"

namespace tandem::weights {

class DigestCache {
 public:
  // `folder` is made when something is stored; empty: nothing is remembered. Entries beyond
  // `max_entries` go, the oldest first.
  explicit DigestCache(std::string folder, size_t max_entries = 256)
      : folder_(std::move(folder)), max_entries_(max_entries) {}

  // $TANDEM_CACHE/digests, unless that is "off"; else $XDG_CACHE_HOME/tandem/digests or
  // ~/.cache/tandem/digests; empty when there is none of these.
  static std::string default_folder();

  std::optional<numerics::Digest> find(const FileIdentity& identity) const;
  // `now_ns` is the time since 1970.
  void store(const FileIdentity& identity, const numerics::Digest& digest, int64_t now_ns) const;

 private:
  std::string path_of(const FileIdentity& identity) const;
  void drop_oldest() const;

  std::string folder_;
  size_t max_entries_;
};

}  // namespace tandem::weights
