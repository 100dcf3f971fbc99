#include "sim/traffic.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include "base/json_value.h"
#include "sim/event_loop.h"

namespace tandem::sim {

namespace {

constexpr int64_t kMostTokens = int64_t{1} << 24;
constexpr int32_t kAgentCoarse = 8;  // blocks of 64 tokens become one of 512

Error bad_trace(size_t line, const std::string& what) {
  return {400, "bad_trace", "line " + std::to_string(line) + " of the trace " + what};
}

int64_t integer_of(const JsonValue& json, std::string_view key) {
  const JsonValue* const value = json.find(key);
  if (value == nullptr) return -1;
  return value->as_integer().value_or(-1);
}

double number_of(const JsonValue& json, std::string_view key) {
  const JsonValue* const value = json.find(key);
  return value == nullptr ? 0 : std::max(0.0, value->as_double().value_or(0));
}

template <typename Take>
Status each_line(std::string_view text, Take take) {
  size_t number = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    ++number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty()) continue;
    TANDEM_TRY(more, take(line, number));
    if (!more) break;
  }
  return {};
}

bool lengths_are_good(int64_t input, int64_t output) {
  return input > 0 && output >= 0 && input < kMostTokens && output < kMostTokens;
}

Result<TracedRequest> read_mooncake(std::string_view line, size_t number) {
  TANDEM_TRY(json, parse_json(line));
  const int64_t input = integer_of(json, "input_length");
  const int64_t output = integer_of(json, "output_length");
  const JsonValue* const ids = json.find("hash_ids");
  if (!lengths_are_good(input, output) || ids == nullptr)
    return tl::unexpected(bad_trace(number, "lacks input_length, output_length or hash_ids"));
  TracedRequest request;
  request.at = number_of(json, "timestamp") / 1000;
  request.input = static_cast<int32_t>(input);
  request.output = static_cast<int32_t>(std::max<int64_t>(output, 1));
  for (const JsonValue& id : ids->items()) {
    const auto value = static_cast<uint32_t>(id.as_integer().value_or(0));
    if (!request.blocks.empty() && request.blocks.back().second + 1 == value) {
      request.blocks.back().second = value;
    } else {
      request.blocks.emplace_back(value, value);
    }
  }
  return request;
}

Result<TracedRequest> read_agent_request(const JsonValue& json, double max_think, size_t number) {
  const int64_t input = integer_of(json, "in");
  const int64_t output = integer_of(json, "out");
  const JsonValue* const blocks = json.find("blocks");
  if (!lengths_are_good(input, output) || blocks == nullptr)
    return tl::unexpected(bad_trace(number, "has a request without in, out or blocks"));
  TracedRequest request;
  request.at = std::min(number_of(json, "think_time"), max_think);
  request.input = static_cast<int32_t>(input);
  request.output = static_cast<int32_t>(std::max<int64_t>(output, 1));
  for (const JsonValue& range : blocks->items()) {
    if (range.items().size() != 2) return tl::unexpected(bad_trace(number, "has a bad range"));
    const int64_t first = range.items()[0].as_integer().value_or(-1);
    const int64_t last = range.items()[1].as_integer().value_or(-1);
    if (first < 0 || last < first || last > kMostTokens)
      return tl::unexpected(bad_trace(number, "has a bad range"));
    request.blocks.emplace_back(static_cast<uint32_t>(first), static_cast<uint32_t>(last));
  }
  return request;
}

// A session and its sub-agents: conversations of their own with the same block ids and key.
Status read_agent_session(const JsonValue& session, uint64_t space, const TrafficOptions& options,
                          size_t number, Traffic& traffic) {
  const JsonValue* const requests = session.find("requests");
  if (requests == nullptr) return tl::unexpected(bad_trace(number, "has no requests"));
  Conversation conversation;
  conversation.space = space;
  conversation.has_key = true;
  std::vector<const JsonValue*> nested;
  for (const JsonValue& json : requests->items()) {
    if (json.find("requests") != nullptr) {
      nested.push_back(&json);
      continue;
    }
    if (options.max_turns != 0 && conversation.requests.size() >= options.max_turns) break;
    TANDEM_TRY(request, read_agent_request(json, options.max_think, number));
    conversation.requests.push_back(std::move(request));
  }
  if (!conversation.requests.empty()) traffic.conversations.push_back(std::move(conversation));
  for (const JsonValue* const inner : nested)
    TANDEM_CHECK(read_agent_session(*inner, space, options, number, traffic));
  return {};
}

// 2023-11-16 18:17:03.9799600: seconds since the day began; the traces last an hour or so.
double time_of_day(std::string_view text) {
  const size_t space = text.find(' ');
  if (space == std::string_view::npos || text.size() < space + 9) return 0;
  const std::string clock(text.substr(space + 1));
  return std::atof(clock.substr(0, 2).c_str()) * 3600 + std::atof(clock.substr(3, 2).c_str()) * 60 +
         std::atof(clock.substr(6).c_str());
}

Result<TracedRequest> read_azure(std::string_view line, size_t number) {
  const size_t one = line.find(',');
  const size_t two = one == std::string_view::npos ? one : line.find(',', one + 1);
  if (two == std::string_view::npos)
    return tl::unexpected(bad_trace(number, "has no three fields"));
  const int64_t input = std::atoll(std::string(line.substr(one + 1, two - one - 1)).c_str());
  const int64_t output = std::atoll(std::string(line.substr(two + 1)).c_str());
  if (!lengths_are_good(input, output)) return tl::unexpected(bad_trace(number, "has bad lengths"));
  TracedRequest request;
  request.at = time_of_day(line.substr(0, one));
  request.input = static_cast<int32_t>(input);
  request.output = static_cast<int32_t>(std::max<int64_t>(output, 1));
  return request;
}

void shrink(Traffic& traffic, int32_t by) {
  traffic.block_tokens = std::max(1, traffic.block_tokens / by);
  for (Conversation& conversation : traffic.conversations) {
    for (TracedRequest& request : conversation.requests) {
      request.input = std::max(1, request.input / by);
      request.output = std::max(1, request.output / by);
    }
  }
}

void begin_at_zero(Traffic& traffic, double speed) {
  // By time, and what came at the same time in the order of the trace.
  std::multimap<double, Conversation> ordered;
  for (Conversation& conversation : traffic.conversations) {
    const double at = conversation.requests.front().at;
    ordered.emplace(at, std::move(conversation));
  }
  traffic.conversations.clear();
  for (auto& [at, conversation] : ordered) traffic.conversations.push_back(std::move(conversation));
  if (traffic.conversations.empty()) return;
  const double first = traffic.conversations.front().requests.front().at;
  for (Conversation& conversation : traffic.conversations) {
    double& at = conversation.requests.front().at;
    at = (at - first) / std::max(speed, 1e-6);
  }
}

}  // namespace

Result<TraceForm> guess_trace_form(std::string_view text) {
  const std::string_view line = text.substr(0, std::min<size_t>(text.find('\n'), 4096));
  if (line.find("\"hash_ids\"") != std::string_view::npos) return TraceForm::kMooncake;
  if (line.find("\"requests\"") != std::string_view::npos) return TraceForm::kAgentSessions;
  if (line.starts_with("TIMESTAMP,")) return TraceForm::kAzure;
  return make_error(
      400, "bad_trace",
      "the trace is neither Mooncake's (hash_ids), nor agent sessions (requests), nor "
      "Azure's (TIMESTAMP,ContextTokens,GeneratedTokens)");
}

Result<Traffic> read_traffic(std::string_view text, const TrafficOptions& options) {
  TANDEM_TRY(form, guess_trace_form(text));
  Traffic traffic;
  traffic.closed_loop = form == TraceForm::kAgentSessions;
  if (traffic.closed_loop) traffic.block_tokens = 64 * kAgentCoarse;
  const auto full = [&] {
    return options.limit != 0 && traffic.conversations.size() >= options.limit;
  };
  TANDEM_CHECK(each_line(text, [&](std::string_view line, size_t number) -> Result<bool> {
    if (traffic.closed_loop) {
      TANDEM_TRY(json, parse_json(line));
      TANDEM_CHECK(read_agent_session(json, number, options, number, traffic));
      return !full();
    }
    if (form == TraceForm::kAzure && number == 1) return true;
    TANDEM_TRY(request,
               form == TraceForm::kAzure ? read_azure(line, number) : read_mooncake(line, number));
    Conversation conversation;
    conversation.space = form == TraceForm::kAzure ? number : 0;
    conversation.requests.push_back(std::move(request));
    traffic.conversations.push_back(std::move(conversation));
    return !full();
  }));
  if (traffic.conversations.empty()) return make_error(400, "bad_trace", "the trace is empty");
  if (!traffic.closed_loop) begin_at_zero(traffic, options.speed);
  if (options.shrink > 1) shrink(traffic, options.shrink);
  return traffic;
}

std::vector<uint64_t> chain_of(const Traffic& traffic, const Conversation& conversation,
                               const TracedRequest& request) {
  const uint64_t coarse = traffic.closed_loop ? kAgentCoarse : 1;
  const auto whole = static_cast<size_t>(request.input / traffic.block_tokens);
  std::vector<uint64_t> chain;
  chain.reserve(whole);
  uint64_t hash = mix(conversation.space, 0x7461);
  uint64_t position = 0;
  for (const auto& [first, last] : request.blocks) {
    for (uint64_t id = first; id <= last && chain.size() < whole; ++id) {
      hash = mix(hash, id);
      if (++position % coarse == 0) chain.push_back(hash);
    }
  }
  // A trace without ids shares nothing.
  while (request.blocks.empty() && chain.size() < whole)
    chain.push_back(hash = mix(hash, position++));
  return chain;
}

std::vector<uint64_t> chain_after(const Traffic& traffic, const Conversation& conversation,
                                  size_t turn) {
  const TracedRequest& request = conversation.requests[turn];
  std::vector<uint64_t> chain = chain_of(traffic, conversation, request);
  if (turn + 1 >= conversation.requests.size() || chain.empty()) return chain;
  const auto next = chain_of(traffic, conversation, conversation.requests[turn + 1]);
  if (next.size() < chain.size() || next[chain.size() - 1] != chain.back()) return chain;
  const auto known = static_cast<size_t>((request.input + request.output) / traffic.block_tokens);
  for (size_t i = chain.size(); i < std::min(known, next.size()); ++i) chain.push_back(next[i]);
  return chain;
}

}  // namespace tandem::sim
