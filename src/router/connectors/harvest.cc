#include "router/connectors/harvest.h"

#include "base/json_splice.h"
#include "router/usage/counts.h"

namespace tandem::router {

namespace {

using Kind = JsonValue::Kind;

bool is_object(const JsonMemberSpan* member) {
  return member != nullptr && member->kind == Kind::kObject;
}

std::string text_of(std::string_view text, const JsonMemberSpan* member) {
  if (member == nullptr || member->kind == Kind::kNull) return {};
  return std::string(json_value_of(text, *member));
}

// The first choice, or nothing.
std::string_view first_choice(std::string_view reply, const JsonScan& scan) {
  const JsonMemberSpan* const choices = scan.find("choices");
  if (choices == nullptr || choices->kind != Kind::kArray || choices->first != Kind::kObject)
    return {};
  const std::string_view list = json_value_of(reply, *choices);
  const auto elements = scan_json(list, kReplyLimits);
  if (!elements || elements->members().empty()) return {};
  return json_value_of(list, elements->members().front());
}

// TensorRT-LLM: decode gets the same object, as the other leg, with prefill's usage in it.
Result<std::string> generation_params(const std::string& params, const std::string& usage) {
  TANDEM_TRY(scan, scan_json(params));
  JsonEdit edit(scan);
  edit.set("request_type", "\"generation_only\"");
  if (!usage.empty()) edit.set("ctx_usage", usage);
  return splice_text(params, edit.edits());
}

}  // namespace

Result<Harvest> harvest(const Connector& connector, Api api, std::string_view reply) {
  Harvest out;
  if (connector.harvest == HarvestKind::kTandemReport) {
    TANDEM_TRY(report, read_prefill_report(reply));
    out.truth = std::move(report.truth);
    out.kv_bytes = report.kv_bytes;
    return out;
  }
  TANDEM_TRY(scan, scan_prefill_reply(reply));
  out.truth = read_prompt_truth(api, reply, scan);
  if (connector.harvest == HarvestKind::kNothing || scan.is_array()) return out;
  if (is_object(scan.find("usage"))) out.usage = text_of(reply, scan.find("usage"));
  if (connector.harvest == HarvestKind::kKvTransferParams) {
    out.params = text_of(reply, scan.find("kv_transfer_params"));
  } else if (connector.harvest == HarvestKind::kDisaggregatedParams) {
    const std::string_view choice = first_choice(reply, scan);
    const auto in_choice = scan_json(choice, kReplyLimits);
    if (in_choice)
      out.finish_reason = json_text_of(choice, in_choice->find("finish_reason")).value_or("");
    std::string params;
    if (in_choice) params = text_of(choice, in_choice->find("disaggregated_params"));
    if (params.empty()) params = text_of(reply, scan.find("disaggregated_params"));
    if (!params.empty()) {
      TANDEM_TRY(edited, generation_params(params, out.usage));
      out.params = std::move(edited);
    }
    out.prompt_token_ids = text_of(reply, scan.find("prompt_token_ids"));
    out.is_answer = !out.finish_reason.empty() && out.finish_reason != "length" &&
                    out.finish_reason != "not_finished";
  }
  return out;
}

}  // namespace tandem::router
