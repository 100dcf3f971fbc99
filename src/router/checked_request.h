// A request that was read and found good: what its legs are made from.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "api/openai.h"
#include "api/response_store.h"
#include "router/connectors/facts.h"
#include "router/model_list.h"
#include "router/prompt_prefix.h"

namespace tandem::router {

// What a generating route asks for.
struct GenerateRoute {
  Api api = Api::kOther;
  std::optional<api::Endpoint> endpoint;  // of Tandem's own models; nothing: not for them
};

// What the router read of a request for one of Tandem's own models: it renders and tokenizes.
struct TandemRequest {
  std::string adapter;          // empty: the model itself
  std::string salt;             // of the prompts' cached KV
  std::vector<int32_t> prompt;  // the first
  std::string ids_json;         // the prompts' ids, shared by every leg's body
  // Of the Responses dialect, when the response is to be kept: the items of the conversation and
  // those that this body adds, JSON arrays. Empty: it is not kept.
  std::string conversation;
  std::string input;
};

struct CheckedRequest {
  std::shared_ptr<const ServedModel> model;
  Api api = Api::kOther;
  std::shared_ptr<const std::string> body;  // the client's, every byte
  BodyFacts facts;
  std::optional<TandemRequest> tandem;  // nothing: another engine's model, an opaque body

  PromptPrefix prefix;        // of the first prompt
  int64_t prompt_tokens = 0;  // of all prompts; of an opaque body an estimate
  bool one_worker = false;    // whatever the pools: prompt logprobs, embeddings, ...
  int32_t max_tokens = 0;
  bool stream = false;
  bool include_usage = false;
  bool report = false;       // x-tandem-report
  std::string affinity_key;  // empty: by the first blocks
  uint64_t tenant = 0;       // digest of the client's key; 0: it has none
  std::string request_id;
  std::string traceparent;
};

// Both are pure and may run on any thread. `models` and the facts come from the same body.
// Reads, checks, renders and tokenizes a body of Tandem's own model.
Result<CheckedRequest> check_tandem_request(const GenerateRoute& route,
                                            std::shared_ptr<const std::string> body,
                                            const ModelList& models, const PrefixHasher& hasher,
                                            api::ResponseStore& responses, uint64_t tenant);
// An opaque body: nothing is read beyond its facts.
CheckedRequest check_opaque_request(const GenerateRoute& route,
                                    std::shared_ptr<const std::string> body, BodyFacts facts,
                                    ModelList::Pointer model, const PrefixRule& rule);

// The keys of such a prompt, as what Tandem's workers tell of their blocks leads to.
PromptPrefix tandem_prefix(const PrefixHasher& hasher, const ServedModel& model,
                           const TandemRequest& request, std::span<const int32_t> tokens);
// Those of the prompt, whose own are `prompt`, and the answer after it.
PromptPrefix tandem_prefix_after(const PrefixHasher& hasher, const ServedModel& model,
                                 const TandemRequest& request, const PromptPrefix& prompt,
                                 std::span<const int32_t> answer);

}  // namespace tandem::router
