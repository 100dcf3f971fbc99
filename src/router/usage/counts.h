// The numbers inside a usage object or a meta_info object, in any spelling.
#pragma once

#include <array>
#include <string_view>

#include "base/json_scan.h"
#include "router/usage/prompt_truth.h"

namespace tandem::router {

// Of replies, whose lists (choices, batches) may be long.
inline constexpr JsonScanLimits kReplyLimits{.max_depth = kJsonMaxDepth, .max_members = 1U << 20};

struct UsageNumbers {
  PromptCounts prompt;
  std::optional<int64_t> completion;
};

// The names by which an API counts; `details` holds cached_tokens.
struct UsageNames {
  std::string_view prompt;
  std::string_view completion;
  std::string_view details;
};
inline constexpr UsageNames kOpenAiNames{"prompt_tokens", "completion_tokens",
                                         "prompt_tokens_details"};
inline constexpr UsageNames kResponsesNames{"input_tokens", "output_tokens",
                                            "input_tokens_details"};
inline constexpr std::string_view kCacheRead = "cache_read_input_tokens";
inline constexpr std::string_view kCacheWritten = "cache_creation_input_tokens";

// By which of the two an object counts.
const UsageNames& usage_names(const JsonScan& scan);

// A count of tokens: nothing when it is missing, negative or beyond 2^53.
std::optional<int64_t> token_count(std::string_view text, const JsonMemberSpan* member);

// `scan` is of `usage`, an object.
UsageNumbers read_usage(std::string_view usage, const JsonScan& scan);
// SGLang's meta_info.
UsageNumbers read_meta_info(std::string_view meta, const JsonScan& scan);

}  // namespace tandem::router
