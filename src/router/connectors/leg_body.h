// What a connector's row says, done to one leg of one attempt.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/body_pieces.h"
#include "base/result.h"
#include "router/connectors/connector.h"
#include "router/connectors/facts.h"
#include "router/connectors/harvest.h"

namespace tandem::router {

// What is known of a prefill worker's side of the handoff (IdentitySource); empty fields: not
// known.
struct PrefillIdentity {
  std::string engine_id;
  std::string host;
  std::string port;     // JSON text of a number
  std::string tp_size;  // the same
};

// Where a peer finds one side of a pair that introduces itself (MoRI-IO).
struct SideAddress {
  std::string host;
  uint16_t handshake_port = 0;
  uint16_t notify_port = 0;
  int32_t tp_size = 1;
  int32_t dp_size = 1;
  int32_t dp_rank = 0;
};

// The values that edits name ($...). Those of one attempt are made afresh by mint(); the caller
// fills in what belongs to the workers.
struct LegValues {
  std::string request_id;                  // $REQUEST_ID: the same X-Request-Id on both legs
  std::vector<int64_t> rooms;              // $ROOM
  std::string transfer_id;                 // $TRANSFER_ID
  std::optional<int64_t> global_id;        // $GLOBAL_ID
  std::string rid;                         // $RID; empty: the client has its own
  std::string bootstrap_host;              // $BOOTSTRAP_HOST, and in $BOOTSTRAP_URL
  std::optional<uint16_t> bootstrap_port;  // $BOOTSTRAP_PORT (null when unknown)
  std::string context_endpoint;            // $CONTEXT_ENDPOINT: TensorRT-LLM's ctx_info_endpoint
  std::optional<int32_t> context_dp_rank;  // $CONTEXT_DP_RANK (null when unknown)
  PrefillIdentity identity;                // $ENGINE_ID, $SIDE_HOST, $SIDE_PORT, $TP_SIZE
  std::optional<int32_t> dp_rank;          // $DP_RANK: of this leg's worker
  std::optional<int32_t> prefill_dp_rank;  // $PREFILL_DP_RANK
  // $PREFILL_... and $DECODE_... HOST, HANDSHAKE_PORT, NOTIFY_PORT, TP_SIZE, DP_SIZE, SIDE_RANK
  std::optional<SideAddress> prefill_side;
  std::optional<SideAddress> decode_side;
  std::string tandem;      // $TANDEM: the envelope of a Tandem worker
  bool ask_usage = false;  // streams: ask for usage that the client did not ask for (hide it then)
};

using RandomBits = std::function<uint64_t()>;

// Ids of at least 2^42 that grow: 41 bits of milliseconds, 10 of machine, 12 of counter.
class GlobalIds {
 public:
  explicit GlobalIds(uint32_t machine) : machine_(machine & 1023) {}
  // `wall`: since 1970. A clock that goes back, or more than 4096 ids a millisecond, borrow from
  // the future.
  int64_t next(std::chrono::milliseconds wall);

 private:
  int64_t machine_;
  int64_t milliseconds_ = 0;
  int64_t counter_ = 0;
};

// A request id from which either side reads the other's address.
std::string pair_request_id(const SideAddress& prefill, const SideAddress& decode,
                            const std::string& id);

// Whether the request goes over a pair at all.
bool may_pair(const Connector& connector, const BodyFacts& facts);

// How many rooms a request needs (1: scalars).
size_t batch_size(const Connector& connector, const BodyFacts& facts);

// Fresh ids for one attempt. `dp_size` and `rank`: of the prefill worker; SGLang's room modulo
// dp_size is the rank.
LegValues mint(const Connector& connector, const BodyFacts& facts, const RandomBits& random,
               GlobalIds& global_ids, std::chrono::milliseconds wall, int32_t dp_size = 1,
               int32_t rank = 0);

// The leg's body: `body` with a few splices. `harvest`: prefill's, for decode (nullptr: there was
// none). Errors: 502 "bad_response" when prefill's reply lacks what decode needs, 500
// "internal_error" when a needed value was not given.
Result<BodyPieces> make_leg_body(const Connector& connector, LegPart leg,
                                 const std::shared_ptr<const std::string>& body,
                                 const BodyFacts& facts, const LegValues& values,
                                 const Harvest* harvest = nullptr);

// Headers to set on the leg.
std::vector<std::pair<std::string, std::string>> leg_headers(const Connector& connector,
                                                             LegPart leg, const LegValues& values);

// Body of the abort call for the request of that $RID; empty: close the connection, that is all.
std::string abort_body(const Connector& connector, std::string_view rid);

// A request that makes a prefill worker tell its identity (IdentitySource::kPrefillReply), for
// POST /v1/completions: one token of prompt, one of output.
std::string identity_probe(const Connector& connector, std::string_view model);
// From a prefill reply. Nothing: it holds none.
std::optional<PrefillIdentity> identity_of(const Harvest& harvest);

}  // namespace tandem::router
