// KV events: what an engine tells about the blocks of its prefix cache, in the MessagePack form
// that vLLM and SGLang publish over ZeroMQ (and Tandem's workers too). A message's payload is an
// array [timestamp, events, data-parallel rank or nothing]; each event is a tagged array (older
// builds) or a tagged map with "type" (newer ones). Hashes are 64-bit integers of either sign, or
// byte strings of which the last eight bytes are the integer form. Fields that come after those
// known here are skipped, and so are events of unknown kinds: they are counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"

namespace tandem::protocol {

// A block's name in its engine. Views into the payload it was read from, or the caller's bytes.
struct EventHash {
  uint64_t number = 0;          // two's complement
  std::string_view bytes = {};  // empty: the name is the number
  // One number for either form.
  uint64_t key() const;
};

// Where a copy is. kUnknown: a medium that this build does not know.
enum class EventMedium : uint8_t { kDevice, kHost, kStorage, kUnknown };
EventMedium parse_medium(std::string_view name);  // "" is the device
std::string_view medium_name(EventMedium medium);

struct BlockStored {
  std::vector<EventHash> hashes;
  std::optional<EventHash> parent = {};  // of the first; the others follow each other
  std::vector<int32_t> tokens;           // of all blocks; empty in events that only name a copy
  int32_t block_tokens = 0;
  std::optional<int64_t> lora_id = {};
  EventMedium medium = EventMedium::kDevice;
  std::string_view lora_name = {};
  // By block, or empty: what else the block's identity depends on (a salt, media), in an encoding
  // that is the same for the same things; see extra_of_salt().
  std::vector<std::string> extras = {};
  std::optional<int64_t> group = {};  // of layers, in models that have several
  bool main_group = true;             // attends to everything, as far as the event says
  bool local = true;                  // false: the copy is another engine's
};

struct BlockRemoved {
  std::vector<EventHash> hashes;
  EventMedium medium = EventMedium::kDevice;
  std::optional<int64_t> group = {};
  bool local = true;
};

struct AllBlocksCleared {};

using KvEvent = std::variant<BlockStored, BlockRemoved, AllBlocksCleared>;

struct KvEventBatch {
  double timestamp = 0;  // seconds
  std::vector<KvEvent> events;
  std::optional<int32_t> rank = {};  // data-parallel
  size_t unknown = 0;                // events of kinds that are not known here
  size_t malformed = 0;              // events that cannot be read: the others still count
};

inline constexpr size_t kMaxEventPayload = size_t{64} << 20;
inline constexpr int32_t kMaxEventRank = 1 << 12;

// The batch refers to `payload`. Errors: 502 "bad_kv_events" when it is no batch at all.
Result<KvEventBatch> decode_kv_events(std::string_view payload);

// The extra of a sequence's first block when its only extra is this salt.
std::string extra_of_salt(std::string_view salt);

enum class EventDialect : uint8_t { kVllm, kSglang };
struct EventForm {
  EventDialect dialect = EventDialect::kVllm;
  bool maps = true;  // false: tagged arrays
};

// Of `extras` only salts can be written. SGLang's arrays have no place for one.
std::string encode_kv_events(const KvEventBatch& batch, EventForm form);

}  // namespace tandem::protocol
