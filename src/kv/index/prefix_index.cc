#include "kv/index/prefix_index.h"

#include <algorithm>

namespace tandem::kv {

PrefixIndex::PrefixIndex(int32_t block_tokens, size_t max_bytes)
    : block_tokens_(block_tokens),
      max_bytes_(max_bytes),
      // The node, its hash-table entry and list entry (about two pointers and an allocator header
      // each).
      node_bytes_(sizeof(Node) + 2 * sizeof(ContentId) + 96 +
                  sizeof(int32_t) * static_cast<size_t>(block_tokens)) {}

const PrefixIndex::Node* PrefixIndex::find(const ContentId& id,
                                           std::span<const int32_t> tokens) const {
  const auto at = nodes_.find(id);
  if (at == nodes_.end() || !std::ranges::equal(at->second.tokens, tokens)) return nullptr;
  return &at->second;
}

PrefixIndex::Match PrefixIndex::match(std::span<const ContentId> ids,
                                      std::span<const int32_t> tokens) {
  Match match;
  const auto block = static_cast<size_t>(block_tokens_);
  for (size_t i = 0; i < ids.size() && (i + 1) * block <= tokens.size(); ++i) {
    const Node* node = find(ids[i], tokens.subspan(i * block, block));
    if (node == nullptr) break;
    match.pages.push_back(node->page);
  }
  // Deepest first, so that a parent is always used later than its children and leaves go first.
  for (size_t i = match.pages.size(); i-- > 0;) {
    order_.splice(order_.end(), order_, nodes_.find(ids[i])->second.order);
  }
  return match;
}

size_t PrefixIndex::matched_blocks(std::span<const ContentId> ids,
                                   std::span<const int32_t> tokens) const {
  const auto block = static_cast<size_t>(block_tokens_);
  size_t count = 0;
  while (count < ids.size() && (count + 1) * block <= tokens.size() &&
         find(ids[count], tokens.subspan(count * block, block)) != nullptr) {
    ++count;
  }
  return count;
}

PrefixIndex::Inserted PrefixIndex::insert(const ContentId* parent, const ContentId& id,
                                          std::span<const int32_t> tokens, PageTag page) {
  if (nodes_.contains(id)) return Inserted::kDuplicate;
  if (bytes() + node_bytes_ > max_bytes_) return Inserted::kFull;
  Node node;
  if (parent != nullptr) {
    const auto above = nodes_.find(*parent);
    if (above == nodes_.end()) return Inserted::kNoParent;
    ++above->second.children;
    node.parent = *parent;
  }
  node.page = page;
  node.tokens.assign(tokens.begin(), tokens.end());
  node.order = order_.insert(order_.end(), id);
  nodes_.emplace(id, std::move(node));
  return Inserted::kYes;
}

PageTag PrefixIndex::remove(Nodes::iterator at) {
  const PageTag page = at->second.page;
  if (at->second.parent) --nodes_.find(*at->second.parent)->second.children;
  order_.erase(at->second.order);
  nodes_.erase(at);
  return page;
}

}  // namespace tandem::kv
