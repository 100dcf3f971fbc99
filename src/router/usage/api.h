// Which API a request speaks, as far as a router must know: where its prompt stands, which fields
// bound its output, where its reply counts tokens.
#pragma once

#include <cstdint>
#include <string_view>

namespace tandem::router {

enum class Api : uint8_t {
  kChat,         // /v1/chat/completions
  kCompletions,  // /v1/completions
  kResponses,    // /v1/responses
  kMessages,     // /v1/messages (Anthropic)
  kGenerate,     // /generate (SGLang)
  kInference,    // /inference/v1/generate (vLLM, token ids in and out)
  kOther,        // anything else: one worker, passed through
};

Api api_of_path(std::string_view path);  // the path without its query
constexpr bool generates(Api api) { return api != Api::kOther; }

// Sets of APIs, for tables.
constexpr unsigned api_bit(Api api) { return 1U << static_cast<unsigned>(api); }

}  // namespace tandem::router
