// The table. Each row's facts are those of the engine's own router or server.
#include <algorithm>
#include <array>

#include "router/connectors/connector.h"

namespace tandem::router {

namespace {

using Action = BodyEdit::Action;

constexpr unsigned kChatLike = api_bit(Api::kChat) | api_bit(Api::kCompletions);
constexpr unsigned kGenerating = kChatLike | api_bit(Api::kResponses) | api_bit(Api::kMessages) |
                                 api_bit(Api::kGenerate) | api_bit(Api::kInference);

// A prefill request that answers one small JSON: one token, not streamed. A minimum above one would
// contradict the maximum.
constexpr std::array kOneToken = {
    BodyEdit{Action::kSet, "max_tokens", "1", kChatLike | api_bit(Api::kMessages)},
    BodyEdit{Action::kSetIfPresent, "max_completion_tokens", "1", kChatLike},
    BodyEdit{Action::kErase, "min_tokens", "", kChatLike},
    BodyEdit{Action::kSet, "max_output_tokens", "1", api_bit(Api::kResponses)},
    BodyEdit{Action::kSet, "sampling_params.max_tokens", "1", api_bit(Api::kInference)},
    BodyEdit{Action::kErase, "sampling_params.min_tokens", "", api_bit(Api::kInference)},
    BodyEdit{Action::kSet, "sampling_params.max_new_tokens", "1", api_bit(Api::kGenerate)},
    BodyEdit{Action::kErase, "sampling_params.min_new_tokens", "", api_bit(Api::kGenerate)},
    BodyEdit{Action::kSet, "stream", "false", kGenerating},
    BodyEdit{Action::kErase, "stream_options", "", kGenerating},
};

template <size_t kCount>
constexpr auto with_one_token(const std::array<BodyEdit, kCount>& more) {
  std::array<BodyEdit, kOneToken.size() + kCount> all{};
  std::ranges::copy(kOneToken, all.begin());
  std::ranges::copy(more, all.begin() + kOneToken.size());
  return all;
}

// Tandem: all that the legs need is in one object.
constexpr std::array<std::string_view, 1> kTandemMember = {"tandem"};
constexpr std::array kTandemEvery = {
    BodyEdit{.path = "tandem", .value = "$TANDEM", .needed = true}};

// SGLang: the same three fields on both legs.
constexpr std::array<std::string_view, 3> kSglangOwned = {"bootstrap_host", "bootstrap_port",
                                                          "bootstrap_room"};
constexpr std::array kSglangBoth = {
    BodyEdit{.path = "bootstrap_host", .value = "$BOOTSTRAP_HOST", .needed = true},
    BodyEdit{.path = "bootstrap_port", .value = "$BOOTSTRAP_PORT"},
    BodyEdit{.path = "bootstrap_room", .value = "$ROOM", .needed = true},
};
constexpr std::array kSglangEvery = {
    BodyEdit{.action = Action::kSetIfAbsent, .path = "rid", .value = "$RID"},
    BodyEdit{.path = "routed_dp_rank", .value = "$DP_RANK"},
};
constexpr std::array kSglangDecode = {
    BodyEdit{.path = "disagg_prefill_dp_rank", .value = "$PREFILL_DP_RANK"}};
constexpr std::array<std::string_view, 2> kSglangRunning = {"sglang_num_running_reqs",
                                                            "sglang:num_running_reqs"};
constexpr std::array<std::string_view, 2> kSglangWaiting = {"sglang_num_queue_reqs",
                                                            "sglang:num_queue_reqs"};
constexpr std::array<std::string_view, 2> kSglangUsage = {"sglang_token_usage",
                                                          "sglang:token_usage"};
constexpr EngineEndpoints kSglangEndpoints{.health_generate = "/health_generate",
                                           .info = "/server_info",
                                           .old_info = "/get_server_info",
                                           .load = "/v1/loads?include=core",
                                           .old_load = "/get_load",
                                           .running = kSglangRunning,
                                           .waiting = kSglangWaiting,
                                           .kv_usage = kSglangUsage};

// vLLM.
constexpr std::array<std::string_view, 1> kVllmOwned = {"kv_transfer_params"};
constexpr std::array<std::string_view, 2> kVllmStrip = {"kv_transfer_params", "prompt_token_ids"};
constexpr std::array kVllmHeaders = {
    HeaderEdit{"X-Request-Id", "$REQUEST_ID"},
    HeaderEdit{"X-data-parallel-rank", "$DP_RANK"},
};
constexpr std::array<std::string_view, 1> kVllmRunning = {"vllm:num_requests_running"};
constexpr std::array<std::string_view, 1> kVllmWaiting = {"vllm:num_requests_waiting"};
constexpr std::array<std::string_view, 2> kVllmUsage = {"vllm:kv_cache_usage_perc",
                                                        "vllm:gpu_cache_usage_perc"};
constexpr EngineEndpoints kVllmEndpoints{.load = "/load",
                                         .version = "/version",
                                         .running = kVllmRunning,
                                         .waiting = kVllmWaiting,
                                         .kv_usage = kVllmUsage};

constexpr std::array kNixlPrefill = with_one_token(std::array{BodyEdit{
    .path = "kv_transfer_params",
    .value = R"({"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,)"
             R"("remote_block_ids":null,"remote_host":null,"remote_port":null})",
    .needed = true}});
// Left out when prefill gave none: decode then computes the prompt itself.
constexpr std::array kNixlDecode = {BodyEdit{.path = "kv_transfer_params", .value = "$HARVESTED"}};
constexpr std::array kNixlPushDecode = {BodyEdit{
    .path = "kv_transfer_params",
    .value = R"({"do_remote_decode":false,"do_remote_prefill":true,"remote_engine_id":$ENGINE_ID,)"
             R"("remote_host":$SIDE_HOST,"remote_port":$SIDE_PORT,"tp_size":$TP_SIZE,)"
             R"("remote_request_id":$REQUEST_ID})",
    .needed = true}};

constexpr std::array kMooncakePrefill = with_one_token(std::array{BodyEdit{
    .path = "kv_transfer_params",
    .value = R"({"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":$TRANSFER_ID})",
    .needed = true}});
constexpr std::array kMooncakeDecode = {BodyEdit{
    .path = "kv_transfer_params",
    .value = R"({"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":$TRANSFER_ID,)"
             R"("remote_bootstrap_addr":$BOOTSTRAP_URL,"remote_engine_id":$ENGINE_ID})",
    .needed = true}};

// MoRI-IO. Reading, decode comes for the blocks that prefill named; writing, each side is told
// where the other one is before it begins.
constexpr std::array kMoriioPrefill = with_one_token(std::array{BodyEdit{
    .path = "kv_transfer_params",
    .value = R"({"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":$TRANSFER_ID,)"
             R"("remote_engine_id":null,"remote_block_ids":null,"remote_host":null,)"
             R"("remote_port":null})",
    .needed = true}});
constexpr std::array kMoriioDecode = {
    BodyEdit{.path = "kv_transfer_params",
             .value = R"({"remote_dp_size":$PREFILL_DP_SIZE,$HARVESTED_MEMBERS})"}};
constexpr std::array kMoriioWritePrefill = with_one_token(std::array{BodyEdit{
    .path = "kv_transfer_params",
    .value = R"({"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":$TRANSFER_ID,)"
             R"("remote_engine_id":null,"remote_block_ids":null,"remote_host":$DECODE_HOST,)"
             R"("remote_port":$DECODE_HANDSHAKE_PORT,)"
             R"("remote_handshake_port":$DECODE_HANDSHAKE_PORT,)"
             R"("remote_notify_port":$DECODE_NOTIFY_PORT,"remote_tp_size":$DECODE_TP_SIZE,)"
             R"("remote_dp_size":$DECODE_DP_SIZE,"remote_dp_rank":$DECODE_SIDE_RANK})",
    .needed = true}});
constexpr std::array kMoriioWriteDecode = {BodyEdit{
    .path = "kv_transfer_params",
    .value = R"({"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":$TRANSFER_ID,)"
             R"("remote_engine_id":null,"remote_block_ids":null,"remote_host":$PREFILL_HOST,)"
             R"("remote_port":$PREFILL_HANDSHAKE_PORT,)"
             R"("remote_handshake_port":$PREFILL_HANDSHAKE_PORT,)"
             R"("remote_notify_port":$PREFILL_NOTIFY_PORT,"remote_tp_size":$PREFILL_TP_SIZE,)"
             R"("remote_dp_size":$PREFILL_DP_SIZE,"remote_dp_rank":$PREFILL_SIDE_RANK})",
    .needed = true}};

// Nobody meets: prefill leaves its KV where decode finds it.
constexpr std::array kSharedPrefill = with_one_token(std::array{
    BodyEdit{Action::kSetIfPresent, "n", "1", kChatLike},
    BodyEdit{Action::kSetIfPresent, "best_of", "1", kChatLike},
});

// TensorRT-LLM.
constexpr std::array<std::string_view, 1> kTrtllmOwned = {"disaggregated_params"};
constexpr std::array<std::string_view, 2> kTrtllmStrip = {"disaggregated_params",
                                                          "prompt_token_ids"};
constexpr std::array kTrtllmPrefill = with_one_token(std::array{
    BodyEdit{.path = "disaggregated_params",
             .value = R"({"request_type":"context_only","disagg_request_id":$GLOBAL_ID})",
             .needed = true}});
// The prompt is not tokenized a second time.
constexpr std::array kTrtllmDecode = {
    BodyEdit{.path = "disaggregated_params", .value = "$HARVESTED", .needed = true},
    BodyEdit{Action::kSet, "prompt_token_ids", "$PROMPT_TOKEN_IDS", api_bit(Api::kChat)},
    BodyEdit{Action::kSet, "prompt", "$PROMPT_TOKEN_IDS", api_bit(Api::kCompletions)},
};
constexpr std::array kTrtllmFirstPrefill = with_one_token(
    std::array{BodyEdit{.path = "disaggregated_params",
                        .value = R"({"request_type":"context_only","disagg_request_id":$GLOBAL_ID,)"
                                 R"("schedule_style":1})",
                        .needed = true}});
constexpr std::array kTrtllmFirstDecode = {
    BodyEdit{.path = "disaggregated_params",
             .value = R"({"request_type":"generation_only","ctx_request_id":$GLOBAL_ID,)"
                      R"("disagg_request_id":$GLOBAL_ID,"schedule_style":1,)"
                      R"("ctx_info_endpoint":$CONTEXT_ENDPOINT,"ctx_dp_rank":$CONTEXT_DP_RANK})",
             .needed = true}};
constexpr EngineEndpoints kTrtllmEndpoints{
    .info = "/server_info", .version = "/version", .metrics = "/prometheus/metrics"};

constexpr std::array kConnectors = {
    Connector{.name = "tandem",
              .about = "Tandem workers: both legs at once, prefill pushes",
              .opaque = false,
              .order = LegOrder::kTogether,
              .owned = kTandemMember,
              .every = kTandemEvery,
              .harvest = HarvestKind::kTandemReport,
              .endpoints = {.info = "/tandem/v1/info"}},
    Connector{.name = "sglang",
              .about = "SGLang: both legs at once, meeting in a bootstrap room",
              .order = LegOrder::kTogether,
              .mint = kMintRoom | kMintRid,
              .batch = BatchRule::kArrays,
              .choices = BatchRule::kArrays,
              .picks_rank = true,
              .pair_apis = kGenerating & ~api_bit(Api::kInference),
              .owned = kSglangOwned,
              .prefill = kOneToken,
              .decode = kSglangDecode,
              .both = kSglangBoth,
              .every = kSglangEvery,
              .abort = {"/abort_request", R"({"rid":$RID,"abort_all":false})"},
              .cut_in_flight = false,
              .bootstrap_port = 8998,
              .endpoints = kSglangEndpoints},
    Connector{.name = "vllm-nixl",
              .about = "vLLM, NIXL pull: prefill first, decode reads the blocks it named",
              .order = LegOrder::kPrefillFirst,
              .batch = BatchRule::kAlone,
              .choices = BatchRule::kAlone,
              .picks_rank = true,
              .prompt_logprobs_alone = true,
              .owned = kVllmOwned,
              .prefill = kNixlPrefill,
              .decode = kNixlDecode,
              .release = kOneToken,
              .headers = kVllmHeaders,
              .harvest = HarvestKind::kKvTransferParams,
              .cut_in_flight = false,
              .lease = true,
              .endpoints = kVllmEndpoints,
              .strip = kVllmStrip},
    Connector{.name = "vllm-nixl-push",
              .about = "vLLM, NIXL push: both legs at once, once prefill's identity is known",
              .order = LegOrder::kTogether,
              .identity = IdentitySource::kPrefillReply,
              .batch = BatchRule::kAlone,
              .choices = BatchRule::kAlone,
              .picks_rank = true,
              .prompt_logprobs_alone = true,
              .owned = kVllmOwned,
              .prefill = kNixlPrefill,
              .decode = kNixlPushDecode,
              .release = kOneToken,
              .headers = kVllmHeaders,
              .harvest = HarvestKind::kKvTransferParams,
              .cut_in_flight = false,
              .lease = true,
              .endpoints = kVllmEndpoints,
              .strip = kVllmStrip},
    Connector{.name = "vllm-mooncake",
              .about = "vLLM, Mooncake: both legs at once, meeting on a transfer id",
              .order = LegOrder::kTogether,
              .identity = IdentitySource::kBootstrapQuery,
              .mint = kMintTransferId,
              .batch = BatchRule::kAlone,
              .choices = BatchRule::kAlone,
              .picks_rank = true,
              .prompt_logprobs_alone = true,
              .owned = kVllmOwned,
              .prefill = kMooncakePrefill,
              .decode = kMooncakeDecode,
              .release = kOneToken,
              .headers = kVllmHeaders,
              .cut_in_flight = false,
              .lease = true,
              .bootstrap_port = 8998,
              .endpoints = kVllmEndpoints,
              .strip = kVllmStrip},
    Connector{.name = "vllm-moriio",
              .about = "vLLM, MoRI-IO reading: prefill first, decode reads the blocks it named",
              .order = LegOrder::kPrefillFirst,
              .mint = kMintTxId,
              .batch = BatchRule::kAlone,
              .choices = BatchRule::kAlone,
              .picks_rank = true,
              .prompt_logprobs_alone = true,
              .owned = kVllmOwned,
              .prefill = kMoriioPrefill,
              .decode = kMoriioDecode,
              .release = kOneToken,
              .headers = kVllmHeaders,
              .harvest = HarvestKind::kKvTransferParams,
              .cut_in_flight = false,
              .lease = true,
              .bootstrap_port = 6301,
              .notify_port = 61005,
              .endpoints = kVllmEndpoints,
              .strip = kVllmStrip},
    Connector{.name = "vllm-moriio-write",
              .about = "vLLM, MoRI-IO writing: both legs at once, each told where the other is",
              .order = LegOrder::kTogether,
              .mint = kMintTxId | kMintPairId,
              .batch = BatchRule::kAlone,
              .choices = BatchRule::kAlone,
              .picks_rank = true,
              .prompt_logprobs_alone = true,
              .owned = kVllmOwned,
              .prefill = kMoriioWritePrefill,
              .decode = kMoriioWriteDecode,
              .release = kOneToken,
              .headers = kVllmHeaders,
              .cut_in_flight = false,
              .lease = true,
              .bootstrap_port = 6301,
              .notify_port = 61005,
              .endpoints = kVllmEndpoints,
              .strip = kVllmStrip},
    Connector{.name = "trtllm",
              .about = "TensorRT-LLM, context first: decode gets what the context server returned",
              .order = LegOrder::kPrefillFirst,
              .mint = kMintGlobalId,
              .batch = BatchRule::kAlone,
              .choices = BatchRule::kAlone,
              .pair_apis = kChatLike,
              .owned = kTrtllmOwned,
              .prefill = kTrtllmPrefill,
              .decode = kTrtllmDecode,
              .release = kOneToken,
              .harvest = HarvestKind::kDisaggregatedParams,
              .cut_in_flight = false,
              .lease = true,
              .endpoints = kTrtllmEndpoints,
              .strip = kTrtllmStrip},
    Connector{.name = "trtllm-gen-first",
              .about = "TensorRT-LLM, generation first: both legs at once",
              .order = LegOrder::kTogether,
              .identity = IdentitySource::kServerInfo,
              .mint = kMintGlobalId,
              .batch = BatchRule::kAlone,
              .choices = BatchRule::kAlone,
              .pair_apis = kChatLike,
              .owned = kTrtllmOwned,
              .prefill = kTrtllmFirstPrefill,
              .decode = kTrtllmFirstDecode,
              .release = kOneToken,
              .cut_in_flight = false,
              .lease = true,
              .endpoints = kTrtllmEndpoints,
              .strip = kTrtllmStrip},
    Connector{
        .name = "shared-storage",
        .about = "any OpenAI-style pair over one KV store (LMCache): a one-token prefill first",
        .order = LegOrder::kPrefillFirst,
        .picks_rank = true,
        .prompt_logprobs_alone = true,
        .prefill = kSharedPrefill,
        .headers = kVllmHeaders,
        .endpoints = kVllmEndpoints,
        .strip = kVllmStrip},
    Connector{
        .name = "plain", .about = "OpenAI-compatible servers; each answers alone", .endpoints = {}},
};

}  // namespace

std::span<const Connector> connectors() { return kConnectors; }

Result<const Connector*> find_connector(std::string_view name) {
  std::string names;
  for (const Connector& connector : kConnectors) {
    if (connector.name == name) return &connector;
    names += (names.empty() ? "" : ", ") + std::string(connector.name);
  }
  return make_error(
      400, "invalid_option",
      "There is no connector \"" + std::string(name) + "\"; there are " + names + ".");
}

const std::vector<std::string_view>& controlled_members() {
  static const std::vector<std::string_view> kMembers = [] {
    // What read_facts looks at.
    std::vector<std::string_view> all = {"model",
                                         "stream",
                                         "stream_options",
                                         "n",
                                         "best_of",
                                         "max_tokens",
                                         "max_completion_tokens",
                                         "max_output_tokens",
                                         "sampling_params",
                                         "prompt",
                                         "messages",
                                         "input",
                                         "input_ids",
                                         "text",
                                         "token_ids",
                                         "system",
                                         "instructions",
                                         "tools",
                                         "priority",
                                         "prompt_cache_key",
                                         "session_params",
                                         "metadata",
                                         "user",
                                         "rid"};
    const auto add = [&](std::string_view path) {
      path = path.substr(0, path.find('.'));
      if (std::ranges::find(all, path) == all.end()) all.push_back(path);
    };
    for (const Connector& row : kConnectors) {
      for (const std::string_view name : row.owned) add(name);
      for (const auto edits : {row.prefill, row.decode, row.both, row.every}) {
        for (const BodyEdit& edit : edits) add(edit.path);
      }
    }
    return all;
  }();
  return kMembers;
}

}  // namespace tandem::router
