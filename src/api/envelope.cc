#include "api/envelope.h"

#include <limits>
#include <string>

#include "api/fields.h"

namespace tandem::api {

namespace {

constexpr size_t kMaxText = 4096;
constexpr size_t kMaxPromptTokens = size_t{1} << 24;

const char* leg_name(protocol::LegKind leg) {
  switch (leg) {
    case protocol::LegKind::kPrefill:
      return "prefill";
    case protocol::LegKind::kDecode:
      return "decode";
    default:
      return "unified";
  }
}

Status read_leg(const Fields& fields, protocol::LegKind& leg) {
  std::string name = "unified";
  TANDEM_CHECK(fields.string("leg", name, 16));
  for (const auto kind :
       {protocol::LegKind::kUnified, protocol::LegKind::kPrefill, protocol::LegKind::kDecode}) {
    if (name != leg_name(kind)) continue;
    leg = kind;
    return {};
  }
  return fields.error("leg", "must be \"prefill\", \"decode\" or \"unified\"");
}

Status read_context(const Fields& fields, protocol::RequestContext& context) {
  TANDEM_CHECK(fields.string("request_id", context.request_id, kMaxText));
  TANDEM_CHECK(fields.string("tenant", context.tenant, kMaxText));
  TANDEM_CHECK(fields.string("salt", context.salt, kMaxText));
  TANDEM_CHECK(fields.string("trace", context.trace, kMaxText));
  int64_t number = context.priority;
  TANDEM_CHECK(fields.integer("priority", number, std::numeric_limits<int32_t>::min(),
                              std::numeric_limits<int32_t>::max()));
  context.priority = static_cast<int32_t>(number);
  number = 0;
  TANDEM_CHECK(fields.integer("deadline_ms", number, 0, int64_t{1} << 40));
  context.deadline = std::chrono::milliseconds(number);
  return {};
}

Status read_handoff(const Fields& fields, protocol::HandoffTicket& handoff) {
  TANDEM_CHECK(fields.string("id", handoff.handoff_id, 32));
  bool hex = handoff.handoff_id.size() == 32;
  for (const char c : handoff.handoff_id)
    hex = hex && ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'));
  if (!hex) return fields.error("id", "must be 32 lower-case hex digits");
  int64_t attempt = 1;
  TANDEM_CHECK(fields.integer("attempt", attempt, 1, std::numeric_limits<uint32_t>::max()));
  handoff.attempt = static_cast<uint32_t>(attempt);
  return fields.string("prefill_address", handoff.prefill_address, kMaxText);
}

Status read_prompt_ids(const Fields& fields, std::vector<std::vector<int32_t>>& out) {
  const JsonValue* ids = fields.find("prompt_token_ids");
  if (ids == nullptr) return {};
  const std::string at = fields.pointer("prompt_token_ids");
  if (!ids->is_array() || ids->items().empty() || !ids->items()[0].is_array()) {
    TANDEM_TRY(tokens, read_tokens(*ids, at, kMaxPromptTokens));
    if (!tokens.empty()) out.push_back(std::move(tokens));
    return {};
  }
  for (size_t i = 0; i < ids->items().size(); ++i) {
    TANDEM_TRY(tokens, read_tokens(ids->items()[i], pointer_to(at, i), kMaxPromptTokens));
    out.push_back(std::move(tokens));
  }
  return {};
}

}  // namespace

Result<TandemEnvelope> parse_envelope(const JsonValue& json) {
  const Fields fields(json, "/tandem");
  if (!json.is_object()) return invalid_request("tandem must be an object", "/tandem");
  TandemEnvelope envelope;
  TANDEM_CHECK(read_leg(fields, envelope.leg));
  if (const JsonValue* context = fields.find("context")) {
    if (!context->is_object()) return fields.error("context", "must be an object");
    TANDEM_CHECK(read_context(Fields(*context, "/tandem/context"), envelope.context));
  }
  if (const JsonValue* handoff = fields.find("handoff")) {
    if (!handoff->is_object()) return fields.error("handoff", "must be an object");
    TANDEM_CHECK(read_handoff(Fields(*handoff, "/tandem/handoff"), envelope.handoff));
  }
  if (envelope.leg != protocol::LegKind::kUnified && envelope.handoff.handoff_id.empty()) {
    return fields.error("handoff", "is missing: a prefill or decode leg needs one");
  }
  if (envelope.leg == protocol::LegKind::kDecode && envelope.handoff.prefill_address.empty()) {
    return fields.error("handoff", "has no prefill_address, which a decode leg needs");
  }
  TANDEM_CHECK(read_prompt_ids(fields, envelope.prompts));
  TANDEM_CHECK(fields.boolean("report_tokens", envelope.report_tokens));
  return envelope;
}

JsonValue envelope_to_json(const TandemEnvelope& envelope) {
  const auto set_text = [](JsonValue& object, const char* key, const std::string& value) {
    if (!value.empty()) object.set(key, JsonValue::string(value));
  };
  JsonValue json = JsonValue::object();
  json.set("leg", JsonValue::string(leg_name(envelope.leg)));
  JsonValue context = JsonValue::object();
  set_text(context, "request_id", envelope.context.request_id);
  set_text(context, "tenant", envelope.context.tenant);
  set_text(context, "salt", envelope.context.salt);
  if (envelope.context.priority != 0)
    context.set("priority", JsonValue::integer(envelope.context.priority));
  if (envelope.context.deadline.count() > 0) {
    context.set("deadline_ms", JsonValue::integer(envelope.context.deadline.count()));
  }
  set_text(context, "trace", envelope.context.trace);
  if (!context.members().empty()) json.set("context", std::move(context));
  if (!envelope.handoff.handoff_id.empty()) {
    JsonValue handoff = JsonValue::object();
    handoff.set("id", JsonValue::string(envelope.handoff.handoff_id));
    handoff.set("attempt", JsonValue::integer(envelope.handoff.attempt));
    set_text(handoff, "prefill_address", envelope.handoff.prefill_address);
    json.set("handoff", std::move(handoff));
  }
  if (!envelope.prompts.empty()) {
    JsonValue prompts = JsonValue::array();
    for (const auto& tokens : envelope.prompts) prompts.push_back(token_array(tokens));
    json.set("prompt_token_ids", std::move(prompts));
  }
  if (envelope.report_tokens) json.set("report_tokens", JsonValue::boolean(true));
  return json;
}

}  // namespace tandem::api
