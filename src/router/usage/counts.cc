#include "router/usage/counts.h"

namespace tandem::router {

const UsageNames& usage_names(const JsonScan& scan) {
  return scan.find("input_tokens") != nullptr || scan.find("output_tokens") != nullptr
             ? kResponsesNames
             : kOpenAiNames;
}

std::optional<int64_t> token_count(std::string_view text, const JsonMemberSpan* member) {
  const std::optional<int64_t> count = json_integer_of(text, member);
  if (!count || *count < 0 || *count > int64_t{1} << 53) return std::nullopt;
  return count;
}

UsageNumbers read_usage(std::string_view usage, const JsonScan& scan) {
  const UsageNames& names = usage_names(scan);
  UsageNumbers numbers;
  numbers.prompt.prompt = token_count(usage, scan.find(names.prompt));
  numbers.completion = token_count(usage, scan.find(names.completion));
  numbers.prompt.cached = token_count(usage, scan.find(kCacheRead));
  numbers.prompt.cache_written = token_count(usage, scan.find(kCacheWritten));
  const JsonMemberSpan* const details = scan.find(names.details);
  if (details != nullptr && details->kind == JsonValue::Kind::kObject) {
    const std::string_view text = json_value_of(usage, *details);
    if (const auto inner = scan_json(text, kReplyLimits))
      numbers.prompt.cached = token_count(text, inner->find("cached_tokens"));
  } else if (!numbers.prompt.cached) {
    numbers.prompt.cached = token_count(usage, scan.find("cached_tokens"));  // Tandem's report
  }
  return numbers;
}

UsageNumbers read_meta_info(std::string_view meta, const JsonScan& scan) {
  UsageNumbers numbers;
  numbers.prompt.prompt = token_count(meta, scan.find("prompt_tokens"));
  numbers.prompt.cached = token_count(meta, scan.find("cached_tokens"));
  numbers.completion = token_count(meta, scan.find("completion_tokens"));
  return numbers;
}

}  // namespace tandem::router
