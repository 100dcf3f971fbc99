#include "weights/digest_cache.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include <unistd.h>

#include "base/environment.h"

namespace tandem::weights {
namespace {

namespace fs = std::filesystem;

// The coarsest step of the times that file systems keep.
constexpr int64_t kSettledNs = 2'000'000'000;

}  // namespace

std::string DigestCache::default_folder() {
  if (const std::string own = environment("TANDEM_CACHE"); !own.empty())
    return own == "off" ? "" : own + "/digests";
  if (const std::string cache = environment("XDG_CACHE_HOME"); !cache.empty())
    return cache + "/tandem/digests";
  const std::string home = environment("HOME");
  return home.empty() ? "" : home + "/.cache/tandem/digests";
}

std::string DigestCache::path_of(const FileIdentity& identity) const {
  std::string name = "v1";
  for (const uint64_t part :
       {identity.device, identity.inode, identity.size, static_cast<uint64_t>(identity.modified_ns),
        static_cast<uint64_t>(identity.changed_ns)})
    name += "-" + std::to_string(part);
  return folder_ + "/" + name;
}

std::optional<numerics::Digest> DigestCache::find(const FileIdentity& identity) const {
  if (folder_.empty() || identity.size == 0) return std::nullopt;
  std::ifstream file(path_of(identity));
  std::string text;
  if (!std::getline(file, text)) return std::nullopt;
  return numerics::from_hex(text);
}

void DigestCache::store(const FileIdentity& identity, const numerics::Digest& digest,
                        int64_t now_ns) const {
  if (folder_.empty() || identity.size == 0) return;
  if (now_ns - identity.modified_ns < kSettledNs || now_ns - identity.changed_ns < kSettledNs)
    return;
  std::error_code failed;
  fs::create_directories(folder_, failed);
  if (failed) return;
  const std::string path = path_of(identity);
  const std::string part = path + "." + std::to_string(getpid());
  {
    std::ofstream file(part, std::ios::trunc);
    file << numerics::to_hex(digest) << '\n';
    file.flush();
    if (!file) {
      fs::remove(part, failed);
      return;
    }
  }
  fs::rename(part, path, failed);
  if (failed) {
    fs::remove(part, failed);
    return;
  }
  drop_oldest();
}

void DigestCache::drop_oldest() const {
  std::error_code failed;
  std::vector<std::pair<fs::file_time_type, fs::path>> entries;
  for (fs::directory_iterator at(folder_, failed), end; !failed && at != end;
       at.increment(failed)) {
    std::error_code gone;
    const fs::file_time_type written = at->last_write_time(gone);
    if (!gone) entries.emplace_back(written, at->path());
  }
  if (entries.size() <= max_entries_) return;
  std::sort(entries.begin(), entries.end());
  for (size_t i = 0; i < entries.size() - max_entries_; ++i) fs::remove(entries[i].second, failed);
}

}  // namespace tandem::weights
