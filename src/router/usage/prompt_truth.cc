#include "router/usage/prompt_truth.h"

#include <optional>
#include <utility>

#include "router/usage/counts.h"
#include "router/usage/reply_words.h"

namespace tandem::router {

namespace {

tl::unexpected<Error> bad_response(const char* what) {
  return make_error(502, "bad_response", std::string("the prefill worker's answer ") + what);
}

bool is_object(const JsonMemberSpan* member) {
  return member != nullptr && member->kind == JsonValue::Kind::kObject;
}

// No worker holds more of a prompt than there is.
PromptCounts possible(PromptCounts counts) {
  if (counts.prompt && counts.cached && *counts.cached > *counts.prompt &&
      !counts.cache_written)  // Anthropic's input_tokens leave the cached ones out
    counts.cached = counts.prompt;
  return counts;
}

std::string array_text(std::string_view text, const JsonMemberSpan* member) {
  if (member == nullptr || member->kind != JsonValue::Kind::kArray || member->elements == 0)
    return {};
  return std::string(json_value_of(text, *member));
}

// The meta_info of an object that may have one. Its counts: of a prompt and what was generated.
std::optional<UsageNumbers> read_meta(std::string_view item, PromptTruth& truth) {
  truth.input_logprobs.emplace_back();
  truth.input_top_logprobs.emplace_back();
  const auto scan = scan_json(item, kReplyLimits);
  const JsonMemberSpan* const meta = scan ? scan->find("meta_info") : nullptr;
  if (!is_object(meta)) return std::nullopt;
  const std::string_view text = json_value_of(item, *meta);
  const auto inner = scan_json(text, kReplyLimits);
  if (!inner) return std::nullopt;
  truth.input_logprobs.back() = array_text(text, inner->find("input_token_logprobs"));
  truth.input_top_logprobs.back() = array_text(text, inner->find("input_top_logprobs"));
  return read_meta_info(text, *inner);
}

// One object of SGLang's native form.
void read_part(std::string_view item, PromptTruth& truth) {
  truth.parts.emplace_back();
  const auto numbers = read_meta(item, truth);
  if (!numbers) return;
  truth.parts.back() = possible(numbers->prompt);
  truth.generated += numbers->completion.value_or(0);
}

void sum_parts(PromptTruth& truth) {
  PromptCounts sum{0, 0, std::nullopt};
  for (const PromptCounts& part : truth.parts) {
    sum.prompt =
        sum.prompt && part.prompt ? std::optional(*sum.prompt + *part.prompt) : std::nullopt;
    sum.cached =
        sum.cached && part.cached ? std::optional(*sum.cached + *part.cached) : std::nullopt;
  }
  truth.counts = sum;
}

void read_choices(Api api, std::string_view choices, PromptTruth& truth) {
  const auto list = scan_json(choices, kReplyLimits);
  if (!list) return;
  for (const JsonMemberSpan& element : list->members()) {
    const std::string_view choice = json_value_of(choices, element);
    (void)read_meta(choice, truth);
    if (api != Api::kCompletions) continue;
    truth.choice_logprobs.emplace_back();
    const auto scan = scan_json(choice, kReplyLimits);
    const JsonMemberSpan* const logprobs = scan ? scan->find("logprobs") : nullptr;
    if (is_object(logprobs)) truth.choice_logprobs.back() = json_value_of(choice, *logprobs);
  }
}

}  // namespace

Result<JsonScan> scan_prefill_reply(std::string_view reply) {
  auto scan = scan_json(reply, kReplyLimits);
  if (!scan) return bad_response("is not JSON");
  return std::move(*scan);
}

Result<PromptTruth> read_prompt_truth(Api api, std::string_view reply) {
  TANDEM_TRY(scan, scan_prefill_reply(reply));
  return read_prompt_truth(api, reply, scan);
}

PromptTruth read_prompt_truth(Api api, std::string_view reply, const JsonScan& scan) {
  PromptTruth truth;
  if (scan.is_array()) {
    for (const JsonMemberSpan& item : scan.members()) read_part(json_value_of(reply, item), truth);
    sum_parts(truth);
    return truth;
  }
  if (scan.find("meta_info") != nullptr) {
    read_part(reply, truth);
    sum_parts(truth);
    return truth;
  }
  const JsonMemberSpan* const usage = scan.find("usage");
  if (is_object(usage)) {
    const std::string_view text = json_value_of(reply, *usage);
    if (const auto inner = scan_json(text, kReplyLimits)) {
      const UsageNumbers numbers = read_usage(text, *inner);
      truth.counts = possible(numbers.prompt);
      truth.generated = numbers.completion.value_or(0);
    }
  }
  const JsonMemberSpan* const choices = scan.find("choices");
  // Where there are no logprobs, choices have nothing that matters.
  const bool told = find_word(reply, "\"meta_info\"") != std::string_view::npos ||
                    (api == Api::kCompletions && holds_member(reply, "\"logprobs\""));
  if (told && (api == Api::kCompletions || api == Api::kChat) && choices != nullptr &&
      choices->kind == JsonValue::Kind::kArray && choices->elements > 0)
    read_choices(api, json_value_of(reply, *choices), truth);
  return truth;
}

Result<TandemPrefillReport> read_prefill_report(std::string_view reply) {
  const auto scan = scan_json(reply, kReplyLimits);
  if (!scan || json_text_of(reply, scan->find("object")) != "tandem.prefill" ||
      !is_object(scan->find("usage")))
    return bad_response("is not a tandem.prefill object");
  TandemPrefillReport report;
  report.truth = read_prompt_truth(Api::kOther, reply, *scan);
  PromptCounts& counts = report.truth.counts;
  const std::string_view usage = json_value_of(reply, *scan->find("usage"));
  TANDEM_TRY(inner, scan_json(usage, kReplyLimits));
  const int64_t cached = json_integer_of(usage, inner.find("cached_tokens")).value_or(0);
  if (counts.prompt.value_or(0) <= 0 || cached < 0 || cached > *counts.prompt)
    return bad_response("has impossible counts");
  counts.cached = cached;
  report.kv_bytes = json_integer_of(reply, scan->find("kv_bytes")).value_or(0);
  report.blocks_sent = json_integer_of(reply, scan->find("blocks_sent")).value_or(0);
  return report;
}

}  // namespace tandem::router
