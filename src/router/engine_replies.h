// What engines of others say of themselves, read with care: their replies come from outside. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem::router {

struct EngineModel {
  std::string id;
  int64_t context_length = 0;  // 0: not said
  std::string parent = {};     // of an adapter
};
// GET /v1/models: {"data": [{"id", "max_model_len"?, "parent"?}, ...]}. At most 256 are taken, and
// names of at most 512 bytes. Errors: 502 "bad_worker_info".
Result<std::vector<EngineModel>> parse_model_list(std::string_view json_text);

// GET /server_info: SGLang's (its older name: /get_server_info) and TensorRT-LLM's.
struct ServerInfo {
  int32_t dp_size = 1;
  uint16_t bootstrap_port = 0;   // 0: not said
  std::string mode;              // "prefill", "decode", "null" or empty
  std::string epoch;             // another for another process; empty: not said
  std::string kv_events;         // where it publishes (kv_feeds.h); empty: nowhere
  std::string context_endpoint;  // TensorRT-LLM: where decode finds its KV; empty: not said
  std::optional<int32_t> context_dp_rank;  // the same: of which rank
};
Result<ServerInfo> parse_server_info(std::string_view json_text);

// Mooncake's GET {bootstrap}/query: {"<rank>": {"engine_id": "..."}, ...}; by rank.
Result<std::vector<std::string>> parse_mooncake_query(std::string_view json_text);

// How much an engine has to do, from whomever.
struct EngineLoad {
  int64_t requests = 0;  // running and waiting
  int64_t tokens = 0;    // of KV in use; 0: not said
};
// SGLang's /v1/loads or /get_load (a list over ranks, bare or in "loads"), vLLM's /load
// ({"server_load": N}), and the gauges of either's /metrics, whose names are given (the newer
// first). Nothing: it does not say.
std::optional<EngineLoad> parse_load_reply(std::string_view json_text);
std::optional<EngineLoad> parse_load_metrics(std::string_view prometheus_text,
                                             std::span<const std::string_view> running,
                                             std::span<const std::string_view> waiting);

}  // namespace tandem::router
