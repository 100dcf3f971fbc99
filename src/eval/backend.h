// What answers questions: a model in this process, or any server that speaks OpenAI's API.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json_value.h"
#include "base/result.h"
#include "eval/loaded_model.h"

namespace tandem::eval {

struct Prompt {
  std::string text;    // a plain prompt, or
  JsonValue messages;  // an array: a chat
};

struct Generation {
  int32_t max_tokens = 512;
  double temperature = 0;
  uint64_t seed = 0;
  std::vector<std::string> stop;
};

struct Generated {
  std::string text;
  bool cut = false;  // ended by max_tokens
};

// Any number of threads may ask at once.
class Generator {
 public:
  virtual ~Generator() = default;
  virtual Result<Generated> generate(const Prompt& prompt, const Generation& how) = 0;
};

struct Score {
  double logprob = 0;  // of the continuation, summed over its tokens; nats
  int32_t tokens = 0;
};

// Log-likelihood of continuations of one text.
class Scorer {
 public:
  virtual ~Scorer() = default;
  // How many threads may ask at once with profit.
  virtual int32_t parallel() const = 0;
  virtual Result<std::vector<Score>> score(const std::string& context,
                                           std::span<const std::string> continuations) = 0;
};

// Through the engine: continuous batching, prefix cache. Takes the model; `kv_bytes` for its pages.
// Errors of create: 400 when that memory is too small.
Result<std::unique_ptr<Generator>> make_local_generator(LoadedModel loaded, size_t kv_bytes,
                                                        int32_t prefill_chunk,
                                                        int32_t max_sequences);
// One sequence at a time, reusing what it shares with the one before. `loaded` outlives it. Pages
// are made for `most_tokens`, or the model's context when that is shorter; longer texts are a 400.
Result<std::unique_ptr<Scorer>> make_local_scorer(LoadedModel& loaded, int32_t most_tokens = 8192);

struct Server {
  std::string url;  // "http://host:port", with or without "/v1"
  std::string model = "default";
  std::string api_key;
  int32_t parallel = 8;
};
// POST /v1/completions or /v1/chat/completions. A server that is busy (429, 503) or cannot be
// reached for a moment is asked again, with pauses, for about half a minute.
Result<std::unique_ptr<Generator>> make_server_generator(const Server& server);
// POST /v1/completions with echo, logprobs and max_tokens 0.
Result<std::unique_ptr<Scorer>> make_server_scorer(const Server& server);

// Where a continuation begins in the reply's tokens: the first that ends beyond `context`
// characters (a token may straddle the border). `offsets` are each token's first character.
size_t first_token_beyond(std::span<const int64_t> offsets, int64_t context);
int64_t count_characters(std::string_view utf8);

}  // namespace tandem::eval
