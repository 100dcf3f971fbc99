// What every transport module needs: settings, error sentences, a wake-up, and a descriptor that
// is either whole or refused. Header only; internal to modules.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "kv/transfer/transport_abi.h"

namespace tandem::modules {

using Clock = std::chrono::steady_clock;

inline int32_t say(tandem_transport_error* error, int32_t status, const std::string& sentence) {
  if (error != nullptr)
    std::snprintf(error->message, sizeof error->message, "%s", sentence.c_str());
  return status;
}

// "key=value" lines.
class Settings {
 public:
  explicit Settings(const char* text) {
    std::string_view rest = text != nullptr ? text : "";
    while (!rest.empty()) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      const std::string_view line = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      if (line.empty()) continue;
      const size_t equals = line.find('=');
      if (equals == 0 || equals == std::string_view::npos) {
        wrong_ = "the setting \"" + std::string(line) + "\" is not key=value";
        return;
      }
      values_[std::string(line.substr(0, equals))] = line.substr(equals + 1);
    }
  }
  const std::string& wrong() const { return wrong_; }
  // Each takes the setting out, so that what remains is unknown.
  std::string take(const std::string& key, std::string fallback = {}) {
    const auto found = values_.extract(key);
    return found.empty() ? std::move(fallback) : found.mapped();
  }
  uint64_t take_number(const std::string& key, uint64_t fallback) {
    const std::string text = take(key);
    if (text.empty()) return fallback;
    char* end = nullptr;
    const uint64_t value = std::strtoull(text.c_str(), &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != 0)
      wrong_ = "the setting " + key + " needs a number, not \"" + text + "\"";
    return value;
  }
  std::map<std::string, std::string> take_prefix(const std::string& prefix) {
    std::map<std::string, std::string> out;
    for (auto at = values_.begin(); at != values_.end();) {
      const bool match = at->first.starts_with(prefix);
      if (match) out[at->first.substr(prefix.size())] = at->second;
      at = match ? values_.erase(at) : std::next(at);
    }
    return out;
  }
  // Empty when every setting was taken and made sense.
  std::string complaint() const {
    if (!wrong_.empty() || values_.empty()) return wrong_;
    return "the setting " + values_.begin()->first + " is not known";
  }

 private:
  std::map<std::string, std::string> values_;
  std::string wrong_;
};

// Ends a poll() from any thread.
class Waker {
 public:
  Waker() : file_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  ~Waker() {
    if (file_ >= 0) ::close(file_);
  }
  Waker(const Waker&) = delete;
  Waker& operator=(const Waker&) = delete;
  int file() const { return file_; }
  void wake() const {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(file_, &one, sizeof one);
  }
  void clear() const {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(file_, &count, sizeof count);
  }

 private:
  int file_;
};

// 16 random bytes in memory that peers may read: whoever reads them back from a descriptor's
// address talks to the engine that wrote it, not to a later life at the same address.
struct Token {
  alignas(64) std::array<uint8_t, 64> bytes{};
  static constexpr size_t kSize = 16;
  Token() {
    std::random_device random;
    for (size_t i = 0; i < kSize; i += 4) {
      const uint32_t word = random();
      std::memcpy(bytes.data() + i, &word, sizeof word);
    }
  }
};

// Exposed memory: where it is, the token and where that is, and what the engine needs to reach it.
struct ExposedMemory {
  uint64_t base = 0;
  uint64_t bytes = 0;
  uint64_t token_at = 0;
  std::array<uint8_t, Token::kSize> token{};
  std::vector<std::string> parts;
};

namespace detail {
inline uint64_t digest(std::string_view bytes) {
  uint64_t hash = 14695981039346656037ULL;
  for (const char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211ULL;
  return hash;
}
template <typename T>
void append(std::string& out, T value) {
  char raw[sizeof value];
  std::memcpy(raw, &value, sizeof value);
  out.append(raw, sizeof raw);
}
template <typename T>
bool cut(std::string_view& in, T& value) {
  if (in.size() < sizeof value) return false;
  std::memcpy(&value, in.data(), sizeof value);
  in.remove_prefix(sizeof value);
  return true;
}
}  // namespace detail

inline constexpr uint32_t kMaxParts = 8;

// {kind, digest of the rest, base, bytes, token_at, token, number of parts, {size, bytes} ...}
inline std::string encode_descriptor(std::string_view kind, const ExposedMemory& memory) {
  std::string rest;
  detail::append(rest, memory.base);
  detail::append(rest, memory.bytes);
  detail::append(rest, memory.token_at);
  detail::append(rest, memory.token);
  detail::append(rest, static_cast<uint32_t>(memory.parts.size()));
  for (const std::string& part : memory.parts) {
    detail::append(rest, static_cast<uint32_t>(part.size()));
    rest += part;
  }
  std::string out(kind);
  detail::append(out, detail::digest(rest));
  return out + rest;
}

// What an engine's expose() gives out: the memory, its token's place and `parts`.
inline int32_t write_descriptor(std::string_view kind, const void* memory, uint64_t bytes,
                                const Token& token, std::vector<std::string> parts,
                                void* descriptor, uint64_t* descriptor_bytes,
                                tandem_transport_error* error) {
  ExposedMemory out;
  out.base = reinterpret_cast<uintptr_t>(memory);
  out.bytes = bytes;
  out.token_at = reinterpret_cast<uintptr_t>(token.bytes.data());
  std::copy_n(token.bytes.begin(), Token::kSize, out.token.begin());
  out.parts = std::move(parts);
  const std::string encoded = encode_descriptor(kind, out);
  if (encoded.size() > *descriptor_bytes)
    return say(error, TANDEM_TRANSPORT_INVALID, "there is no room for the descriptor");
  std::memcpy(descriptor, encoded.data(), encoded.size());
  *descriptor_bytes = encoded.size();
  return TANDEM_TRANSPORT_OK;
}

// Nothing when it is not of this kind, was cut or changed, or holds another number of parts.
inline std::optional<ExposedMemory> decode_descriptor(std::string_view kind, std::string_view text,
                                                      uint32_t parts) {
  uint64_t digest = 0;
  if (!text.starts_with(kind)) return std::nullopt;
  text.remove_prefix(kind.size());
  if (!detail::cut(text, digest) || digest != detail::digest(text)) return std::nullopt;
  ExposedMemory out;
  uint32_t count = 0;
  if (!detail::cut(text, out.base) || !detail::cut(text, out.bytes) ||
      !detail::cut(text, out.token_at) || !detail::cut(text, out.token) ||
      !detail::cut(text, count) || count != parts || count > kMaxParts)
    return std::nullopt;
  if (out.base + out.bytes < out.base) return std::nullopt;
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t size = 0;
    if (!detail::cut(text, size) || size > text.size()) return std::nullopt;
    out.parts.emplace_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return text.empty() ? std::optional(out) : std::nullopt;
}

// Local memory that reads may go into.
template <typename Handle>
class LocalMemory {
 public:
  void add(void* memory, uint64_t bytes, Handle handle) {
    regions_.push_back({static_cast<std::byte*>(memory), bytes, handle});
  }
  const Handle* find(const void* into, uint64_t bytes) const {
    for (const Region& region : regions_) {
      const auto at = reinterpret_cast<uintptr_t>(into);
      const auto begin = reinterpret_cast<uintptr_t>(region.begin);
      if (at >= begin && at - begin <= region.bytes && bytes <= region.bytes - (at - begin))
        return &region.handle;
    }
    return nullptr;
  }
  template <typename Visit>
  void each(Visit visit) const {
    for (const Region& region : regions_) visit(region.begin, region.handle);
  }

 private:
  struct Region {
    std::byte* begin;
    uint64_t bytes;
    Handle handle;
  };
  std::vector<Region> regions_;
};

// What a post asks for is within the exposed and the registered memory; `total` is its sum.
template <typename Handle>
bool reads_are_inside(const tandem_transport_read* reads, uint32_t count, uint64_t exposed,
                      const LocalMemory<Handle>& local, uint64_t& total) {
  total = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const tandem_transport_read& read = reads[i];
    if (read.bytes == 0 || read.offset > exposed || read.bytes > exposed - read.offset ||
        total + read.bytes < total || local.find(read.into, read.bytes) == nullptr)
      return false;
    total += read.bytes;
  }
  return count > 0;
}

inline int milliseconds_until(Clock::time_point until, uint32_t at_most) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count() + 1;
  return static_cast<int>(std::clamp<int64_t>(left, 0, std::min<uint32_t>(at_most, 3600000)));
}

}  // namespace tandem::modules
