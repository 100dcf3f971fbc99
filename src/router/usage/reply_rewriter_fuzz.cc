// Whatever a worker answers: no crash; JSON stays JSON; members that are not about tokens keep
// their values; a rewritten reply has nothing left to rewrite; a frame keeps its other lines.
#include <cstdint>
#include <cstdlib>

#include "base/json_value.h"
#include "router/usage/reply_rewriter.h"

namespace {

using tandem::JsonValue;
using namespace tandem::router;

void require(bool good) {
  if (!good) std::abort();
}

bool is_ours(std::string_view key) {
  for (const char* const name : {"usage", "tandem", "response", "message", "meta_info", "choices",
                                 "kv_transfer_params", "disaggregated_params"}) {
    if (key == name) return true;
  }
  return false;
}

void check_rest(const JsonValue& before, const JsonValue& after) {
  require(before.kind() == after.kind());
  for (const auto& [key, value] : before.members()) {
    if (is_ours(key)) continue;
    const JsonValue* const found = after.find(key);
    require(found != nullptr && *found == *before.find(key));
  }
  require(before.items().size() == after.items().size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view json(reinterpret_cast<const char*>(data + 1), size - 1);
  ReplyRules rules;
  rules.api = static_cast<Api>(data[0] % 6);
  rules.pair = (data[0] & 0x10) == 0;
  rules.input_logprobs = (data[0] & 0x20) != 0;
  rules.tandem = (data[0] & 0x40) != 0;
  const bool whole = (data[0] & 0x80) != 0;
  rules.strip = {"kv_transfer_params", "disaggregated_params"};
  PromptTruth truth;
  truth.counts = {12, 5, std::nullopt};
  truth.parts = {truth.counts, truth.counts};
  truth.input_logprobs = {"[[-1,2]]", ""};
  truth.input_top_logprobs = {"", "[]"};
  truth.choice_logprobs = {R"({"tokens":["a","b"]})"};
  truth.generated = 1;
  (void)read_prompt_truth(rules.api, json);
  (void)read_prefill_report(json);
  const bool nothing = ReplyRewriter(rules).need(json, whole) == ReplyRewriter::Need::kNothing;
  (void)nothing;
  ReplyRewriter rewriter(rules);
  const auto out = rewriter.rewrite(json, whole, &truth);
  require(out || rules.tandem);
  if (!out || !out->json) return 0;
  const auto before = tandem::parse_json(json);
  const auto after = tandem::parse_json(*out->json);
  require(before.has_value() && after.has_value());
  check_rest(*before, *after);
  if (!rules.tandem && !rules.input_logprobs) {
    ReplyRewriter again(rules);
    const auto twice = again.rewrite(*out->json, whole, &truth);
    require(twice.has_value() && twice->json.value_or(*out->json) == *out->json);
  }
  (void)replace_sse_data(json, *out->json);
  return 0;
}
