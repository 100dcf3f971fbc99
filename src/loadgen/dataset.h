// Datasets: plans of what clients ask, without any text: which parts a conversation has, which of
// them are the same as in others, how long each is, and how long its user thinks. prompt_text.h
// turns a part into words or token ids; the same part gives the same text everywhere.
//
// Sessions are made one at a time, so a plan takes no memory however long the run is. The same seed
// gives the same plan. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "loadgen/random.h"

namespace tandem::loadgen {

// Lengths in tokens: "512", "100-900" (uniform), "normal:512,128", "lognormal:512,0.8" (median and
// sigma).
struct Lengths {
  enum class Kind : uint8_t { kFixed, kUniform, kNormal, kLogNormal };
  Kind kind = Kind::kFixed;
  double a = 0;
  double b = 0;
  int32_t draw(Random& random) const;  // at least 1, at most kMostTokens
};
inline constexpr int32_t kMostTokens = 1 << 24;
Result<Lengths> parse_lengths(std::string_view text);

enum class Role : uint8_t { kSystem, kUser, kAssistant, kTool };
std::string_view role_name(Role role);

struct Segment {
  Role role = Role::kUser;
  uint64_t seed = 0;      // equal seeds, equal text
  int32_t tokens = 0;     // asked for; what it is with a server's tokenizer, the server says
  std::string text = {};  // as it is, instead of words made from the seed
};

// A request: the conversation so far cut to `keep` segments, `append` put behind them.
struct Turn {
  double think = 0;  // seconds to wait after the last answer (of a first turn: after the arrival)
  size_t keep = 0;   // of the segments of the turn before
  bool keep_answer = false;  // all of them are kept, then the server's own last answer follows
  std::vector<Segment> append;
  int32_t output_tokens = 0;
};

struct Session {
  uint64_t id = 0;
  double at = 0;         // seconds: arrival in a trace that has times
  bool has_key = false;  // sends a session key of its own
  std::vector<Turn> turns;
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::optional<Session> next() = 0;  // nothing: the plan is at its end
  virtual bool has_times() const { return false; }
};

// One request each, no two alike.
struct RandomOptions {
  Lengths input{Lengths::Kind::kFixed, 512};
  Lengths output{Lengths::Kind::kFixed, 128};
  uint64_t seed = 1;
};
std::unique_ptr<Dataset> random_dataset(const RandomOptions& options);

// `prefixes` system prompts, each with `questions` questions (0: without end), in random order.
struct SharedPrefixOptions {
  int32_t prefixes = 8;
  int32_t questions = 0;
  Lengths prefix{Lengths::Kind::kFixed, 1024};
  Lengths question{Lengths::Kind::kFixed, 64};
  Lengths output{Lengths::Kind::kFixed, 128};
  uint64_t seed = 1;
};
std::unique_ptr<Dataset> shared_prefix_dataset(const SharedPrefixOptions& options);

// Coding agents: one system prompt with tools for all, a question, then turn after turn the answer
// and what the tool it called gave. Lengths have the spread of 473 recorded sessions and a fourth
// of their medians (358 tokens added by a tool, 218 answered, 42 turns; bench/data/README.md).
struct AgentOptions {
  Lengths system{Lengths::Kind::kFixed, 2048};
  Lengths question{Lengths::Kind::kLogNormal, 60, 0.8};
  Lengths tool_result{Lengths::Kind::kLogNormal, 90, 1.8};
  Lengths output{Lengths::Kind::kLogNormal, 55, 0.9};
  Lengths turns{Lengths::Kind::kLogNormal, 10, 1.1};
  int32_t most_turns = 64;
  double think_median = 1;  // seconds; lognormal with sigma 1
  uint64_t seed = 1;
};
std::unique_ptr<Dataset> agent_dataset(const AgentOptions& options);

// Given sessions, in order, once or again and again (each round with text of its own).
std::unique_ptr<Dataset> listed_dataset(std::vector<Session> sessions, bool repeat, bool times);

// A user's own prompts: JSON lines with "prompt" (text) or "messages" (role and content as text),
// and, as wanted, "output_tokens" or "max_tokens" and "at" (seconds). Errors: 400 "bad_trace" with
// the line.
Result<std::vector<Session>> read_prompts(std::string_view text, int32_t output_tokens);

}  // namespace tandem::loadgen
