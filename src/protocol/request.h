// What a client asked, in plain types that cross process borders. API dialects parse into these.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "protocol/grammar_spec.h"

namespace tandem::protocol {

// Travels with a request through every process. Workers believe it only from an authenticated
// router.
struct RequestContext {
  std::string request_id;
  std::string tenant;                     // opaque name, empty: the default tenant
  std::string salt;                       // mixed into every ContentId of this request
  int32_t priority = 0;                   // higher runs earlier
  std::chrono::milliseconds deadline{0};  // time left when sent, 0: none
  std::string trace;                      // W3C traceparent, passed on
};

// The most that one request may ask for.
inline constexpr int32_t kMaxChoices = 128;     // best_of
inline constexpr int32_t kMaxTopLogprobs = 20;  // alternatives with each token
inline constexpr size_t kMaxLogitBias = 1024;
inline constexpr size_t kMaxStopTokens = 128;

struct LogitBias {
  int32_t token = 0;
  float bias = 0;
};

struct SamplingParams {
  float temperature = 1.0F;  // 0: greedy
  int32_t top_k = 0;         // 0: off
  float top_p = 1.0F;
  float min_p = 0.0F;      // 0: off; keeps tokens at least this likely relative to the likeliest
  float typical_p = 1.0F;  // in (0, 1], 1: off; locally typical sampling (Meister et al. 2022)
  // Over the text so far: presence and frequency count generated tokens, repetition the prompt's
  // too.
  float presence_penalty = 0.0F;
  float frequency_penalty = 0.0F;
  float repetition_penalty = 1.0F;    // above 0
  std::vector<LogitBias> logit_bias;  // ascending, each token once
  std::optional<uint64_t> seed;
  int32_t max_tokens = 0;   // 0: until the context is full
  bool score_only = false;  // generate nothing: only the prompt's logprobs are wanted
  int32_t min_tokens = 0;   // no stop token or string before so many
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  // The stop string, or what a stop token stands for (nothing for a control token), stays in the
  // text.
  bool include_stop = false;
  bool ignore_eos = false;
  // Tokens that mean something to whoever reads the answer: their spelling stands in the text,
  // though they are control tokens, and is marked (TextEvent::marks). Ascending.
  std::vector<int32_t> kept_tokens;
  int32_t n = 1;                    // choices delivered
  int32_t best_of = 1;              // choices generated, at least n; the likeliest n are kept
  std::optional<int32_t> logprobs;  // with every generated token: so many alternatives
  std::optional<int32_t> prompt_logprobs;  // the same for the prompt's tokens
};

// A rendezvous of two legs. `attempt` grows when a replacement worker dials again.
struct HandoffTicket {
  std::string handoff_id;  // 32 hex digits, minted by the router
  uint32_t attempt = 1;
  std::string prefill_address;  // decode side only: where to dial ("unix:/path")
};

enum class LegKind : uint8_t { kUnified, kPrefill, kDecode };

// Logprobs of a prompt are held until all are there and told with every choice: at most so many
// numbers in one answer.
inline constexpr int64_t kMaxPromptChances = int64_t{1} << 20;
// 400 when the prompts of one answer, `tokens` together, have more.
Status check_prompt_chances(int64_t tokens, const SamplingParams& params);

// Whether a request runs on one worker however many pools there are: what it wants of the prompt's
// rows stays where they are computed.
inline bool needs_one_leg(const SamplingParams& params) {
  return params.score_only || params.prompt_logprobs.has_value();
}

// What an engine runs: one prompt, `sampling.best_of` sequences.
struct GenerateRequest {
  RequestContext context;
  std::vector<int32_t> prompt;
  std::string adapter;  // LoRA adapter by name, empty: the base model; part of every ContentId
  SamplingParams sampling;
  std::optional<GrammarSpec> grammar;  // of the answer's text
  LegKind leg = LegKind::kUnified;
  HandoffTicket handoff;  // meaningful unless kUnified
};

// How the hidden states of a prompt become one vector.
enum class Pooling : uint8_t { kMean, kLast };

struct EmbedRequest {
  RequestContext context;
  std::vector<int32_t> prompt;
  std::string adapter;
  Pooling pooling = Pooling::kMean;
};

}  // namespace tandem::protocol
