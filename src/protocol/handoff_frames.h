// Handoff frames (DESIGN §4): what a prefill and a decode worker say to each other over one
// connection.
//
// A frame is a fixed 20-byte little-endian header {magic "TDHF", u16 version, u16 type, u32 payload
// bytes, u64 XXH3 of the payload} and a MessagePack map of small integer keys. Unknown keys are
// skipped, missing keys keep their defaults, so fields can be added; anything else is a new
// version. All sizes are bounded.
//
// Order on a connection (decode dials): HELLO -> <- HELLO (with proof) PROOF -> <- PROOF, then for
// each handoff OPEN -> <- OFFER, GRANT or BUSY ->, <- PUSH ..., <- COMMIT, ACK ->. ABORT is legal
// at any time from either side and is answered by ABORT_ACK once the answering side has stopped
// touching the other's pages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "protocol/scored_token.h"

namespace tandem::protocol {

inline constexpr uint16_t kHandoffVersion = 3;  // 3: instances, ranks, transports, digests
inline constexpr size_t kFrameHeaderBytes = 20;
inline constexpr size_t kMaxFramePayload = size_t{8} << 20;
inline constexpr size_t kMaxFirstTokens = 64;
inline constexpr uint32_t kMaxHandoffRanks = 64;

// A page and the generation of the allocation meant: a mismatch is refused (I2).
struct PageTag {
  int32_t page = -1;
  uint64_t generation = 0;
  bool operator==(const PageTag&) const = default;
};

// Names one attempt of one handoff. `nonce` is drawn by prefill with OFFER and repeated in
// everything after it.
struct HandoffKey {
  std::string id;
  uint32_t attempt = 0;
  uint64_t nonce = 0;
  bool operator==(const HandoffKey&) const = default;
};

struct HelloFrame {
  uint32_t version_min = kHandoffVersion;
  uint32_t version_max = kHandoffVersion;
  std::string role;    // "prefill", "decode", "unified"
  uint64_t epoch = 0;  // grows with every start of the process (see kv/handoff/peer_registry.h)
  std::string instance = {};  // the worker's name, the same after a restart; empty: it has none
  std::string lineage;        // KV lineage of the model (I5)
  // The representation of its pages (protocol/representation.h) is this, kv_dtype, layout_id,
  // kv_scales and weights.
  std::string representation;   // numeric path
  std::string kv_scales = "1";  // digest of the model's static FP8 scales
  std::string weights = {};     // format of the weights
  uint32_t accepts = 0;         // KvAccept: what it takes as a receiver
  uint32_t block_tokens = 0;
  uint32_t kv_dtype = 0;
  uint32_t layout_id = 0;
  uint32_t layers = 0;  // of the model
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  std::vector<int32_t> windows;       // by page group; 0: attends to everything
  std::vector<int32_t> layer_places;  // of each layer: its group, its slot in that group's page
  // The ranks that hold this worker's KV (kv/reshard/kv_layout.h), and which of them this is.
  uint32_t tensor_ranks = 1;
  uint32_t data_ranks = 1;
  std::vector<int32_t> stages{0};  // first layer of each pipeline stage
  uint32_t rank = 0;
  std::string nonce;  // 16 random bytes
  std::string proof;  // listener only: HMAC-SHA256 of both nonces under the shared secret
  // Listener only: the shape of its arena, in bytes from the start of what its transport exposes.
  uint64_t arena_bytes = 0;
  uint64_t pages_offset = 0;
  uint64_t page_stride = 0;
  uint64_t page_count = 0;
  // Dialer: the transports it can read pages through, "shm,tcp". Listener: the one it chose.
  std::string transports;
  std::string process;  // dialer only: random, one for each process
  // Dialer: it would rather have pages in its own representation. Listener: that is how they
  // travel, each layer as a view of what its transport exposes (worker/page_views.h).
  bool converted = false;
};

struct ProofFrame {
  std::string proof;       // empty: the listener's, who has accepted the dialer's
  std::string descriptor;  // listener only: of its arena, for the transport that it chose
};

struct OpenFrame {
  HandoffKey key;
};

struct OfferFrame {
  HandoffKey key;
  std::vector<int32_t> tokens;  // the whole prompt
  std::string salt;             // of the request's ContentIds
  uint32_t blocks = 0;          // including a last partial one
  uint64_t bytes = 0;           // of what is live at the end, if nothing is cached at the receiver
  std::string adapter = {};     // of the request's ContentIds too
};

struct GrantFrame {
  HandoffKey key;
  std::vector<int32_t> first_missing;  // by group: blocks from here on are wanted
  uint32_t ranks = 1;  // of the receiver, numbered from 0: as many acknowledgements are owed
};

struct BusyFrame {
  HandoffKey key;
  std::string message;
};

// Layer `layer` of blocks first_block .. first_block + pages.size() - 1 is final in these pages of
// the sender, which are those of the layer's group.
struct PushFrame {
  HandoffKey key;
  uint32_t layer = 0;
  uint32_t first_block = 0;
  std::vector<PageTag> pages;
  // As many as pages, in the sender's representation (kv/integrity/page_digest.h); empty when the
  // sender keeps none.
  std::vector<uint64_t> digests = {};
};

struct CommitFrame {
  HandoffKey key;
  uint32_t layers = 0;
  // By group: blocks first_blocks[g] .. blocks - 1 were sent, in each of the group's layers.
  std::vector<int32_t> first_blocks;
  uint32_t blocks = 0;
  uint64_t bytes = 0;  // pages sent * page bytes: must equal the bytes the receiver covered
  // Sampled by the sender, with their logprobs when the request wants them: at most
  // kMaxFirstTokens, each with at most kMaxTopLogprobs alternatives, all finite.
  std::vector<ScoredToken> first_tokens;
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;
};

struct AckFrame {
  HandoffKey key;
  uint32_t rank = 0;       // of the receiver, here and below
  uint64_t link_rate = 0;  // bytes per second that pages come over with; 0: not known yet
};

struct AbortFrame {
  HandoffKey key;
  uint32_t status = 500;
  std::string code;
  std::string message;
  uint32_t rank = 0;
};

struct AbortAckFrame {
  HandoffKey key;
  uint32_t rank = 0;
};

// Receiver: copies go on, so that a long transfer is not taken for a dead one.
struct RenewFrame {
  HandoffKey key;
};

struct PingFrame {
  uint64_t sequence = 0;
  bool reply = false;
};

using HandoffFrame =
    std::variant<HelloFrame, ProofFrame, OpenFrame, OfferFrame, GrantFrame, BusyFrame, PushFrame,
                 CommitFrame, AckFrame, AbortFrame, AbortAckFrame, PingFrame, RenewFrame>;

std::string encode_frame(const HandoffFrame& frame);

struct FrameHeader {
  uint16_t version = 0;
  uint16_t type = 0;
  uint32_t payload_bytes = 0;
  uint64_t digest = 0;
};

// Errors: code "handoff_protocol" for anything malformed, of another version or over the bound.
Result<FrameHeader> decode_frame_header(std::string_view header);
Result<HandoffFrame> decode_frame_payload(const FrameHeader& header, std::string_view payload);

}  // namespace tandem::protocol
