#include "kv/index/prefix_index.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "protocol/page_window.h"

namespace tandem::kv {

PrefixIndex::PrefixIndex(Shape shape, size_t max_bytes)
    : shape_(std::move(shape)),
      max_bytes_(max_bytes),
      // The node, its hash-table entry (key, hash, link, bucket) and three allocator headers.
      bytes_per_node_(sizeof(Node) + sizeof(ContentId) + 3 * sizeof(void*) + 48 +
                      sizeof(int32_t) * static_cast<size_t>(shape_.block_tokens) +
                      sizeof(PageTag) * shape_.windows.size()),
      places_(static_cast<size_t>(shape_.page_count)) {}

const PrefixIndex::Node* PrefixIndex::find(const ContentId& id,
                                           std::span<const int32_t> tokens) const {
  const auto found = nodes_.find(id);
  if (found == nodes_.end() || !std::ranges::equal(found->second.tokens, tokens)) return nullptr;
  return &found->second;
}

PrefixIndex::Match PrefixIndex::present(std::span<const ContentId> ids,
                                        std::span<const int32_t> tokens) const {
  Match match;
  const auto block = static_cast<size_t>(shape_.block_tokens);
  const Node* above = nullptr;
  for (size_t i = 0; i < ids.size() && (i + 1) * block <= tokens.size(); ++i) {
    const Node* node = find(ids[i], tokens.subspan(i * block, block));
    if (node == nullptr || node->parent != above) break;
    above = node;
    match.pages.insert(match.pages.end(), node->pages.begin(), node->pages.end());
    ++match.blocks;
  }
  return match;
}

bool PrefixIndex::live_at(const std::vector<int64_t>& last_missing, size_t blocks) const {
  const int64_t position = static_cast<int64_t>(blocks) * shape_.block_tokens;
  for (size_t group = 0; group < last_missing.size(); ++group) {
    if (last_missing[group] >=
        protocol::first_live_block(shape_.windows[group], position, shape_.block_tokens))
      return false;
  }
  return true;
}

PrefixIndex::Match PrefixIndex::match(std::span<const ContentId> ids,
                                      std::span<const int32_t> tokens) const {
  Match match = present(ids, tokens);
  const size_t groups = shape_.windows.size();
  std::vector<int64_t> last_missing(groups, -1);
  size_t best = 0;
  for (size_t block = 0; block < match.blocks; ++block) {
    for (size_t group = 0; group < groups; ++group) {
      if (match.pages[block * groups + group].page < 0)
        last_missing[group] = static_cast<int64_t>(block);
    }
    if (live_at(last_missing, block + 1)) best = block + 1;
  }
  match.blocks = best;
  match.pages.resize(best * groups);
  for (size_t group = 0; group < groups; ++group) {
    const auto first = static_cast<size_t>(protocol::first_live_block(
        shape_.windows[group], static_cast<int64_t>(best) * shape_.block_tokens,
        shape_.block_tokens));
    for (size_t block = 0; block < std::min(first, best); ++block)
      match.pages[block * groups + group] = PageTag{};
  }
  return match;
}

PrefixIndex::Inserted PrefixIndex::insert(const ContentId* parent, const ContentId& id,
                                          std::span<const int32_t> tokens,
                                          std::span<const PageTag> pages,
                                          std::vector<PageTag>& adopted, uint64_t scope) {
  assert(pages.size() == shape_.windows.size());
  Node* node = nullptr;
  Node* above = nullptr;
  if (parent != nullptr) {
    const auto at_parent = nodes_.find(*parent);
    if (at_parent == nodes_.end()) return Inserted::kNoParent;
    above = &at_parent->second;
  }
  if (const auto found = nodes_.find(id); found != nodes_.end()) {
    node = &found->second;
    if (node->parent != above || !std::ranges::equal(node->tokens, tokens))
      return Inserted::kCollision;
  } else {
    if (node_bytes() + bytes_per_node_ > max_bytes_) {
      prune(above);
      return Inserted::kFull;
    }
    const auto made = nodes_.try_emplace(id).first;
    node = &made->second;
    node->id = &made->first;
    node->parent = above;
    if (above != nullptr) {
      node->next = above->first_child;
      if (node->next != nullptr) node->next->previous = node;
      above->first_child = node;
    }
    node->pages.resize(pages.size());
    node->tokens.assign(tokens.begin(), tokens.end());
    node->scope = scope;
  }
  const size_t before = adopted.size();
  for (size_t group = 0; group < pages.size(); ++group) {
    PageTag& mine = node->pages[group];
    if (mine.page >= 0 || pages[group].page < 0 || holds(pages[group].page)) continue;
    mine = pages[group];
    at(mine.page) = Place{.node = node, .list = nullptr, .group = static_cast<int32_t>(group)};
    adopted.push_back(mine);
  }
  return adopted.size() > before ? Inserted::kYes : Inserted::kDuplicate;
}

void PrefixIndex::set_idle(int32_t page, bool idle, bool passed) {
  Place& place = at(page);
  if (idle == (place.list != nullptr)) return;
  if (!idle) {
    unlink(page);
    return;
  }
  List& list = passed ? passed_ : idle_;
  place.list = &list;
  place.previous = list.last;
  place.next = -1;
  (list.last >= 0 ? at(list.last).next : list.first) = page;
  list.last = page;
  ++list.size;
}

void PrefixIndex::unlink(int32_t page) {
  Place& place = at(page);
  List& list = *place.list;
  (place.previous >= 0 ? at(place.previous).next : list.first) = place.next;
  (place.next >= 0 ? at(place.next).previous : list.last) = place.previous;
  place.list = nullptr;
  --list.size;
}

bool PrefixIndex::evict_page(std::vector<PageTag>& given_back) {
  const int32_t page = passed_.size > 0 ? passed_.first : idle_.first;
  if (page < 0) return false;
  evict(page, given_back);
  return true;
}

bool PrefixIndex::evict_node(std::vector<PageTag>& given_back) {
  const size_t before = nodes_.size();
  while (nodes_.size() == before && idle_.size > 0) evict(idle_.first, given_back);
  return nodes_.size() < before;
}

void PrefixIndex::evict(int32_t page, std::vector<PageTag>& given_back) {
  const Place& place = at(page);
  Node* node = place.node;
  if (shape_.windows[static_cast<size_t>(place.group)] == 0) {
    remove_subtree(node, given_back);  // no hit reaches beyond it any more
  } else {
    give_back(*node, static_cast<size_t>(place.group), given_back);
    prune(node);
  }
}

void PrefixIndex::give_back(Node& node, size_t group, std::vector<PageTag>& given_back) {
  const PageTag tag = std::exchange(node.pages[group], PageTag{});
  if (tag.page < 0) return;
  if (at(tag.page).list != nullptr) unlink(tag.page);
  at(tag.page) = Place{};
  given_back.push_back(tag);
}

void PrefixIndex::erase(Node* node) {
  if (node->previous != nullptr) {
    node->previous->next = node->next;
  } else if (node->parent != nullptr) {
    node->parent->first_child = node->next;
  }
  if (node->next != nullptr) node->next->previous = node->previous;
  const ContentId id = *node->id;
  if (on_erase_) on_erase_(id);
  nodes_.erase(id);
}

void PrefixIndex::remove_subtree(Node* top, std::vector<PageTag>& given_back) {
  Node* const above = top->parent;
  Node* node = top;
  while (node != nullptr) {
    while (node->first_child != nullptr) node = node->first_child;
    for (size_t group = 0; group < node->pages.size(); ++group) give_back(*node, group, given_back);
    Node* const parent = node == top ? nullptr : node->parent;
    erase(node);
    node = parent;
  }
  prune(above);
}

bool PrefixIndex::remove(int32_t page, std::vector<PageTag>& given_back) {
  if (!holds(page)) return false;
  remove_subtree(at(page).node, given_back);
  return true;
}

bool PrefixIndex::remove(const ContentId& id, std::vector<PageTag>& given_back) {
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return false;
  remove_subtree(&found->second, given_back);
  return true;
}

void PrefixIndex::visit(const std::function<void(const Block&)>& see) const {
  for (const auto& [id, node] : nodes_) {
    size_t children = 0;
    for (const Node* child = node.first_child; child != nullptr; child = child->next) ++children;
    see({.id = &id,
         .pages = node.pages,
         .tokens = node.tokens.size(),
         .children = children,
         .scope = node.scope});
  }
}

void PrefixIndex::prune(Node* node) {
  while (node != nullptr && node->first_child == nullptr &&
         std::ranges::all_of(node->pages, [](PageTag tag) { return tag.page < 0; })) {
    Node* const parent = node->parent;
    erase(node);
    node = parent;
  }
}

}  // namespace tandem::kv
