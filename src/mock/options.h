// What a mock engine pretends to be.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"

namespace tandem::mock {

// Whose protocol it speaks; for vLLM also through which KV connector.
enum class Dialect : uint8_t {
  kTandem,
  kSglang,
  kVllmNixl,      // decode pulls blocks that prefill named
  kVllmNixlPush,  // prefill pushes to the decode request of the same request id
  kVllmMooncake,
  kVllmMoriio,       // MoRI-IO: decode reads
  kVllmMoriioWrite,  // MoRI-IO: prefill writes
  kTrtllm,
  kOpenai,  // no handoff at all
};
enum class Role : uint8_t { kPrefill, kDecode, kUnified };

std::string_view dialect_name(Dialect dialect);
Result<Dialect> parse_dialect(std::string_view name);  // 400 with the names there are
std::string_view role_name(Role role);

// The modelled device. Zero times mean that nothing takes time.
struct Speed {
  double prefill_rate = 8000;                     // prompt tokens per second, one prompt at a time
  Duration step = std::chrono::milliseconds(10);  // a decode step with one sequence
  double crowding = 0.02;                         // how much longer for each further sequence
  int32_t max_running = 256;                      // sequences that decode at once; more wait
};

struct MockOptions {
  Dialect dialect = Dialect::kOpenai;
  Role role = Role::kUnified;
  std::string host = "127.0.0.1";
  uint16_t port = 0;            // 0: the kernel picks
  uint16_t bootstrap_port = 0;  // of a prefill server's side channel
  std::string model = "mock-model";
  Speed speed = {};
  size_t cache_tokens = size_t{1} << 20;
  int32_t reply_tokens = 16;                             // of requests that name no max_tokens
  Duration partner_timeout = std::chrono::seconds(300);  // for the other leg, like the real ones
  Duration lease = std::chrono::seconds(30);             // of blocks that nobody came for
  bool report_cached = true;
  // Streams are written in pieces of so many bytes; 0: frame by frame; negative: random pieces.
  int32_t piece = 0;
  uint64_t seed = 1;
  int32_t dp_size = 1;  // data-parallel ranks, each with a device and a cache of its own
  int32_t record = 0;   // how many of the last requests /mock/requests tells
  // Ready-made answers, for measuring routers: nothing is read, modelled or handed over. Streams
  // have reply_tokens chunks, speed.step apart (zero: all at once).
  bool is_static = false;
  std::string secret = {};  // tandem dialect: x-tandem-auth
  // Where KV events are published ("tcp://HOST:PORT", port 0: the system picks); empty: nowhere. Of
  // rank r at the port plus r. Past events are asked for at the ports behind those of all ranks.
  std::string kv_events = {};
  std::string kv_events_replay = {};  // if elsewhere
  bool kv_event_arrays = false;       // the older encoding
  // Text is tokenized as text/byte_tokenizer.h does, for routers that tokenize too; else four
  // bytes are a token.
  bool byte_tokens = false;
};

}  // namespace tandem::mock
