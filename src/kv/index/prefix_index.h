// PrefixIndex: which blocks are in memory, as a tree over their identities.
//
// A block's ContentId chains its parent's, so a node is found by one hash look-up and a prefix is
// matched by walking ids until one is missing. Children keep their parent: only leaves can be
// evicted, least recently used first, so a hit is always a contiguous prefix. The tokens of a block
// are kept and compared on every hit: an id alone is never trusted. Metadata is byte-bounded. Not
// thread-safe: one owner thread. Holds no pages itself: the caller keeps one ownership of each
// inserted page until this index gives it back through evict or insert.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "protocol/content_id.h"
#include "protocol/handoff_frames.h"

namespace tandem::kv {

using protocol::ContentId;
using protocol::PageTag;

class PrefixIndex {
 public:
  // `max_bytes` bounds the metadata (nodes with their tokens).
  PrefixIndex(int32_t block_tokens, size_t max_bytes);

  struct Match {
    std::vector<PageTag> pages;  // pages[i] holds block i of the prompt
  };
  // Longest prefix of `ids` (the chain of `tokens`) that is present. Marks it as just used.
  Match match(std::span<const ContentId> ids, std::span<const int32_t> tokens);
  // Same without touching the order.
  size_t matched_blocks(std::span<const ContentId> ids, std::span<const int32_t> tokens) const;

  enum class Inserted : uint8_t {
    kYes,
    kDuplicate,  // the block is there already, in another page: the caller's stays private
    kNoParent,   // the parent is gone, so the block could never be reached
    kFull,       // the byte bound is reached and nothing can be evicted
  };
  // `parent` is nullptr for a first block.
  Inserted insert(const ContentId* parent, const ContentId& id, std::span<const int32_t> tokens,
                  PageTag page);

  // Removes the least recently used leaf for which `evictable(page)` holds; gives its page back.
  template <typename Predicate>
  std::optional<PageTag> evict_one(Predicate&& evictable);

  bool contains(const ContentId& id) const { return nodes_.contains(id); }
  size_t size() const { return nodes_.size(); }
  size_t bytes() const { return nodes_.size() * node_bytes_; }

 private:
  struct Node {
    std::optional<ContentId> parent;
    PageTag page;
    std::vector<int32_t> tokens;
    int32_t children = 0;
    std::list<ContentId>::iterator order;
  };
  using Nodes = std::unordered_map<ContentId, Node, protocol::ContentIdHash>;
  const Node* find(const ContentId& id, std::span<const int32_t> tokens) const;
  PageTag remove(Nodes::iterator at);

  int32_t block_tokens_;
  size_t max_bytes_;
  size_t node_bytes_;
  Nodes nodes_;
  std::list<ContentId> order_;  // least recently used first
};

template <typename Predicate>
std::optional<PageTag> PrefixIndex::evict_one(Predicate&& evictable) {
  for (const ContentId& id : order_) {
    const auto at = nodes_.find(id);
    if (at->second.children == 0 && evictable(at->second.page)) return remove(at);
  }
  return std::nullopt;
}

}  // namespace tandem::kv
