// Connectors: how to drive each kind of engine through a handoff, as data. A row says in which
// order the legs go, who makes up the ids, what is edited in each leg's body and headers, what is
// taken from prefill's reply, how a leg is aborted and when it may be. What a row says is done by
// make_leg_body, leg_headers and harvest (leg_body.h, harvest.h); nothing else depends on the
// engine.
//
// Sources: the engines' own routers and measurements of their servers; one test a row compares it
// with them field by field (connector_test.cc), and each body is given to a mock that hangs on a
// wrong one (conformance/).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "router/usage/api.h"

namespace tandem::router {

enum class LegOrder : uint8_t {
  kAlone,         // there are no pairs
  kTogether,      // both at once
  kPrefillFirst,  // decode's body needs prefill's reply
};

// What a pair must know of a prefill worker before both legs can go at once; kept by the router
// and forgotten when the worker restarts.
enum class IdentitySource : uint8_t {
  kNone,
  kBootstrapQuery,  // GET BOOTSTRAP/query: {"<dp rank>":{"engine_id":...}}
  kPrefillReply,    // any prefill reply's kv_transfer_params; identity_probe() asks for one
  kServerInfo,      // GET info: where its side channel is
};

// Who makes up what the legs meet on. The values are in LegValues.
enum Mint : unsigned {
  kMintNothing = 0,
  kMintRoom = 1,        // an integer of [0, 2^63 - 1] for each request of a batch
  kMintTransferId = 2,  // "xfer-<uuid>"
  kMintGlobalId = 4,    // an int64 of at least 2^42 that no other router makes
  kMintRid = 8,         // 32 hexadecimal digits: the name for aborting
  kMintTxId = 16,       // "tx-<uuid>"
  kMintPairId = 32,     // a request id that holds both sides' addresses (pair_request_id)
};

// How a request of several prompts, or of several choices, goes over a pair.
enum class BatchRule : uint8_t {
  kPair,    // as any other
  kArrays,  // the handoff fields become arrays, one entry a request
  kAlone,   // not at all: the answering worker computes the prompt itself
};

enum class LegPart : uint8_t {
  kPrefill,
  kDecode,
  kAlone,    // one worker does everything
  kRelease,  // decode for a client that has gone: one token, so that prefill's KV is let go
};
constexpr unsigned leg_bit(LegPart leg) { return 1U << static_cast<unsigned>(leg); }

// One edit of a body. `path` is a member, or "object.member" (the object is made when it is
// missing; the edit is left out when it is no object). `value` is JSON text in which $NAME stands
// for a value of LegValues as JSON; the edit is left out when one is missing, unless `needed`:
// then the leg cannot be built.
struct BodyEdit {
  enum class Action : uint8_t { kSet, kSetIfPresent, kSetIfAbsent, kErase };
  Action action = Action::kSet;
  std::string_view path;
  std::string_view value = "";
  unsigned apis = ~0U;  // api_bit
  bool needed = false;
};

struct HeaderEdit {
  std::string_view name;
  std::string_view value;  // $NAME stands for a value as plain text; left out when missing
  unsigned legs = ~0U;     // leg_bit
};

enum class HarvestKind : uint8_t {
  kNothing,
  kKvTransferParams,     // vLLM: the object, verbatim
  kDisaggregatedParams,  // TensorRT-LLM: in choices[0] or at the top; usage and prompt_token_ids
  kTandemReport,
};

// How an engine is told to stop a request, besides closing the connection.
struct AbortCall {
  std::string_view path = "";  // empty: closing is all there is
  std::string_view body = "";  // $RID
};

// Paths to ask; empty: there is none.
struct EngineEndpoints {
  std::string_view health = "/health";
  std::string_view health_generate = "";  // runs a token
  std::string_view models = "/v1/models";
  std::string_view info = "";
  std::string_view old_info = "";  // the same in older builds
  std::string_view load = "";
  std::string_view old_load = "";
  std::string_view version = "";
  std::string_view metrics = "/metrics";
  // Gauges in the metrics, the newer name first; each is what the name begins with, up to '{'.
  std::span<const std::string_view> running = {};
  std::span<const std::string_view> waiting = {};
  std::span<const std::string_view> kv_usage = {};
};

struct Connector {
  std::string_view name;  // of --connector
  std::string_view about;
  bool opaque = true;  // the router reads only facts off the body (false: tandem)
  LegOrder order = LegOrder::kAlone;
  IdentitySource identity = IdentitySource::kNone;
  unsigned mint = kMintNothing;
  BatchRule batch = BatchRule::kPair;    // of several prompts
  BatchRule choices = BatchRule::kPair;  // of n > 1
  // A request can be given to one of a worker's data-parallel ranks ($DP_RANK, or its room).
  bool picks_rank = false;
  unsigned pair_apis = ~0U;  // api_bit: the others are answered by one worker
  // Prompt logprobs make the engine compute the whole prompt: decode cannot, so no pair.
  bool prompt_logprobs_alone = false;
  // Members that only the router may set: taken out of the client's body on every leg.
  std::span<const std::string_view> owned = {};
  std::span<const BodyEdit> prefill = {};
  std::span<const BodyEdit> decode = {};
  std::span<const BodyEdit> both = {};     // of a pair, before the leg's own
  std::span<const BodyEdit> every = {};    // of every leg, a lone one included
  std::span<const BodyEdit> release = {};  // of LegPart::kRelease, after decode's
  std::span<const HeaderEdit> headers = {};
  HarvestKind harvest = HarvestKind::kNothing;
  AbortCall abort = {};
  // Whether the legs may be cut while KV may be moving between them because the *client* has gone
  // (a leg whose twin has died is always cut: nothing moves any more). False: from the moment both
  // legs are out until decode's first byte the cut waits, bounded.
  bool cut_in_flight = true;
  // Prefill first: its KV is pinned by a lease until decode takes it. When the client leaves in
  // between, a LegPart::kRelease leg frees it at once; otherwise the lease does.
  bool lease = false;
  // The ports of the side channel, when the configuration does not say: where a peer introduces
  // itself, and where it says that KV has come (MoRI-IO).
  uint16_t bootstrap_port = 0;
  uint16_t notify_port = 0;
  EngineEndpoints endpoints = {};
  std::span<const std::string_view> strip = {};  // for ReplyRules::strip
};

// Every row, in the order of the documentation.
std::span<const Connector> connectors();
// Errors: 400 "invalid_option" with the names there are.
Result<const Connector*> find_connector(std::string_view name);

// Every member that some row or read_facts looks at or edits: a body in which one stands twice is
// refused.
const std::vector<std::string_view>& controlled_members();

}  // namespace tandem::router
