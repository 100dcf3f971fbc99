#include "cli/bench_trace.h"

#include <algorithm>
#include <utility>

#include "numerics/mix.h"
#include "sim/traffic.h"

namespace tandem::cli {

namespace {

using loadgen::Segment;

uint64_t block_seed(uint64_t space, uint64_t id) { return mix64(mix64(space + 1) + id); }

// A prompt as its blocks: of a trace without ids, one that nothing shares.
std::vector<Segment> segments_of(const sim::Conversation& conversation,
                                 const sim::TracedRequest& request, uint64_t unique,
                                 int32_t tokens_per_block) {
  std::vector<Segment> out;
  int32_t left = request.input;
  for (const auto& [first, last] : request.blocks) {
    for (uint64_t id = first; id <= last && left > 0; ++id) {
      const int32_t tokens = std::min(left, tokens_per_block);
      out.push_back({loadgen::Role::kUser, block_seed(conversation.space, id), tokens});
      left -= tokens;
    }
  }
  if (left > 0) out.push_back({loadgen::Role::kUser, block_seed(~unique, 0), left});
  return out;
}

bool equal(const Segment& a, const Segment& b) { return a.seed == b.seed && a.tokens == b.tokens; }

loadgen::Session session_of(const sim::Traffic& traffic, const sim::Conversation& conversation,
                            uint64_t unique) {
  // The ids of agent sessions are of blocks an eighth as long as the traffic's (sim/traffic.cc).
  const int32_t per_block =
      std::max(1, traffic.closed_loop ? traffic.block_tokens / 8 : traffic.block_tokens);
  loadgen::Session session;
  session.has_key = conversation.has_key;
  std::vector<Segment> before;
  for (const sim::TracedRequest& request : conversation.requests) {
    std::vector<Segment> now = segments_of(conversation, request, unique, per_block);
    loadgen::Turn turn;
    while (turn.keep < std::min(before.size(), now.size()) &&
           equal(before[turn.keep], now[turn.keep]))
      ++turn.keep;
    turn.append.assign(now.begin() + static_cast<std::ptrdiff_t>(turn.keep), now.end());
    turn.output_tokens = request.output;
    if (traffic.closed_loop) {
      turn.think = request.at;
    } else {
      session.at = request.at;
    }
    session.turns.push_back(std::move(turn));
    before = std::move(now);
  }
  return session;
}

}  // namespace

Result<BenchTrace> read_bench_trace(std::string_view text, const BenchTraceOptions& options) {
  BenchTrace trace;
  const auto form = sim::guess_trace_form(text);
  if (!form) {
    const std::string_view line = text.substr(0, std::min<size_t>(text.find('\n'), 4096));
    if (!line.starts_with('{')) return tl::unexpected(form.error());
    TANDEM_TRY(sessions, loadgen::read_prompts(text, options.output_tokens));
    trace.sessions = std::move(sessions);
    if (options.limit > 0 && trace.sessions.size() > options.limit)
      trace.sessions.resize(options.limit);
    trace.times = std::ranges::any_of(trace.sessions,
                                      [](const loadgen::Session& each) { return each.at > 0; });
    trace.form = "prompts";
    return trace;
  }
  sim::TrafficOptions asked;
  asked.limit = options.limit;
  asked.max_turns = options.turns;
  asked.max_think = options.max_think;
  asked.shrink = options.shrink;
  TANDEM_TRY(traffic, sim::read_traffic(text, asked));
  uint64_t unique = 0;
  for (const sim::Conversation& conversation : traffic.conversations)
    trace.sessions.push_back(session_of(traffic, conversation, unique++));
  trace.times = !traffic.closed_loop;
  trace.form = *form == sim::TraceForm::kMooncake        ? "Mooncake trace"
               : *form == sim::TraceForm::kAgentSessions ? "agent sessions"
                                                         : "Azure trace";
  return trace;
}

}  // namespace tandem::cli
