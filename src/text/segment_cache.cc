#include "text/segment_cache.h"

#include <functional>
#include <utility>

namespace tandem::text {

namespace {

uint64_t hash_of(std::string_view text, std::string_view kind) {
  const std::hash<std::string_view> hash;
  return hash(text) * 31 + hash(kind);
}

}  // namespace

size_t SegmentCache::Piece::bytes() const {
  // With the nodes of the list and the map.
  return sizeof(Piece) + 128 + kind.capacity() + text.capacity() + ids.capacity() * sizeof(ids[0]);
}

bool SegmentCache::find(std::string_view text, std::string_view kind, std::vector<int32_t>& out) {
  const uint64_t hash = hash_of(text, kind);
  std::shared_ptr<const Piece> piece;
  {
    const std::lock_guard lock(mutex_);
    const auto found = pieces_.find(hash);
    if (found != pieces_.end()) {
      piece = *found->second;
      order_.splice(order_.end(), order_, found->second);
    }
    const bool same = piece != nullptr && piece->text.size() == text.size();
    (same ? counts_.hit_bytes : counts_.miss_bytes) += text.size();
  }
  if (piece == nullptr || piece->text != text || piece->kind != kind) return false;
  out.insert(out.end(), piece->ids.begin(), piece->ids.end());
  return true;
}

void SegmentCache::keep(std::string_view text, std::string_view kind, const int32_t* ids,
                        size_t count) {
  auto piece = std::make_shared<Piece>();
  piece->kind = kind;
  piece->text = text;
  piece->ids.assign(ids, ids + count);
  piece->hash = hash_of(text, kind);
  const size_t bytes = piece->bytes();
  if (bytes > max_bytes_ / 4) return;
  const std::lock_guard lock(mutex_);
  const auto [at, fresh] = pieces_.try_emplace(piece->hash);
  if (!fresh) {  // another thread was faster, or another text has this hash
    counts_.bytes -= (*at->second)->bytes();
    order_.erase(at->second);
  }
  at->second = order_.insert(order_.end(), std::move(piece));
  counts_.bytes += bytes;
  while (counts_.bytes > max_bytes_) {
    const Piece& oldest = *order_.front();
    counts_.bytes -= oldest.bytes();
    pieces_.erase(oldest.hash);
    order_.pop_front();
  }
}

SegmentCache::Counts SegmentCache::counts() const {
  const std::lock_guard lock(mutex_);
  Counts counts = counts_;
  counts.pieces = pieces_.size();
  return counts;
}

}  // namespace tandem::text
