// PrefixIndex: which blocks are in memory, as a tree over their identities.
//
// A block's ContentId chains its parent's, so a node is found by one hash look-up and a prefix is
// walked along ids until one is missing. A node has one page for each page group. Groups that
// attend to everything keep theirs as long as the node lives; those of window groups may go one by
// one, so a hit is the longest prefix at whose end every group has what is live there. The tokens
// of a block are kept and compared on every hit, and so is the block before it: an id alone is
// never trusted.
//
// Eviction takes pages that nobody uses (the caller says which, as it changes): first those that
// left their window, then the least recently used. A parent becomes idle no earlier than its
// children, so leaves go first; should a parent go all the same, everything below it goes too, as
// it could not be reached. Each step is O(1) for every page given back.
//
// Metadata is byte-bounded. Not thread-safe: one owner thread. Holds no pages itself: the caller
// keeps one ownership of each inserted page until this index gives it back.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "protocol/content_id.h"
#include "protocol/handoff_frames.h"

namespace tandem::kv {

using protocol::ContentId;
using protocol::PageTag;

class PrefixIndex {
 public:
  struct Shape {
    int32_t block_tokens = 16;
    std::vector<int32_t> windows{0};  // by page group; 0: attends to everything
    int32_t page_count = 0;           // pages are numbered below this
  };
  // `max_bytes` bounds the nodes (with their tokens and pages).
  PrefixIndex(Shape shape, size_t max_bytes);

  struct Match {
    size_t blocks = 0;
    std::vector<PageTag> pages;  // [block][group]; page -1 where there is none or none is needed
  };
  // Longest prefix of `ids` (the chain of `tokens`) after which a sequence can go on, with the
  // pages it then needs.
  Match match(std::span<const ContentId> ids, std::span<const int32_t> tokens) const;
  // Everything that is here of the chain.
  Match present(std::span<const ContentId> ids, std::span<const int32_t> tokens) const;

  enum class Inserted : uint8_t {
    kYes,
    kDuplicate,  // the block is there already, in other pages: the caller's stay private
    kCollision,  // the id stands for other tokens, or after others: nothing may follow it either
    kNoParent,   // the parent is gone, so the block could never be reached
    kFull,       // the byte bound is reached
  };
  // `parent` is nullptr for a first block. `pages` [group]; -1 is allowed for window groups. Those
  // that now stand in the index, in a new node or in gaps of an old one, are added to `adopted`.
  // `scope` is kept with the block and only reported again.
  Inserted insert(const ContentId* parent, const ContentId& id, std::span<const int32_t> tokens,
                  std::span<const PageTag> pages, std::vector<PageTag>& adopted,
                  uint64_t scope = 0);

  // Told of every block that leaves, while it leaves.
  void on_erase(std::function<void(const ContentId&)> tell) { on_erase_ = std::move(tell); }

  // Whether this index holds the page.
  bool holds(int32_t page) const { return at(page).node != nullptr; }
  // A page that this index holds is used by nobody else, or is so no longer. `passed`: it became
  // idle because its window passed.
  void set_idle(int32_t page, bool idle, bool passed);

  // Gives up one idle page; what leaves the index with it is added to `given_back` (idle or not).
  // False when no page is idle.
  bool evict_page(std::vector<PageTag>& given_back);
  // Gives up idle pages until a node's metadata is free.
  bool evict_node(std::vector<PageTag>& given_back);

  // Takes out the block that a page holds, or that has this id, whoever uses it, and everything
  // below it. False when there is none.
  bool remove(int32_t page, std::vector<PageTag>& given_back);
  bool remove(const ContentId& id, std::vector<PageTag>& given_back);

  struct Block {
    const ContentId* id;
    std::span<const PageTag> pages;  // [group]
    size_t tokens;
    size_t children;
    uint64_t scope;
  };
  // Every block, in no order. The index must not change meanwhile.
  void visit(const std::function<void(const Block&)>& see) const;

  bool contains(const ContentId& id) const { return nodes_.contains(id); }
  int32_t idle_pages() const { return passed_.size + idle_.size; }
  size_t size() const { return nodes_.size(); }
  // Nodes and the table of pages.
  size_t bytes() const { return node_bytes() + places_.size() * sizeof(Place); }
  size_t node_bytes() const { return nodes_.size() * bytes_per_node_; }

 private:
  struct Node {
    const ContentId* id = nullptr;
    Node* parent = nullptr;
    Node* first_child = nullptr;
    Node* next = nullptr;  // siblings
    Node* previous = nullptr;
    std::vector<PageTag> pages;  // [group]
    std::vector<int32_t> tokens;
    uint64_t scope = 0;
  };
  struct List {
    int32_t first = -1;
    int32_t last = -1;
    int32_t size = 0;
  };
  // Where a page stands: in which node, and in which list of idle pages.
  struct Place {
    Node* node = nullptr;
    List* list = nullptr;
    int32_t group = 0;
    int32_t next = -1;
    int32_t previous = -1;
  };
  Place& at(int32_t page) { return places_[static_cast<size_t>(page)]; }
  const Place& at(int32_t page) const { return places_[static_cast<size_t>(page)]; }
  const Node* find(const ContentId& id, std::span<const int32_t> tokens) const;
  bool live_at(const std::vector<int64_t>& last_missing, size_t blocks) const;
  void unlink(int32_t page);
  void give_back(Node& node, size_t group, std::vector<PageTag>& given_back);
  void evict(int32_t page, std::vector<PageTag>& given_back);
  void erase(Node* node);  // a leaf without pages
  void remove_subtree(Node* top, std::vector<PageTag>& given_back);
  void prune(Node* node);  // and what it was the last reason for

  Shape shape_;
  std::function<void(const ContentId&)> on_erase_;
  size_t max_bytes_;
  size_t bytes_per_node_;
  std::unordered_map<ContentId, Node, protocol::ContentIdHash> nodes_;
  std::vector<Place> places_;  // by page
  List passed_;                // first in, first out
  List idle_;                  // least recently used first
};

}  // namespace tandem::kv
