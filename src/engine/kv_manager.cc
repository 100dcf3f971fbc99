#include "engine/kv_manager.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

namespace tandem::engine {

KvManager::KvManager(ops::PageArenaView arena, KvManagerOptions options,
                     std::function<void(int32_t, uint64_t)> on_allocate)
    : arena_(arena),
      options_(std::move(options)),
      pool_(arena.page_count, std::move(on_allocate), options_.first_generation),
      index_(arena.layout.block_tokens, options_.index_bytes),
      indexed_(static_cast<size_t>(arena.page_count), false) {}

size_t KvManager::blocks_for(size_t tokens) const {
  const auto block = static_cast<size_t>(block_tokens());
  return (tokens + block - 1) / block;
}

bool KvManager::is_idle(int32_t page) const {
  return indexed_[static_cast<size_t>(page)] && pool_.owners(page) == 1 &&
         pool_.readers(page) == 0 && pool_.writers(page) == 0;
}

// Every change of a count goes through here, so that idle_ is always right.
template <typename Change>
void KvManager::change(PageTag tag, Change&& change) {
  idle_ -= is_idle(tag.page) ? 1 : 0;
  change();
  idle_ += is_idle(tag.page) ? 1 : 0;
}

void KvManager::retain(PageTag tag) {
  change(tag, [&] {
    const bool current = pool_.add_owner(tag);
    assert(current);
    (void)current;
  });
}

void KvManager::drop(PageTag tag) {
  change(tag, [&] { pool_.drop_owner(tag); });
}

void KvManager::push(Table& table, PageTag tag) {
  table.tags.push_back(tag);
  table.pages.push_back(tag.page);
}

std::optional<PageTag> KvManager::obtain() {
  if (auto tag = pool_.allocate()) return tag;
  const auto evicted = index_.evict_one([&](PageTag tag) { return is_idle(tag.page); });
  if (!evicted) return std::nullopt;
  ++evictions_;
  change(*evicted, [&] {
    indexed_[static_cast<size_t>(evicted->page)] = false;
    pool_.drop_owner(*evicted);
  });
  return pool_.allocate();
}

KvManager::Table KvManager::make_table(const KvScope& scope) const {
  Table table;
  table.root = protocol::root_content_id(options_.lineage, block_tokens(), scope.salt);
  if (!scope.adapter.empty())
    table.extras.push_back({protocol::ExtraKind::kAdapter, scope.adapter});
  return table;
}

size_t KvManager::share_prefix(Table& table, std::span<const int32_t> tokens, size_t most_blocks) {
  table.ids = protocol::content_ids(
      table.root,
      tokens.first(std::min(tokens.size(), most_blocks * static_cast<size_t>(block_tokens()))),
      block_tokens(), table.extras);
  const auto match = index_.match(table.ids, tokens);
  for (const PageTag tag : match.pages) {
    retain(tag);
    push(table, tag);
  }
  table.ids.resize(match.pages.size());
  return match.pages.size();
}

bool KvManager::fill(Table& table, size_t blocks) {
  while (table.tags.size() < blocks) {
    const auto tag = obtain();
    if (!tag) return false;
    push(table, *tag);
  }
  return true;
}

std::optional<int32_t> KvManager::admit(SequenceId id, std::span<const int32_t> tokens,
                                        const KvScope& scope, int32_t headroom) {
  const auto block = static_cast<size_t>(block_tokens());
  Table table = make_table(scope);
  // The last token is always computed: its logits are wanted.
  const size_t shared = scope.reuse ? share_prefix(table, tokens, (tokens.size() - 1) / block) : 0;
  const size_t blocks = blocks_for(tokens.size());
  if (static_cast<int32_t>(blocks - shared) + headroom > obtainable() || !fill(table, blocks)) {
    for (const PageTag tag : table.tags) drop(tag);
    return std::nullopt;
  }
  tables_[id] = std::move(table);
  return static_cast<int32_t>(shared * block);
}

bool KvManager::extend(SequenceId id, int32_t token_count) {
  return fill(tables_.at(id), blocks_for(static_cast<size_t>(token_count)));
}

std::span<const int32_t> KvManager::pages(SequenceId id) const { return tables_.at(id).pages; }

std::span<const PageTag> KvManager::tags(SequenceId id) const { return tables_.at(id).tags; }

void KvManager::computed(SequenceId id, std::span<const int32_t> tokens, int32_t computed) {
  Table& table = tables_.at(id);
  const auto block = static_cast<size_t>(block_tokens());
  while (table.chained && (table.ids.size() + 1) * block <= static_cast<size_t>(computed)) {
    publish(table, table.ids.size(), tokens.subspan(table.ids.size() * block, block));
  }
}

void KvManager::publish(Table& table, size_t block, std::span<const int32_t> tokens) {
  const protocol::ContentId parent = block == 0 ? table.root : table.ids[block - 1];
  const protocol::ContentId id = protocol::next_content_id(parent, tokens, table.extras);
  const PageTag tag = table.tags[block];
  table.ids.push_back(id);
  if (pool_.state(tag.page) == kv::PageState::kFilling && !pool_.mark_verified(tag)) {
    table.chained = false;  // a writer is active: not proven
    return;
  }
  auto inserted = index_.insert(block == 0 ? nullptr : &parent, id, tokens, tag);
  if (inserted == kv::PrefixIndex::Inserted::kFull) {
    // Metadata is full: the oldest idle block makes room.
    if (const auto evicted = index_.evict_one([&](PageTag other) { return is_idle(other.page); })) {
      ++evictions_;
      change(*evicted, [&] {
        indexed_[static_cast<size_t>(evicted->page)] = false;
        pool_.drop_owner(*evicted);
      });
      inserted = index_.insert(block == 0 ? nullptr : &parent, id, tokens, tag);
    }
  }
  switch (inserted) {
    case kv::PrefixIndex::Inserted::kYes: {
      const bool published = pool_.publish(tag);
      assert(published);
      (void)published;
      change(tag, [&] {
        (void)pool_.add_owner(tag);
        indexed_[static_cast<size_t>(tag.page)] = true;
      });
      break;
    }
    case kv::PrefixIndex::Inserted::kDuplicate:
      break;  // another page holds it; this one stays private
    case kv::PrefixIndex::Inserted::kNoParent:
    case kv::PrefixIndex::Inserted::kFull:
      table.chained = false;
      break;
  }
}

void KvManager::truncate(SequenceId id, int32_t token_count, int32_t rewritten_from) {
  Table& table = tables_.at(id);
  const size_t blocks = blocks_for(static_cast<size_t>(token_count));
  while (table.tags.size() > blocks) {
    drop(table.tags.back());
    table.tags.pop_back();
    table.pages.pop_back();
  }
  const size_t first = static_cast<size_t>(rewritten_from / block_tokens());
  for (size_t block = first; block < table.tags.size(); ++block) {
    if (pool_.state(table.tags[block].page) == kv::PageState::kFilling) continue;
    // Final bytes are never written again: go on in a private copy. Without a free page the write
    // puts the same bits in place (I13), which harms nobody.
    const auto fresh = obtain();
    if (!fresh) break;
    std::memcpy(arena_.page(fresh->page), arena_.page(table.tags[block].page),
                arena_.layout.page_bytes());
    drop(table.tags[block]);
    table.tags[block] = *fresh;
    table.pages[block] = fresh->page;
  }
  if (table.ids.size() > first) table.ids.resize(first);
}

void KvManager::release(SequenceId id) {
  const auto at = tables_.find(id);
  if (at == tables_.end()) return;
  for (const PageTag tag : at->second.tags) drop(tag);
  tables_.erase(at);
}

std::optional<KvManager::Reservation> KvManager::reserve(SequenceId id,
                                                         std::span<const int32_t> tokens,
                                                         const KvScope& scope,
                                                         int32_t kept_tokens) {
  Table table = make_table(scope);
  const size_t shared =
      share_prefix(table, tokens, tokens.size() / static_cast<size_t>(block_tokens()));
  const size_t blocks = blocks_for(tokens.size());
  // One more page for the first generated tokens, so that a received sequence does not preempt at
  // once; unless the prompt needs all there are.
  const int32_t next = std::min(1, page_count() - static_cast<int32_t>(blocks));
  const auto kept = static_cast<int32_t>(blocks_for(static_cast<size_t>(kept_tokens)));
  if (static_cast<int32_t>(blocks - shared) + std::max(next, kept) > obtainable() ||
      !fill(table, blocks)) {
    for (const PageTag tag : table.tags) drop(tag);
    return std::nullopt;
  }
  table.receiving = true;
  table.first_missing = static_cast<uint32_t>(shared);
  for (size_t block = shared; block < blocks; ++block) {
    change(table.tags[block], [&] { (void)pool_.add_writer(table.tags[block]); });
  }
  Reservation reservation{table.first_missing, table.tags};
  tables_[id] = std::move(table);
  return reservation;
}

void KvManager::receive_done(SequenceId id, std::span<const int32_t> tokens) {
  Table& table = tables_.at(id);
  for (size_t block = table.first_missing; block < table.tags.size(); ++block) {
    change(table.tags[block], [&] { pool_.drop_writer(table.tags[block]); });
  }
  table.receiving = false;
  computed(id, tokens, static_cast<int32_t>(tokens.size()));
}

void KvManager::receive_failed(SequenceId id) {
  const auto at = tables_.find(id);
  if (at == tables_.end()) return;
  if (at->second.receiving) {
    for (size_t block = at->second.first_missing; block < at->second.tags.size(); ++block) {
      change(at->second.tags[block], [&] { pool_.drop_writer(at->second.tags[block]); });
    }
  }
  release(id);
}

void KvManager::add_readers(std::span<const PageTag> tags) {
  for (const PageTag tag : tags) {
    change(tag, [&] { (void)pool_.add_reader(tag); });
  }
}

void KvManager::drop_readers(std::span<const PageTag> tags) {
  for (const PageTag tag : tags) {
    change(tag, [&] { pool_.drop_reader(tag); });
  }
}

}  // namespace tandem::engine
