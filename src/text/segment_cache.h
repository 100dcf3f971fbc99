// SegmentCache: token ids of pieces of text that were encoded before. A conversation comes again
// with every turn, and what lies between two special tokens encodes to the same ids wherever it
// stands, so only what is new costs more than a look-up.
//
// The text itself is kept and compared: no hash decides what somebody's prompt is. Least recently
// used pieces go first; bounded by bytes. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tandem::text {

class SegmentCache {
 public:
  explicit SegmentCache(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Shorter ones are encoded faster than found.
  static constexpr size_t kLeastBytes = 128;

  // Appends the ids of `text`; false: it is not here. `kind`: texts of different kinds differ.
  bool find(std::string_view text, std::string_view kind, std::vector<int32_t>& out);
  void keep(std::string_view text, std::string_view kind, const int32_t* ids, size_t count);

  struct Counts {
    size_t bytes = 0;
    size_t pieces = 0;
    uint64_t hit_bytes = 0;  // of text
    uint64_t miss_bytes = 0;
  };
  Counts counts() const;

 private:
  struct Piece {
    std::string kind;
    std::string text;
    std::vector<int32_t> ids;
    uint64_t hash = 0;
    size_t bytes() const;
  };
  using Order = std::list<std::shared_ptr<const Piece>>;

  size_t max_bytes_;
  mutable std::mutex mutex_;
  Order order_;  // least recently used first
  std::unordered_map<uint64_t, Order::iterator> pieces_;
  Counts counts_;
};

}  // namespace tandem::text
