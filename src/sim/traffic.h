// Traffic: what clients of a simulated router send. Read from traces of real services; the text of
// a prompt is a list of block ids, and the same id means the same tokens with the same tokens
// before them.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace tandem::sim {

struct TracedRequest {
  double at = 0;       // seconds: of arrival; in a closed loop of thinking after the last answer
  int32_t input = 0;   // tokens
  int32_t output = 0;  // tokens
  std::vector<std::pair<uint32_t, uint32_t>> blocks;  // inclusive ranges of ids
};

// Requests that follow one another: each is sent when the one before it was answered. One request
// alone in an open loop.
struct Conversation {
  uint64_t space = 0;    // ids of blocks are compared within one space
  bool has_key = false;  // it sends an affinity key of its own
  std::vector<TracedRequest> requests;
};

struct Traffic {
  int32_t block_tokens = 512;
  bool closed_loop = false;
  std::vector<Conversation> conversations;  // open loop: in order of arrival
};

enum class TraceForm : uint8_t { kMooncake, kAgentSessions, kAzure };
// By the first line.
Result<TraceForm> guess_trace_form(std::string_view text);

struct TrafficOptions {
  double speed = 1;       // open loop: arrivals come so much faster
  size_t limit = 0;       // conversations; 0: all
  size_t max_turns = 0;   // of a conversation; 0: all
  double max_think = 60;  // seconds: an agent's user may sleep, the simulation need not
  int32_t shrink = 1;     // every length of the trace divided by this, sharing kept
};

// A trace's text, decompressed. Errors: 400 "bad_trace" with the line.
Result<Traffic> read_traffic(std::string_view text, const TrafficOptions& options);

// The ids of a request's whole blocks, each standing for all before it too.
std::vector<uint64_t> chain_of(const Traffic& traffic, const Conversation& conversation,
                               const TracedRequest& request);
// The chain after its answer: with those blocks of the next turn that hold the answer's tokens.
std::vector<uint64_t> chain_after(const Traffic& traffic, const Conversation& conversation,
                                  size_t turn);

}  // namespace tandem::sim
