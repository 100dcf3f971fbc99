// The side of KvManager that integrity asks: expectations, quarantine, what the cache holds, and
// the faults that tests plant.
#include <algorithm>
#include <utility>

#include "kv/manager/kv_manager.h"

namespace tandem::kv {

std::span<const PageExpectation> KvManager::expected(SequenceId id) const {
  const auto found = tables_.find(id);
  if (found == tables_.end()) return {};
  return found->second.expected;
}

std::vector<size_t> KvManager::take_unverified(SequenceId id) {
  const auto found = tables_.find(id);
  if (found == tables_.end()) return {};
  return std::exchange(found->second.unverified, {});
}

bool KvManager::quarantine(int32_t page) {
  if (page < 0 || page >= page_count()) return false;
  std::vector<PageTag> given_back;
  (void)index_.remove(page, given_back);
  for (const PageTag tag : given_back) pool_.drop_owner(tag);
  return pool_.quarantine(page);
}

std::vector<SequenceId> KvManager::users(int32_t page) const {
  std::vector<SequenceId> out;
  for (const auto& [id, table] : tables_) {
    if (std::ranges::find(table.pages, page) != table.pages.end()) out.push_back(id);
  }
  std::ranges::sort(out);
  return out;
}

uint64_t KvManager::scope_of(std::string_view salt) const {
  return content_key(protocol::root_content_id(options_.lineage, block_tokens(), salt));
}

size_t KvManager::drop_cached(const DropFilter& filter) {
  std::vector<protocol::ContentId> chosen;
  index_.visit([&](const PrefixIndex::Block& block) {
    const bool unused = std::ranges::all_of(block.pages, [&](PageTag tag) {
      return tag.page < 0 || (pool_.owners(tag.page) == 1 && pool_.readers(tag.page) == 0);
    });
    if (!unused || (filter.scope && *filter.scope != block.scope)) return;
    if (filter.id_prefix.empty() || block.id->hex().starts_with(filter.id_prefix))
      chosen.push_back(*block.id);
  });
  const size_t before = index_.size();
  act_for(0);
  std::vector<PageTag> given_back;
  for (const protocol::ContentId& id : chosen) (void)index_.remove(id, given_back);
  for (const PageTag tag : given_back) pool_.drop_owner(tag);
  return before - index_.size();
}

// --- planted faults --------------------------------------------------------------------------

// Another sequence that computes here, with pages of its own.
KvManager::Table* KvManager::other_table(const Table& table) {
  for (auto& [id, other] : tables_) {
    if (&other != &table && other.first_missing.empty() && !other.tags.empty()) return &other;
  }
  return nullptr;
}

void KvManager::plant_in_table(Table& table) {
  if (options_.planted.kind == KvFault::kSwapPages) {
    Table* const other = other_table(table);
    if (other == nullptr) return;
    for (size_t at = 0; at < std::min(table.tags.size(), other->tags.size()); ++at) {
      const bool both = table.tags[at].page >= 0 && other->tags[at].page >= 0;
      if (!both || table.tags[at] == other->tags[at]) continue;
      if (!options_.planted.due(KvFault::kSwapPages)) return;
      std::swap(table.tags[at], other->tags[at]);
      std::swap(table.pages[at], other->pages[at]);
      return;
    }
  } else if (options_.planted.kind == KvFault::kFreeEarly) {
    for (const PageTag tag : table.tags) {
      if (tag.page < 0 || !pool_.is_current(tag) || pool_.owners(tag.page) != 1 ||
          pool_.readers(tag.page) != 0)
        continue;
      if (options_.planted.due(KvFault::kFreeEarly)) pool_.drop_owner(tag);
      return;
    }
  }
}

// The cache answers with an entry that it should have forgotten: its page holds another's block
// now.
void KvManager::plant_in_hit(Table& table) {
  if (options_.planted.kind != KvFault::kStaleGeneration) return;
  const Table* const other = other_table(table);
  if (other == nullptr || other->tags[0].page < 0 || other->tags[0] == table.tags[0]) return;
  if (!options_.planted.due(KvFault::kStaleGeneration)) return;
  drop(table.tags[0]);
  const PageTag stale{other->tags[0].page, other->tags[0].generation - 1};
  set(table, 0, stale, table.expected.empty() ? 0 : table.expected[0].key);
}

// A finished block that nobody else computes on, as its sequence leaves it behind.
void KvManager::plant_in_cache(const Table& table) {
  if (table.tags.empty() || table.tags[0].page < 0 || !index_.holds(table.tags[0].page)) return;
  for (const KvFault fault : {KvFault::kFlipBit, KvFault::kLostLayer}) {
    if (options_.planted.due(fault) && memory_.spoil) memory_.spoil(table.tags[0].page, fault);
  }
}

}  // namespace tandem::kv
