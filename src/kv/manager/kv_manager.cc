#include "kv/manager/kv_manager.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "protocol/page_window.h"

namespace tandem::kv {

KvManager::KvManager(KvManagerOptions options, PageMemory memory, IntegrityTracker* tracker)
    : options_(std::move(options)),
      memory_(std::move(memory)),
      demand_(page_demand(options_)),
      full_groups_(static_cast<int32_t>(std::ranges::count(demand_.windows, 0))),
      pool_(options_.page_count, memory_.on_allocate, options_.first_generation),
      index_({.block_tokens = options_.block_tokens,
              .windows = demand_.windows,
              .page_count = options_.page_count},
             options_.index_bytes),
      tracker_(tracker != nullptr && tracker->level() != IntegrityLevel::kOff ? tracker : nullptr) {
  pool_.set_observer(tracker_);
  pool_.set_faults(options_.faults.pool);
  if (options_.observer != nullptr)
    index_.on_erase([this](const protocol::ContentId& id) { options_.observer->removed(id); });
}

// --- pages ---------------------------------------------------------------------------------

// After every change of a count: the index lists what nobody uses.
void KvManager::update_idle(int32_t page, bool passed) {
  if (!index_.holds(page)) return;
  const bool idle = pool_.owners(page) == 1 && pool_.readers(page) == 0 && pool_.writers(page) == 0;
  index_.set_idle(page, idle, passed);
}

void KvManager::retain(PageTag tag) {
  const bool current = pool_.add_owner(tag);
  assert(current);
  (void)current;
  update_idle(tag.page);
}

void KvManager::drop(PageTag tag, bool passed) {
  pool_.drop_owner(tag);
  update_idle(tag.page, passed);
}

void KvManager::let_go(const std::vector<PageTag>& tags) {
  evictions_ += tags.size();
  for (const PageTag tag : tags) pool_.drop_owner(tag);
}

KvManager::Table KvManager::make_table(SequenceId id, const KvScope& scope) const {
  Table table;
  table.id = id;
  table.root = protocol::root_content_id(options_.lineage, block_tokens(), scope.salt);
  if (!scope.adapter.empty() && !options_.faults.ignore_adapter)
    table.extras.push_back({protocol::ExtraKind::kAdapter, scope.adapter});
  return table;
}

std::vector<protocol::ContentId> KvManager::chain_of(SequenceId id, const Table& table,
                                                     std::span<const int32_t> tokens) {
  const auto before = may_come_.extract(id);
  if (!before.empty() &&
      before.mapped().size() == tokens.size() / static_cast<size_t>(block_tokens()))
    return std::move(before.mapped());
  return protocol::content_ids(table.root, tokens, block_tokens(), table.extras);
}

PageTag KvManager::obtain(SequenceId owner, size_t place) {
  std::vector<PageTag> given_back;
  while (pool_.free_count() == 0 && index_.evict_page(given_back)) {
    let_go(given_back);
    given_back.clear();
  }
  const auto tag = pool_.allocate();
  assert(tag);
  if (tracker_ != nullptr) tracker_->allocated(*tag, owner, static_cast<int32_t>(place));
  return *tag;
}

// What the table may still take at once in its window groups. A page that others share does not
// count as taken: when this sequence gives it back nothing comes free.
int64_t KvManager::promised(const Table& table) const {
  if (table.promised_blocks <= table.window_blocks) return 0;
  const auto left = static_cast<int64_t>(table.promised_blocks - table.window_blocks);
  int64_t total = 0;
  for (size_t group = 0; group < demand_.groups(); ++group) {
    const int32_t window = demand_.windows[group];
    if (window == 0) continue;
    auto open = static_cast<int64_t>(
        demand_.group_peak(window, table.promised_blocks * static_cast<size_t>(block_tokens())));
    for (size_t block = table.front[group]; block < table.window_blocks; ++block) {
      const int32_t page = table.pages[slot(block, group)];
      open -= pool_.owners(page) - (index_.holds(page) ? 1U : 0U) == 1 ? 1 : 0;
    }
    total += std::clamp<int64_t>(open, 0, left);
  }
  return total;
}

int64_t KvManager::promised_to_others(const Table* table) const {
  if (full_groups_ == static_cast<int32_t>(demand_.groups())) return 0;
  int64_t total = 0;
  for (const auto& [id, other] : tables_) total += &other == table ? 0 : promised(other);
  return total;
}

// --- tables --------------------------------------------------------------------------------

void KvManager::set(Table& table, size_t slot, PageTag tag, uint64_t key) {
  table.tags[slot] = tag;
  table.pages[slot] = tag.page;
  if (tracker_ != nullptr) table.expected[slot] = {tag.generation, key, tag.page};
}

// A page that is here already, because it holds what this sequence's own tokens demand.
void KvManager::share(Table& table, size_t slot, PageTag tag, const protocol::ContentId& content) {
  retain(tag);
  set(table, slot, tag, content_key(content));
  if (tracker_ != nullptr && tracker_->level() == IntegrityLevel::kFull)
    table.unverified.push_back(slot);
}

void KvManager::resize(Table& table, size_t places) const {
  table.tags.resize(places);
  table.pages.resize(places, -1);
  if (tracker_ != nullptr) table.expected.resize(places);
}

void KvManager::drop_slot(Table& table, size_t slot, bool passed) {
  const PageTag tag = table.tags[slot];
  if (tag.page < 0) return;
  set(table, slot, PageTag{}, 0);
  drop(tag, passed);
}

void KvManager::make_room(Table& table, size_t blocks) const {
  if (table.tags.size() >= blocks * demand_.groups()) return;
  resize(table, blocks * demand_.groups());
}

// The pages must be obtainable.
void KvManager::fill(Table& table, size_t full_blocks, size_t window_blocks) {
  make_room(table, std::max(full_blocks, window_blocks));
  for (size_t group = 0; group < demand_.groups(); ++group) {
    const bool full = demand_.windows[group] == 0;
    const size_t end = full ? full_blocks : window_blocks;
    for (size_t block = full ? table.full_blocks : table.window_blocks; block < end; ++block)
      set(table, slot(block, group), obtain(table.id, slot(block, group)), owner_key(table.id));
  }
  table.full_blocks = std::max(table.full_blocks, full_blocks);
  table.window_blocks = std::max(table.window_blocks, window_blocks);
}

std::optional<int32_t> KvManager::admit(SequenceId id, std::span<const int32_t> tokens,
                                        const KvScope& scope, int32_t headroom) {
  const auto block = static_cast<size_t>(block_tokens());
  act_for(id);
  Table& table = tables_[id] = make_table(id, scope);
  // The last token is always computed: its logits are wanted.
  const size_t most = scope.reuse ? (tokens.size() - 1) / block : 0;
  auto chain = chain_of(id, table, tokens.first(most * block));
  auto match = index_.match(chain, tokens);
  const size_t shared = match.blocks;
  table.ids.assign(chain.begin(), chain.begin() + static_cast<std::ptrdiff_t>(shared));
  make_room(table, shared);
  for (size_t at = 0; at < match.pages.size(); ++at) {
    if (match.pages[at].page >= 0) share(table, at, match.pages[at], chain[at / demand_.groups()]);
  }
  table.full_blocks = table.window_blocks = shared;
  for (const int32_t window : demand_.windows) {
    table.front.push_back(static_cast<size_t>(
        protocol::first_live_block(window, static_cast<int64_t>(shared * block), block_tokens())));
  }
  table.promised_blocks = demand_.blocks_for(tokens.size());
  const auto needed = static_cast<int64_t>(table.promised_blocks - shared) * full_groups_;
  const int64_t kept = static_cast<int64_t>(headroom) * static_cast<int64_t>(demand_.groups());
  if (needed + promised_to_others(nullptr) + kept > obtainable()) {
    release(id);
    may_come_.emplace(id, std::move(chain));
    return std::nullopt;
  }
  fill(table, table.promised_blocks, 0);
  if (options_.planted.kind != KvFault::kNone && shared > 0) plant_in_hit(table);
  return static_cast<int32_t>(shared * block);
}

// A block is in the index only where those before it are, so halving finds the last one.
int32_t KvManager::expect_cached(SequenceId id, std::span<const int32_t> tokens,
                                 const KvScope& scope) {
  const auto block = static_cast<size_t>(block_tokens());
  if (!scope.reuse || tokens.size() <= block) return 0;
  auto chain =
      chain_of(id, make_table(id, scope), tokens.first((tokens.size() - 1) / block * block));
  const auto end = std::ranges::partition_point(
      chain, [&](const protocol::ContentId& content) { return index_.contains(content); });
  const auto there = static_cast<size_t>(end - chain.begin());
  may_come_.insert_or_assign(id, std::move(chain));
  return static_cast<int32_t>(there * block);
}

bool KvManager::extend(SequenceId id, int32_t token_count) {
  act_for(id);
  Table& table = tables_.at(id);
  const size_t blocks = demand_.blocks_for(static_cast<size_t>(token_count));
  const auto more = [&](size_t have) {
    return static_cast<int64_t>(blocks - std::min(have, blocks));
  };
  const int64_t needed =
      more(table.full_blocks) * full_groups_ +
      more(table.window_blocks) * (static_cast<int64_t>(demand_.groups()) - full_groups_);
  if (needed > 0) {
    if (needed + promised_to_others(&table) > obtainable()) return false;
    fill(table, blocks, blocks);
  }
  if (options_.planted.kind != KvFault::kNone) plant_in_table(table);
  return true;
}

std::span<const int32_t> KvManager::pages(SequenceId id, int32_t token_count) const {
  const std::vector<int32_t>& pages = tables_.at(id).pages;
  const size_t wanted = demand_.blocks_for(static_cast<size_t>(token_count)) * demand_.groups();
  return std::span(pages).first(std::min(wanted, pages.size()));
}

std::vector<SequenceId> KvManager::sequences() const {
  std::vector<SequenceId> out;
  out.reserve(tables_.size());
  for (const auto& [id, table] : tables_) out.push_back(id);
  return out;
}

std::span<const PageTag> KvManager::tags(SequenceId id) const { return tables_.at(id).tags; }

void KvManager::computed(SequenceId id, std::span<const int32_t> tokens, int32_t computed) {
  act_for(id);
  Table& table = tables_.at(id);
  const auto block = static_cast<size_t>(block_tokens());
  while (table.chained && (table.ids.size() + 1) * block <= static_cast<size_t>(computed)) {
    publish(table, table.ids.size(), tokens.subspan(table.ids.size() * block, block));
  }
  pass_windows(table, computed);
}

// Rows that may still come, planned ones and those after a roll-back, are at `computed` -
// kept_tokens or later.
void KvManager::pass_windows(Table& table, int32_t computed) {
  const int64_t oldest = std::max<int64_t>(int64_t{computed} - demand_.kept_tokens, 0);
  for (size_t group = 0; group < demand_.groups(); ++group) {
    const auto live = static_cast<size_t>(
        protocol::first_live_block(demand_.windows[group], oldest, block_tokens()));
    for (; table.front[group] < std::min(live, table.window_blocks); ++table.front[group]) {
      drop_slot(table, slot(table.front[group], group), /*passed=*/true);
      ++windows_passed_;
    }
  }
}

bool KvManager::expects(const Table& table, size_t place, PageTag tag) {
  const PageExpectation& expected = table.expected[place];
  return expected.page == tag.page && expected.generation == tag.generation;
}

void KvManager::publish(Table& table, size_t block, std::span<const int32_t> tokens) {
  const protocol::ContentId parent = block == 0 ? table.root : table.ids[block - 1];
  const protocol::ContentId id = protocol::next_content_id(parent, tokens, table.extras);
  const auto pages = std::span(table.tags).subspan(slot(block, 0), demand_.groups());
  table.ids.push_back(id);
  for (size_t group = 0; group < pages.size(); ++group) {
    const PageTag tag = pages[group];
    if (tag.page < 0) continue;
    // A table that was mixed up since its pass was checked gives no name to another's bytes.
    const bool own = tracker_ == nullptr || expects(table, slot(block, group), tag);
    const bool proven = own && pool_.is_current(tag) && !pool_.quarantined(tag.page) &&
                        (pool_.state(tag.page) != PageState::kFilling || pool_.mark_verified(tag));
    if (!proven) {  // a writer is active, the page is not this sequence's any more, or is bad
      table.chained = false;
      return;
    }
  }
  std::vector<PageTag> adopted;
  bool fresh = false;
  const auto insert = [&] {
    const size_t before = index_.size();
    const auto done = index_.insert(block == 0 ? nullptr : &parent, id, tokens, pages, adopted,
                                    content_key(table.root));
    fresh = index_.size() > before;
    return done;
  };
  auto inserted = insert();
  if (inserted == PrefixIndex::Inserted::kFull) {
    std::vector<PageTag> given_back;
    const bool evicted = index_.evict_node(given_back);
    let_go(given_back);
    if (evicted) inserted = insert();
  }
  for (const PageTag tag : adopted) {
    // One that was published and lost its place in the index comes back as it is.
    if (pool_.state(tag.page) == PageState::kVerified) (void)pool_.publish(tag);
    assert(pool_.state(tag.page) == PageState::kPublished);
    if (tracker_ != nullptr) tracker_->published(tag, content_key(id));
    retain(tag);
  }
  table.chained =
      inserted == PrefixIndex::Inserted::kYes || inserted == PrefixIndex::Inserted::kDuplicate;
  if (fresh && table.chained && options_.observer != nullptr) {
    options_.observer->stored(
        {.parent = block == 0 ? nullptr : &parent,
         .id = id,
         .tokens = tokens,
         .adapter = table.extras.empty() ? std::string_view() : table.extras[0].value,
         .root = table.root});
  }
}

bool KvManager::truncate(SequenceId id, int32_t token_count, int32_t rewritten_from) {
  act_for(id);
  Table& table = tables_.at(id);
  for (size_t group = 0; group < demand_.groups(); ++group) {
    const auto live = static_cast<size_t>(
        protocol::first_live_block(demand_.windows[group], rewritten_from, block_tokens()));
    if (table.front[group] > live) return false;
  }
  const size_t blocks = demand_.blocks_for(static_cast<size_t>(token_count));
  for (size_t at = table.tags.size(); at-- > blocks * demand_.groups();) drop_slot(table, at);
  resize(table, std::min(table.tags.size(), blocks * demand_.groups()));
  std::erase_if(table.unverified, [&](size_t at) { return at >= table.tags.size(); });
  table.full_blocks = std::min(table.full_blocks, blocks);
  table.window_blocks = std::min(table.window_blocks, blocks);
  // Final bytes, and those that a peer reads, are never written again: the sequence goes on in
  // private copies.
  const auto first = static_cast<size_t>(rewritten_from / block_tokens());
  std::vector<size_t> final;
  for (size_t at = slot(first, 0); at < table.tags.size(); ++at) {
    const int32_t page = table.pages[at];
    if (page < 0) continue;
    const bool filling = pool_.state(page) == PageState::kFilling;
    if (!filling || pool_.readers(page) > 0) final.push_back(at);
  }
  if (static_cast<int64_t>(final.size()) + promised_to_others(&table) > obtainable()) return false;
  for (const size_t at : final) {
    const PageTag fresh = obtain(id, at);
    if (memory_.copy) memory_.copy(table.pages[at], fresh.page);
    drop_slot(table, at);
    set(table, at, fresh, owner_key(id));
  }
  if (table.ids.size() > first) table.ids.resize(first);
  return true;
}

bool KvManager::could_fit(int32_t token_count) const {
  const int32_t lost = std::max(unfenced_pages_, pool_.quarantined_count());
  return static_cast<int64_t>(demand_.peak(static_cast<size_t>(token_count))) <=
         int64_t{page_count()} - lost;
}

// Deepest first, so that leaves are idle before their parents.
void KvManager::release(SequenceId id) {
  may_come_.erase(id);
  const auto found = tables_.find(id);
  if (found == tables_.end()) return;
  act_for(id);
  Table& table = found->second;
  if (options_.planted.kind != KvFault::kNone) plant_in_cache(table);
  for (size_t block = table.tags.size() / demand_.groups(); block-- > 0;) {
    for (const bool windows : {true, false}) {
      for (size_t group = 0; group < demand_.groups(); ++group) {
        if ((demand_.windows[group] != 0) == windows) drop_slot(table, slot(block, group));
      }
    }
  }
  tables_.erase(found);
}

// --- handoffs ------------------------------------------------------------------------------

std::optional<KvManager::Reservation> KvManager::reserve(SequenceId id,
                                                         std::span<const int32_t> tokens,
                                                         const KvScope& scope,
                                                         int32_t kept_tokens) {
  const size_t blocks = demand_.blocks_for(tokens.size());
  const size_t groups = demand_.groups();
  act_for(id);
  Table& table = tables_[id] = make_table(id, scope);
  auto chain = chain_of(id, table, tokens);
  const auto present = index_.present(chain, tokens);
  make_room(table, blocks);
  table.full_blocks = table.window_blocks = blocks;
  int64_t needed = 0;
  int64_t total = 0;
  size_t examined = present.blocks;
  for (size_t group = 0; group < groups; ++group) {
    auto block = static_cast<size_t>(protocol::first_live_block(
        demand_.windows[group], static_cast<int64_t>(tokens.size()), block_tokens()));
    table.front.push_back(block);
    total += static_cast<int64_t>(blocks - block);
    for (; block < present.blocks && present.pages[slot(block, group)].page >= 0; ++block) {
      share(table, slot(block, group), present.pages[slot(block, group)], chain[block]);
    }
    table.first_missing.push_back(static_cast<uint32_t>(block));
    needed += static_cast<int64_t>(blocks - block);
    examined = std::min(examined, block);
  }
  table.ids.assign(chain.begin(), chain.begin() + static_cast<std::ptrdiff_t>(examined));
  // One more block for the first generated tokens, so that a received sequence does not preempt at
  // once; unless the prompt needs all there is.
  const int64_t next = std::clamp<int64_t>(page_count() - total, 0, static_cast<int64_t>(groups));
  const auto kept = static_cast<int64_t>(demand_.peak(static_cast<size_t>(kept_tokens)));
  if (needed + std::max(next, kept) + promised_to_others(&table) > obtainable()) {
    release(id);
    may_come_.emplace(id, std::move(chain));
    return std::nullopt;
  }
  for (size_t group = 0; group < groups; ++group) {
    for (size_t block = table.first_missing[group]; block < blocks; ++block) {
      const PageTag tag = obtain(id, slot(block, group));
      if (!options_.faults.publish_unproven) (void)pool_.add_writer(tag);
      set(table, slot(block, group), tag, owner_key(id));
    }
  }
  if (options_.faults.publish_unproven) computed(id, tokens, static_cast<int32_t>(tokens.size()));
  return Reservation{table.first_missing, table.tags};
}

void KvManager::receive_done(SequenceId id, std::span<const int32_t> tokens) {
  Table& table = tables_.at(id);
  end_writing(table);
  computed(id, tokens, static_cast<int32_t>(tokens.size()));
}

void KvManager::receive_failed(SequenceId id, bool may_be_written) {
  const auto found = tables_.find(id);
  if (found == tables_.end()) return;
  end_writing(found->second, may_be_written);
  release(id);
}

void KvManager::end_writing(Table& table, bool may_be_written) {
  act_for(table.id);
  for (size_t group = 0; group < table.first_missing.size(); ++group) {
    const size_t blocks = table.tags.size() / demand_.groups();
    for (size_t block = table.first_missing[group]; block < blocks; ++block) {
      const PageTag tag = table.tags[slot(block, group)];
      if (may_be_written) {
        ++unfenced_pages_;
        (void)pool_.quarantine(tag.page);
        continue;
      }
      pool_.drop_writer(tag);
      update_idle(tag.page);
    }
  }
  table.first_missing.clear();
}

void KvManager::add_readers(std::span<const PageTag> tags) {
  act_for(0);
  for (const PageTag tag : tags) {
    if (pool_.add_reader(tag)) update_idle(tag.page);
  }
}

void KvManager::drop_readers(std::span<const PageTag> tags) {
  act_for(0);
  for (const PageTag tag : tags) {
    if (pool_.drop_reader(tag)) update_idle(tag.page);
  }
}

}  // namespace tandem::kv
