// KvManager: real pages behind the scheduler's KvPort: the pool's life cycle, the prefix index and
// the arena, put together. Owns every page table of this worker.
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
#include <unordered_map>
#include <vector>

#include "engine/scheduler/kv_port.h"
#include "kv/index/prefix_index.h"
#include "kv/pages/page_pool.h"
#include "ops/page_layout.h"
#include "protocol/content_id.h"

namespace tandem::engine {

using kv::PageTag;
using protocol::SequenceId;

struct KvManagerOptions {
  std::string lineage;  // root of every ContentId
  size_t index_bytes = size_t{64} << 20;
  uint64_t first_generation = 1;  // differs between starts of a process
};

class KvManager final : public KvPort {
 public:
  // `on_allocate` announces a page's new generation before its bytes change.
  KvManager(ops::PageArenaView arena, KvManagerOptions options,
            std::function<void(int32_t, uint64_t)> on_allocate = {});

  std::optional<int32_t> admit(SequenceId id, std::span<const int32_t> tokens, const KvScope& scope,
                               int32_t headroom) override;
  bool extend(SequenceId id, int32_t token_count) override;
  std::span<const int32_t> pages(SequenceId id) const override;
  void computed(SequenceId id, std::span<const int32_t> tokens, int32_t computed) override;
  void truncate(SequenceId id, int32_t token_count, int32_t rewritten_from) override;
  void release(SequenceId id) override;

  // The receiving side of a handoff: pages for all of `tokens`, shared where the prefix is here
  // already. Pages from block `first_missing` on have a writer until receive_done or
  // receive_failed. The pages for `kept_tokens` stay obtainable: a sequence waits here for them.
  struct Reservation {
    uint32_t first_missing = 0;
    std::vector<PageTag> pages;
  };
  std::optional<Reservation> reserve(SequenceId id, std::span<const int32_t> tokens,
                                     const KvScope& scope, int32_t kept_tokens = 0);
  void receive_done(SequenceId id,
                    std::span<const int32_t> tokens);  // proven: publishes full blocks
  void receive_failed(SequenceId id);                  // drops everything

  // The sending side.
  std::span<const PageTag> tags(SequenceId id) const;
  void add_readers(std::span<const PageTag> tags);
  void drop_readers(std::span<const PageTag> tags);

  int32_t block_tokens() const { return arena_.layout.block_tokens; }
  int32_t page_count() const { return pool_.page_count(); }
  int32_t free_pages() const { return pool_.free_count(); }
  int32_t cached_pages() const { return idle_; }  // published, used by nobody
  // In use by sequences or transfers: neither free nor merely cached.
  int32_t used_pages() const { return page_count() - free_pages() - idle_; }
  size_t index_bytes() const { return index_.bytes(); }
  uint64_t evictions() const { return evictions_; }

 private:
  struct Table {
    std::vector<PageTag> tags;
    std::vector<int32_t> pages;  // tags' page numbers, for plans
    protocol::ContentId root;
    std::vector<protocol::Extra> extras;   // of every block's id
    std::vector<protocol::ContentId> ids;  // of the leading full blocks examined so far
    bool chained = true;                   // every examined block is in the index
    uint32_t first_missing = 0;            // while receiving
    bool receiving = false;
  };
  int32_t obtainable() const { return pool_.free_count() + idle_; }
  std::optional<PageTag> obtain();
  bool is_idle(int32_t page) const;
  template <typename Change>
  void change(PageTag tag, Change&& change);
  void retain(PageTag tag);
  void drop(PageTag tag);
  Table make_table(const KvScope& scope) const;
  size_t share_prefix(Table& table, std::span<const int32_t> tokens, size_t most_blocks);
  bool fill(Table& table, size_t blocks);
  void publish(Table& table, size_t block, std::span<const int32_t> tokens);
  void push(Table& table, PageTag tag);
  size_t blocks_for(size_t tokens) const;

  ops::PageArenaView arena_;
  KvManagerOptions options_;
  kv::PagePool pool_;
  kv::PrefixIndex index_;
  std::vector<bool> indexed_;  // by page: the index holds one ownership
  std::unordered_map<SequenceId, Table> tables_;
  int32_t idle_ = 0;
  uint64_t evictions_ = 0;
};

}  // namespace tandem::engine
