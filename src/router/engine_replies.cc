#include "router/engine_replies.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/json_value.h"

namespace tandem::router {

namespace {

constexpr size_t kMaxModels = 256;
constexpr size_t kMaxName = 512;
constexpr size_t kMaxRanks = 1024;
constexpr double kMaxCount = 1e9;  // nobody runs so many requests

tl::unexpected<Error> bad(const char* what) {
  return make_error(502, "bad_worker_info", std::string("the worker's ") + what);
}

int64_t number_of(const JsonValue& object, std::string_view key) {
  const JsonValue* const value = object.find(key);
  return value == nullptr ? 0 : value->as_integer().value_or(0);
}

std::string text_of(const JsonValue& object, std::string_view key) {
  const JsonValue* const value = object.find(key);
  if (value == nullptr || (!value->is_string() && !value->is_number())) return {};
  return value->as_string().substr(0, kMaxName);
}

}  // namespace

Result<std::vector<EngineModel>> parse_model_list(std::string_view json_text) {
  TANDEM_TRY(json, parse_json(json_text));
  const JsonValue* const data = json.find("data");
  if (data == nullptr || !data->is_array()) return bad("/v1/models has no list");
  std::vector<EngineModel> models;
  for (const JsonValue& entry : data->items()) {
    EngineModel model{text_of(entry, "id"), std::max<int64_t>(0, number_of(entry, "max_model_len")),
                      text_of(entry, "parent")};
    if (!model.id.empty() && models.size() < kMaxModels) models.push_back(std::move(model));
  }
  if (models.empty()) return bad("/v1/models names no model");
  return models;
}

namespace {

// SGLang's descriptor {"publisher": "zmq", "endpoint_host", "endpoint_port_base"}; where past
// events are asked for stands in its argument kv_events_config, a JSON text, if anywhere.
std::string kv_events_of(const JsonValue& json) {
  const JsonValue* const told = json.find("kv_events");
  if (told == nullptr || !told->is_object()) return {};
  std::string endpoint = text_of(*told, "endpoint");
  const std::string host = text_of(*told, "endpoint_host");
  const JsonValue* const port = told->find("endpoint_port_base");
  const int64_t number = port == nullptr ? 0 : port->as_integer().value_or(0);
  if (endpoint.empty() && !host.empty() && number > 0 && number < 65536)
    endpoint = "tcp://" + host + ":" + std::to_string(number);
  if (endpoint.empty()) return {};
  const auto config = parse_json(text_of(json, "kv_events_config"));
  const std::string replay = config ? text_of(*config, "replay_endpoint") : std::string();
  return replay.empty() ? endpoint : endpoint + "," + replay;
}

}  // namespace

Result<ServerInfo> parse_server_info(std::string_view json_text) {
  TANDEM_TRY(json, parse_json(json_text));
  if (!json.is_object()) return bad("/server_info is no object");
  ServerInfo info;
  info.dp_size = static_cast<int32_t>(
      std::clamp<int64_t>(number_of(json, "dp_size"), 1, static_cast<int64_t>(kMaxRanks)));
  info.bootstrap_port = static_cast<uint16_t>(
      std::clamp<int64_t>(number_of(json, "disaggregation_bootstrap_port"), 0, 65535));
  info.mode = text_of(json, "disaggregation_mode");
  // Drawn anew at each start unless the operator chose it.
  info.epoch = text_of(json, "engine_id") + text_of(json, "random_seed");
  info.kv_events = kv_events_of(json);
  // At the top or among what a handoff needs; a list has one entry for each process.
  const JsonValue* const params = json.find("disaggregated_params");
  for (const JsonValue* const object : {static_cast<const JsonValue*>(&json), params}) {
    const JsonValue* endpoint = object == nullptr ? nullptr : object->find("ctx_info_endpoint");
    if (endpoint != nullptr && endpoint->is_array() && !endpoint->items().empty())
      endpoint = &endpoint->items()[0];
    if (endpoint != nullptr && endpoint->is_string())
      info.context_endpoint = endpoint->as_string().substr(0, kMaxName);
    const JsonValue* const rank = object == nullptr ? nullptr : object->find("ctx_dp_rank");
    if (rank != nullptr && rank->as_integer() && *rank->as_integer() >= 0 &&
        *rank->as_integer() < static_cast<int64_t>(kMaxRanks))
      info.context_dp_rank = static_cast<int32_t>(*rank->as_integer());
  }
  return info;
}

Result<std::vector<std::string>> parse_mooncake_query(std::string_view json_text) {
  TANDEM_TRY(json, parse_json(json_text));
  if (!json.is_object()) return bad("bootstrap server's /query is no object");
  std::vector<std::string> engines;
  for (const auto& [rank, entry] : json.members()) {
    size_t number = 0;
    const auto read = std::from_chars(rank.data(), rank.data() + rank.size(), number);
    if (read.ec != std::errc() || read.ptr != rank.data() + rank.size() || number >= kMaxRanks)
      continue;
    if (engines.size() <= number) engines.resize(number + 1);
    engines[number] = text_of(entry, "engine_id");
  }
  if (engines.empty() || std::ranges::any_of(engines, &std::string::empty))
    return bad("bootstrap server's /query does not name every rank's engine");
  return engines;
}

std::optional<EngineLoad> parse_load_reply(std::string_view json_text) {
  const auto json = parse_json(json_text);
  if (!json) return std::nullopt;
  const auto bounded = [](int64_t value) {
    return std::clamp<int64_t>(value, 0, static_cast<int64_t>(kMaxCount));
  };
  if (json->is_object() && json->find("server_load") != nullptr)
    return EngineLoad{bounded(number_of(*json, "server_load")), 0};
  const JsonValue* const list = json->is_array() ? &*json : json->find("loads");
  if (list == nullptr || !list->is_array() || list->items().size() > kMaxRanks) return std::nullopt;
  EngineLoad load;
  for (const JsonValue& rank : list->items()) {
    const bool total = rank.find("num_reqs") != nullptr;
    load.requests +=
        bounded(total ? number_of(rank, "num_reqs")
                      : number_of(rank, "num_running_reqs") + number_of(rank, "num_waiting_reqs"));
    load.tokens += bounded(number_of(rank, "num_tokens"));
  }
  return load;
}

std::optional<EngineLoad> parse_load_metrics(std::string_view text,
                                             std::span<const std::string_view> running,
                                             std::span<const std::string_view> waiting) {
  double requests = 0;
  bool seen = false;
  const auto counts = [&](std::string_view name) {
    return std::ranges::find(running, name) != running.end() ||
           std::ranges::find(waiting, name) != waiting.end();
  };
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.starts_with('#') || !counts(line.substr(0, line.find_first_of("{ ")))) continue;
    const size_t brace = line.rfind('}');
    const size_t space = line.find(' ', brace == std::string_view::npos ? 0 : brace);
    if (space == std::string_view::npos) continue;
    const std::string_view number = line.substr(space + 1);
    double value = 0;
    std::from_chars(number.data(), number.data() + number.size(), value);
    if (!std::isfinite(value)) continue;
    requests += std::clamp(value, 0.0, kMaxCount);
    seen = true;
  }
  if (!seen) return std::nullopt;
  return EngineLoad{static_cast<int64_t>(std::min(requests, kMaxCount)), 0};
}

}  // namespace tandem::router
