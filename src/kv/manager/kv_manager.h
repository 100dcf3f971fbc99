// KvManager: pages behind the scheduler's KvPort: the pool's life cycle and the prefix index, put
// together. Owns every page table of this worker. Pure: the memory is the caller's, and it is asked
// for what touches bytes (PageMemory).
//
// A block has one page for each page group. Groups that attend to everything get all of a prompt's
// pages at admission and keep them. Groups with a window get theirs as passes are planned and give
// them back once no row that may still come can see them; what such a sequence may still take at
// once is promised to it, so that nobody else's growth can stop its prompt half-way. Pages given
// back stay published and are the first to be evicted.
//
// A block is published when every layer of it is computed or received and proven, whoever computed
// it: prompt or generated, prefill or decode. Published blocks that no sequence uses stay until
// their pages are needed. One owner thread (the engine's).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/scheduler/kv_port.h"
#include "kv/index/prefix_index.h"
#include "kv/integrity/tracker.h"
#include "kv/manager/kv_observer.h"
#include "kv/pages/page_pool.h"
#include "protocol/content_id.h"

namespace tandem::kv {

using engine::KvScope;
using protocol::SequenceId;

// Switches off one protection each, for tests that prove the protection is needed.
struct KvManagerFaults {
  PoolFaults pool = {};
  bool publish_unproven = false;  // blocks are published when they are reserved, not when received
  bool ignore_adapter = false;    // an adapter is no part of a block's identity
};

struct KvManagerOptions {
  int32_t page_count = 0;
  int32_t block_tokens = 16;
  std::string lineage;  // root of every ContentId
  size_t index_bytes = size_t{64} << 20;
  uint64_t first_generation = 1;    // differs between starts of a process
  std::vector<int32_t> windows{0};  // by page group, 0: attends to everything
  int32_t rows_in_flight = 256;     // most rows of one sequence that passes hold at once
  // A sequence can be rolled back so far without being computed again.
  int32_t roll_back_tokens = 16;
  KvManagerFaults faults = {};
  KvFaults planted = {};           // for tests
  KvObserver* observer = nullptr;  // of published blocks; outlives the manager
};

// How many pages sequences take.
struct PageDemand {
  int32_t block_tokens = 16;
  std::vector<int32_t> windows{0};
  int32_t rows_in_flight = 256;
  int32_t kept_tokens = 16;  // behind the window: for roll-backs and for the next turn's hit

  size_t groups() const { return windows.size(); }
  size_t blocks_for(size_t tokens) const;
  // Most pages that one group holds at once for a sequence of `tokens`.
  size_t group_peak(int32_t window, size_t tokens) const;
  size_t peak(size_t tokens) const;  // all groups together
  // The longest sequence that `pages` can hold, at most `limit`.
  int32_t longest(int32_t pages, int32_t limit) const;
};

PageDemand page_demand(const KvManagerOptions& options);

// What happens to the pages' bytes, on the owner thread.
struct PageMemory {
  // Announces a page's new generation before its bytes change.
  std::function<void(int32_t page, uint64_t generation)> on_allocate = {};
  // Copies all bytes of a page into a fresh one (a roll-back into final bytes).
  std::function<void(int32_t from, int32_t to)> copy = {};
  // For tests: damages a page's bytes as the fault says.
  std::function<void(int32_t page, KvFault fault)> spoil = {};
};

// Which unused cached blocks to give up: all, or those that fit.
struct DropFilter {
  std::string id_prefix = {};  // of the id, in hexadecimal
  std::optional<uint64_t> scope = {};
};

class KvManager final : public engine::KvPort {
 public:
  // `tracker` outlives this object; null or of level off: nothing is kept for it.
  KvManager(KvManagerOptions options, PageMemory memory, IntegrityTracker* tracker = nullptr);

  std::optional<int32_t> admit(SequenceId id, std::span<const int32_t> tokens, const KvScope& scope,
                               int32_t headroom) override;
  int32_t expect_cached(SequenceId id, std::span<const int32_t> tokens,
                        const KvScope& scope) override;
  bool extend(SequenceId id, int32_t token_count) override;
  std::span<const int32_t> pages(SequenceId id, int32_t token_count) const override;
  void computed(SequenceId id, std::span<const int32_t> tokens, int32_t computed) override;
  bool truncate(SequenceId id, int32_t token_count, int32_t rewritten_from) override;
  void release(SequenceId id) override;
  bool could_fit(int32_t token_count) const override;
  // Sequences that were asked for or found no room and are neither in nor released yet.
  size_t may_come() const { return may_come_.size(); }

  // The receiving side of a handoff: pages for what is live at the end of `tokens`, shared where
  // it is here already. In group g the pages from block first_missing[g] on have a writer until
  // receive_done or receive_failed. The pages for `kept_tokens` stay obtainable: a sequence waits
  // here for them. One that finds no room may try again, as with admit(), or is released.
  struct Reservation {
    std::vector<uint32_t> first_missing;  // by group
    std::vector<PageTag> pages;           // [block][group]; page -1: not live
  };
  std::optional<Reservation> reserve(SequenceId id, std::span<const int32_t> tokens,
                                     const KvScope& scope, int32_t kept_tokens = 0);
  void receive_done(SequenceId id,
                    std::span<const int32_t> tokens);  // proven: publishes full blocks
  // Drops everything. `may_be_written`: the transport cannot say that it has stopped writing, so
  // the pages keep their writers, and with them stay out of use, until this process ends.
  void receive_failed(SequenceId id, bool may_be_written = false);

  // The sending side. [block][group], like pages().
  std::span<const PageTag> tags(SequenceId id) const;
  // Every sequence that has a page table, in no order.
  std::vector<SequenceId> sequences() const;
  void add_readers(std::span<const PageTag> tags);
  void drop_readers(std::span<const PageTag> tags);

  bool holds(SequenceId id) const { return tables_.contains(id); }

  // --- integrity
  // What the sequence believes of each of its places; empty when it is unknown or nothing is kept.
  std::span<const PageExpectation> expected(SequenceId id) const;
  // Places that came from the cache and whose bytes were not compared since; each is told once.
  std::vector<size_t> take_unverified(SequenceId id);
  // Takes the page's block out of the index and the page out of use (see PagePool::quarantine).
  // False when it is so already.
  bool quarantine(int32_t page);
  std::vector<SequenceId> users(int32_t page) const;  // whose tables name it
  // What a block's scope is made from: the same for one salt of this model.
  uint64_t scope_of(std::string_view salt) const;
  // Blocks given up.
  size_t drop_cached(const DropFilter& filter);
  const PrefixIndex& index() const { return index_; }

  const PageDemand& demand() const { return demand_; }
  int32_t block_tokens() const { return demand_.block_tokens; }
  int32_t page_count() const { return pool_.page_count(); }
  int32_t free_pages() const { return pool_.free_count(); }
  int32_t cached_pages() const { return index_.idle_pages(); }  // published, used by nobody
  // In use by sequences or transfers: neither free nor merely cached.
  int32_t used_pages() const {
    return page_count() - free_pages() - cached_pages() - pool_.lost_count();
  }
  size_t index_bytes() const { return index_.bytes(); }
  uint64_t evictions() const { return evictions_; }            // pages
  uint64_t windows_passed() const { return windows_passed_; }  // pages given back early
  // Lost to writers that may still write. They count as used.
  int32_t unfenced_pages() const { return unfenced_pages_; }
  const PagePool& pool() const { return pool_; }

 private:
  struct Table {
    std::vector<PageTag> tags;   // [block][group]
    std::vector<int32_t> pages;  // tags' page numbers, for plans
    SequenceId id = 0;
    // Kept apart from the two above, so that what mixes them up does not reach it.
    std::vector<PageExpectation> expected;
    std::vector<size_t> unverified;  // see take_unverified
    size_t full_blocks = 0;          // blocks whose pages it has, in groups without a window
    size_t window_blocks = 0;        // and in groups with one, from `front` on
    std::vector<size_t> front;   // by group: pages of earlier blocks were given back or never had
    size_t promised_blocks = 0;  // window groups: pages up to here were promised at admission
    protocol::ContentId root;
    std::vector<protocol::Extra> extras;   // of every block's id
    std::vector<protocol::ContentId> ids;  // of the leading full blocks examined so far
    bool chained = true;                   // every examined block is in the index
    std::vector<uint32_t> first_missing;   // while receiving, by group
  };
  int64_t obtainable() const { return pool_.free_count() + index_.idle_pages(); }
  int64_t promised(const Table& table) const;
  int64_t promised_to_others(const Table* table) const;
  PageTag obtain(SequenceId owner, size_t place);  // there must be one
  void let_go(const std::vector<PageTag>& tags);
  void update_idle(int32_t page, bool passed = false);
  void retain(PageTag tag);
  void drop(PageTag tag, bool passed = false);
  size_t slot(size_t block, size_t group) const { return block * demand_.groups() + group; }
  // `key`: see PageExpectation.
  void set(Table& table, size_t slot, PageTag tag, uint64_t key);
  void share(Table& table, size_t slot, PageTag tag, const protocol::ContentId& content);
  void resize(Table& table, size_t places) const;
  void act_for(SequenceId id) {
    if (tracker_ != nullptr) tracker_->set_actor(id);
  }
  // Planted faults.
  void plant_in_table(Table& table);
  void plant_in_hit(Table& table);
  void plant_in_cache(const Table& table);
  Table* other_table(const Table& table);
  void drop_slot(Table& table, size_t slot, bool passed = false);
  void make_room(Table& table, size_t blocks) const;
  void fill(Table& table, size_t full_blocks, size_t window_blocks);
  void pass_windows(Table& table, int32_t computed);
  Table make_table(SequenceId id, const KvScope& scope) const;
  std::vector<protocol::ContentId> chain_of(SequenceId id, const Table& table,
                                            std::span<const int32_t> tokens);
  static bool expects(const Table& table, size_t place, PageTag tag);
  void publish(Table& table, size_t block, std::span<const int32_t> tokens);
  void end_writing(Table& table, bool may_be_written = false);

  KvManagerOptions options_;
  PageMemory memory_;
  PageDemand demand_;
  int32_t full_groups_ = 0;
  PagePool pool_;
  PrefixIndex index_;
  IntegrityTracker* tracker_;
  std::unordered_map<SequenceId, Table> tables_;
  // The ids of their whole blocks, see may_come(): they are looked at before every pass.
  std::unordered_map<SequenceId, std::vector<protocol::ContentId>> may_come_;
  uint64_t evictions_ = 0;
  uint64_t windows_passed_ = 0;
  int32_t unfenced_pages_ = 0;
};

}  // namespace tandem::kv
