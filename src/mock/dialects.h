// How each dialect asks for a handoff, and what its prefill server answers with. The shapes are
// those that the engines put on the wire.
#pragma once

#include <string>
#include <vector>

#include "mock/options.h"
#include "mock/request.h"
#include "mock/rooms.h"

namespace tandem::mock {

struct Handoff {
  enum class Kind : uint8_t { kNone, kPrefill, kDecode };
  Kind kind = Kind::kNone;
  std::vector<std::string> ids;  // of the rooms: one for each prompt or choice
  std::string host;              // of prefill's side channel, as decode was told
  uint16_t port = 0;
  std::string engine_id;  // of the prefill that decode was told of; empty: whoever is there
  // The prefill's rank that decode was told of; kAnyRank, or kRankOfRoom: by the room's number.
  static constexpr int32_t kAnyRank = -1;
  static constexpr int32_t kRankOfRoom = -2;
  int32_t rank = kAnyRank;
  bool holds = false;  // prefill answers only once decode has taken its KV
};

// What a server knows of itself.
struct Identity {
  std::string engine_id;  // another after every restart
  std::string bootstrap_host;
  uint16_t bootstrap_port = 0;
  int32_t rank = 0;
};

// The data-parallel rank that takes a request: SGLang's routed_dp_rank, else in a prefill server
// the room's number modulo the ranks; vLLM's header; else one after another. 400 for one there is
// not.
Result<int32_t> pick_rank(const MockOptions& options, const MockRequest& request,
                          std::string_view header, int32_t& next);
int32_t rank_of_room(std::string_view room, int32_t dp_size);

// `request_id`: the client's X-Request-Id, or one that was minted. 400 for a handoff that the
// engine could not run; 500 where the real one breaks.
Result<Handoff> read_handoff(const MockOptions& options, const MockRequest& request,
                             const std::string& request_id, const Identity& me);

// What prefill's whole reply says besides its text.
void add_prefill_result(const MockOptions& options, const MockRequest& request,
                        const Handoff& handoff, const Identity& me, const PromptFacts& facts,
                        JsonValue& reply);

// The cached tokens that a decode server reports.
int64_t cached_by_decode(const MockOptions& options, const MockRequest& request,
                         const PromptFacts& facts);

}  // namespace tandem::mock
