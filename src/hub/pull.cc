#include "hub/pull.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/bytes.h"
#include "hub/checksum.h"

namespace tandem::hub {

namespace {

namespace fs = std::filesystem;

constexpr size_t kReadPiece = 1UL << 20;

tl::unexpected<Error> io_error(const std::string& what, const std::string& path) {
  if (errno == ENOSPC || errno == EDQUOT) {
    return make_error(507, "disk_full",
                      "There is no space left for " + path +
                          ". Free some, or choose another directory with --models-dir; the pull "
                          "then goes on where it stopped.");
  }
  return make_error(500, "io_failed", what + " " + path + ": " + std::strerror(errno));
}

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return number_; }
  bool good() const { return number_ >= 0; }

 private:
  int number_;
};

Checksum checksum_of(const RemoteFile& file) {
  return file.sha256.empty() ? Checksum::git_blob(file.size) : Checksum::sha256();
}

const std::string& expected(const RemoteFile& file) {
  return file.sha256.empty() ? file.git_sha1 : file.sha256;
}

// Feeds what `descriptor` holds; false when reading fails.
bool feed(int descriptor, Checksum& sum) {
  std::vector<char> piece(kReadPiece);
  while (true) {
    const ssize_t got = ::read(descriptor, piece.data(), piece.size());
    if (got == 0) return true;
    if (got < 0) return false;
    sum.update({piece.data(), static_cast<size_t>(got)});
  }
}

uint64_t size_of(const std::string& path) {
  struct stat facts{};
  return ::stat(path.c_str(), &facts) == 0 ? static_cast<uint64_t>(facts.st_size) : 0;
}

bool is_right(const std::string& path, const RemoteFile& file) {
  const Descriptor opened(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!opened.good() || size_of(path) != file.size) return false;
  Checksum sum = checksum_of(file);
  return feed(opened.get(), sum) && sum.hex() == expected(file);
}

bool worth_another_try(const Error& error) {
  for (const std::string_view code :
       {"connect_refused", "connect_failed", "connect_timeout", "head_timeout", "body_timeout",
        "connection_lost", "rate_limited"}) {
    if (error.code == code) return true;
  }
  return error.status == 503;
}

class OnePull {
 public:
  OnePull(const ModelName& name, const PullOptions& options, PullProgress& progress,
          HubClient client)
      : name_(name),
        options_(options),
        progress_(progress),
        client_(std::move(client)),
        folder_((fs::path(options.models_directory) / name.organization / name.name).string()) {}

  Result<LocalModel> run() {
    TANDEM_TRY(files, choose());
    std::error_code error;
    fs::create_directories(folder_, error);
    if (error) {
      return make_error(500, "io_failed",
                        "cannot make the directory " + folder_ + ": " + error.message());
    }
    const std::string lock_path = folder_ + "/.lock";
    const Descriptor lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    if (!lock.good()) return io_error("cannot open", lock_path);
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
      progress_.waiting();
      while (::flock(lock.get(), LOCK_EX) != 0) {
        if (errno != EINTR) return io_error("cannot lock", lock_path);
      }
    }
    TANDEM_CHECK(fetch_all(files));
    std::vector<std::string> chosen;
    for (const RemoteFile& file : files) chosen.push_back(file.path);
    const bool gguf = chosen.front().ends_with(".gguf");
    return LocalModel{gguf ? folder_ + "/" + chosen.front() : folder_, name_.repository()};
  }

 private:
  template <typename Work>
  auto with_retries(const RemoteFile& file, Work work) -> decltype(work()) {
    Duration pause = options_.first_pause;
    for (int attempt = 1;; ++attempt) {
      const uint64_t before = size_of(part_path(file));
      auto result = work();
      if (result || !worth_another_try(result.error())) return result;
      if (size_of(part_path(file)) > before) {
        attempt = 0;
        pause = options_.first_pause;
      }
      if (attempt >= options_.attempts) return result;
      progress_.trouble(file, result.error());
      std::this_thread::sleep_for(pause);
      pause = std::min<Duration>(pause * 2, std::chrono::seconds(30));
    }
  }

  Result<std::vector<RemoteFile>> choose() {
    RemoteFile whole;
    whole.path = name_.repository();
    TANDEM_TRY(listing, with_retries(whole, [&] { return client_.list(name_.repository()); }));
    commit_ = listing.commit;
    std::map<std::string, RemoteFile> by_path;
    std::vector<std::string> paths;
    for (RemoteFile& file : listing.files) {
      paths.push_back(file.path);
      by_path[file.path] = std::move(file);
    }
    TANDEM_TRY(chosen, choose_files(paths, name_.file));
    std::vector<RemoteFile> files;
    for (const std::string& path : chosen) files.push_back(by_path[path]);
    return files;
  }

  std::string path_of(const RemoteFile& file) const { return folder_ + "/" + file.path; }
  // Named by the content: bytes of another revision are never taken for this one's.
  std::string part_path(const RemoteFile& file) const {
    return path_of(file) + "." + expected(file).substr(0, 16) + ".part";
  }

  Status fetch_all(const std::vector<RemoteFile>& files) {
    std::vector<RemoteFile> missing;
    uint64_t bytes = 0;
    uint64_t needed = 0;
    for (const RemoteFile& file : files) {
      if (is_right(path_of(file), file)) {
        progress_.present(file);
        continue;
      }
      missing.push_back(file);
      bytes += file.size;
      needed += file.size - std::min(file.size, size_of(part_path(file)));
    }
    TANDEM_CHECK(check_space(needed));
    progress_.begin(missing.size(), bytes);
    for (const RemoteFile& file : missing) {
      TANDEM_CHECK(fetch(file));
      progress_.finished(file);
    }
    return {};
  }

  Status check_space(uint64_t needed) const {
    struct statvfs facts{};
    if (::statvfs(folder_.c_str(), &facts) != 0) return {};
    const uint64_t free = static_cast<uint64_t>(facts.f_bavail) * facts.f_frsize;
    if (free >= needed) return {};
    return make_error(507, "disk_full",
                      folder_ + " has room for " + format_bytes(free) + ", and " +
                          format_bytes(needed) +
                          " are still to come. Free some, or choose another directory with "
                          "--models-dir.");
  }

  Status fetch(const RemoteFile& file) {
    std::error_code ignored;
    fs::create_directories(fs::path(path_of(file)).parent_path(), ignored);
    const std::string part = part_path(file);
    const bool resumed = size_of(part) > 0;
    TANDEM_CHECK(with_retries(file, [&] { return fetch_part(file); }));
    if (!is_right(part, file)) {
      ::unlink(part.c_str());
      const Error wrong{502, "bad_checksum",
                        "The bytes of " + file.path +
                            " do not have the checksum that the hub tells; they were thrown away."};
      if (!resumed) return tl::unexpected(wrong);
      // The first half may have been damaged since: once more from the start.
      progress_.trouble(file, wrong);
      TANDEM_CHECK(with_retries(file, [&] { return fetch_part(file); }));
      if (!is_right(part, file)) {
        ::unlink(part.c_str());
        return tl::unexpected(wrong);
      }
    }
    if (::rename(part.c_str(), path_of(file).c_str()) != 0)
      return io_error("cannot rename to", path_of(file));
    return {};
  }

  Status fetch_part(const RemoteFile& file) {
    const std::string part = part_path(file);
    const Descriptor opened(::open(part.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    if (!opened.good()) return io_error("cannot write", part);
    uint64_t have = size_of(part);
    if (have > file.size) have = 0;
    if (have == file.size && have > 0) return {};
    Status written;
    const auto on_start = [&](uint64_t offset) {
      have = offset;
      const auto at = static_cast<off_t>(offset);
      if (::ftruncate(opened.get(), at) != 0 || ::lseek(opened.get(), at, SEEK_SET) != at)
        written = io_error("cannot write", part);
      return written.has_value();
    };
    const auto on_bytes = [&](std::string_view bytes) {
      if (have + bytes.size() > file.size) {
        written =
            make_error(502, "bad_checksum", "The hub sent more of " + file.path + " than it has.");
        return false;
      }
      while (!bytes.empty()) {
        const ssize_t put = ::write(opened.get(), bytes.data(), bytes.size());
        if (put < 0) {
          written = io_error("cannot write", part);
          return false;
        }
        bytes.remove_prefix(static_cast<size_t>(put));
        have += static_cast<uint64_t>(put);
      }
      progress_.moved(file, have);
      return true;
    };
    const Status got =
        client_.download(name_.repository(), commit_, file.path, have, on_start, on_bytes);
    if (!written) return written;
    if (!got) return got;
    if (have < file.size)
      return make_error(502, "connection_lost", "the hub sent only a part of " + file.path);
    return ::fsync(opened.get()) == 0 ? Status() : io_error("cannot write", part);
  }

  const ModelName& name_;
  const PullOptions& options_;
  PullProgress& progress_;
  HubClient client_;
  std::string folder_;
  std::string commit_;
};

}  // namespace

Result<LocalModel> pull(const ModelName& name, const PullOptions& options, PullProgress& progress) {
  TANDEM_TRY(client, HubClient::create(options.hub));
  return OnePull(name, options, progress, std::move(client)).run();
}

}  // namespace tandem::hub
