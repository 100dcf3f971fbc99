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
  bool reuse = true;    // false: every row is computed here, because something is read off it
};

class KvPort {
 public:
  virtual ~KvPort() = default;

  // Gives the sequence pages for all of `tokens`, the longest cached prefix shared and the rest
  // fresh, evicting unused cached blocks where needed. Returns the tokens whose KV is there
  // already: whole blocks, fewer than tokens.size(), so that at least one row is computed. Nothing
  // is taken when it does not fit. At least `headroom` pages must stay obtainable afterwards.
  virtual std::optional<int32_t> admit(protocol::SequenceId id, std::span<const int32_t> tokens,
                                       const KvScope& scope, int32_t headroom) = 0;
  // Makes the page table cover `token_count` tokens; false when no page can be had.
  virtual bool extend(protocol::SequenceId id, int32_t token_count) = 0;
  virtual std::span<const int32_t> pages(protocol::SequenceId id) const = 0;
  // KV of tokens[0, computed) is final: full blocks among them may be published. Only verified
  // tokens come here.
  virtual void computed(protocol::SequenceId id, std::span<const int32_t> tokens,
                        int32_t computed) = 0;
  // Drops the pages past the first `token_count` tokens. Positions from `rewritten_from` on will be
  // written again, so pages that hold them must be private.
  virtual void truncate(protocol::SequenceId id, int32_t token_count, int32_t rewritten_from) = 0;
  virtual void release(protocol::SequenceId id) = 0;
};

}  // namespace tandem::engine
