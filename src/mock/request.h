// What a mock engine reads off a request's body, in any of the APIs it serves.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_value.h"
#include "base/result.h"

namespace tandem::mock {

enum class Api : uint8_t { kChat, kCompletions, kGenerate, kResponses, kMessages };
inline constexpr size_t kApis = 5;

struct MockRequest {
  Api api = Api::kChat;
  JsonValue body;
  std::string model;
  // A "token" is a given id, or the hash of four bytes of text.
  std::vector<std::vector<uint32_t>> prompts;  // of a batch several
  int32_t n = 1;
  int32_t max_tokens = 0;  // 0: not asked for
  bool stream = false;
  bool include_usage = false;
  bool logprobs = false;  // SGLang's return_logprob

  int64_t prompt_tokens() const;  // of all prompts
};

// 400 with a sentence for what no engine takes: no JSON, no prompt, n below 1.
// `byte_tokens`: see MockOptions.
Result<MockRequest> read_request(Api api, std::string_view body, bool byte_tokens = false);

}  // namespace tandem::mock
