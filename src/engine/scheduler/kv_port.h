// KvPort: what the scheduler asks of paged memory. The engine implements it over real pages, tests
// over counts.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "protocol/step_plan.h"

namespace tandem::engine {

// Which blocks a sequence may share.
struct KvScope {
  std::string salt = {};     // of the request's ContentIds
  std::string adapter = {};  // LoRA adapter by name, empty: the base model; part of every ContentId
  bool reuse = true;         // false: every row is computed here, because something is read off it
};

class KvPort {
 public:
  virtual ~KvPort() = default;

  // Takes the sequence in: the longest cached prefix is shared, the pages that it keeps for all of
  // `tokens` are given, and those it needs only for a while (groups with a window) are promised:
  // extend() gives them as rows come near. Evicts unused cached blocks where needed. Returns the
  // tokens whose KV is there already: whole blocks, fewer than tokens.size(), so that at least one
  // row is computed. Nothing is taken when it does not fit: the sequence may come again, with the
  // same tokens and scope, or is released. Pages for the next block of at least
  // `headroom` sequences must stay obtainable afterwards.
  virtual std::optional<int32_t> admit(protocol::SequenceId id, std::span<const int32_t> tokens,
                                       const KvScope& scope, int32_t headroom) = 0;
  // Roughly how many tokens admit() would find, for the order of turns only: takes nothing. The
  // sequence is then one that may come (see admit), with the same tokens and scope.
  virtual int32_t expect_cached(protocol::SequenceId id, std::span<const int32_t> tokens,
                                const KvScope& scope) = 0;
  // Makes the page table cover `token_count` tokens; false, and nothing is taken, when the pages
  // cannot be had. For promised pages that happens only while a peer still reads some.
  virtual bool extend(protocol::SequenceId id, int32_t token_count) = 0;
  // The page table of the first `token_count` tokens, [block][group]; -1 where the window passed.
  virtual std::span<const int32_t> pages(protocol::SequenceId id, int32_t token_count) const = 0;
  // KV of tokens[0, computed) is final: full blocks among them may be published, and pages that
  // no row from `computed` on can see are given back. Only verified tokens come here.
  virtual void computed(protocol::SequenceId id, std::span<const int32_t> tokens,
                        int32_t computed) = 0;
  // Drops the pages past the first `token_count` tokens. Positions from `rewritten_from` on will be
  // written again, so pages that hold them must be private. False when that cannot be, because
  // memory is short or a window has passed: then the sequence must be computed again.
  virtual bool truncate(protocol::SequenceId id, int32_t token_count, int32_t rewritten_from) = 0;
  virtual void release(protocol::SequenceId id) = 0;
  // Whether a sequence of so many tokens could be admitted here if nobody else were. False once too
  // many pages are lost to quarantine.
  virtual bool could_fit(int32_t token_count) const = 0;
};

}  // namespace tandem::engine
