#include "router/terminal.h"

#include "base/json_splice.h"

namespace tandem::router {

namespace {

int64_t number_of(const JsonValue* object, std::string_view key) {
  const JsonValue* const value = object == nullptr ? nullptr : object->find(key);
  return value == nullptr ? 0 : value->as_integer().value_or(0);
}

tl::unexpected<Error> bad_response(const char* what) {
  return make_error(502, "bad_response", std::string("the worker's answer ") + what);
}

std::optional<std::string_view> member_text(std::string_view text, const JsonScan& scan,
                                            std::string_view key) {
  const JsonMemberSpan* const member = scan.find(key);
  if (member == nullptr) return std::nullopt;
  return json_value_of(text, *member);
}

// Prompt and cached are prefill's, completion is the answering worker's, total is their sum;
// unknown members stay.
JsonValue truthful_usage(JsonValue usage, CachedTruth truth,
                         const std::optional<PrefillReport>& prefill, Terminal& out) {
  JsonValue* details = usage.find("prompt_tokens_details");
  out.completion_tokens = number_of(&usage, "completion_tokens");
  out.prompt_tokens = number_of(&usage, "prompt_tokens");
  out.cached_tokens = number_of(details, "cached_tokens");
  if (truth == CachedTruth::kPrefill) {
    if (prefill) {
      out.prompt_tokens = prefill->prompt_tokens;
      out.cached_tokens = prefill->cached_tokens;
      if (details == nullptr || !details->is_object()) {
        details = &usage.set("prompt_tokens_details", JsonValue::object());
      }
      details->set("cached_tokens", JsonValue::integer(out.cached_tokens));
    } else {
      out.cached_tokens = 0;
      if (details != nullptr) details->erase("cached_tokens");
    }
    usage.set("prompt_tokens", JsonValue::integer(out.prompt_tokens));
  }
  usage.set("total_tokens", JsonValue::integer(out.prompt_tokens + out.completion_tokens));
  return usage;
}

}  // namespace

Result<PrefillReport> parse_prefill_report(std::string_view json_text) {
  TANDEM_TRY(json, parse_json(json_text));
  const JsonValue* const object = json.find("object");
  const JsonValue* const usage = json.find("usage");
  if (object == nullptr || object->as_string() != "tandem.prefill" || usage == nullptr ||
      !usage->is_object()) {
    return bad_response("to a prefill leg is not a tandem.prefill object");
  }
  PrefillReport report;
  report.prompt_tokens = number_of(usage, "prompt_tokens");
  report.cached_tokens = number_of(usage, "cached_tokens");
  report.kv_bytes = number_of(&json, "kv_bytes");
  report.blocks_sent = number_of(&json, "blocks_sent");
  if (report.prompt_tokens <= 0 || report.cached_tokens < 0 ||
      report.cached_tokens > report.prompt_tokens) {
    return bad_response("to a prefill leg has impossible counts");
  }
  return report;
}

bool has_member(std::string_view json_text, std::string_view key) {
  const auto scan = scan_json(json_text);
  return scan && scan->find(key) != nullptr;
}

Result<Terminal> rewrite_terminal(std::string_view json_text, CachedTruth truth,
                                  const std::optional<PrefillReport>& prefill,
                                  const JsonValue& report) {
  TANDEM_TRY(members, scan_json(json_text));
  const auto tandem_text = member_text(json_text, members, "tandem");
  const auto usage_text = member_text(json_text, members, "usage");
  if (!tandem_text || !usage_text) return bad_response("lacks usage");
  TANDEM_TRY(tandem, parse_json(*tandem_text));
  TANDEM_TRY(usage, parse_json(*usage_text));
  if (!usage.is_object()) return bad_response("lacks usage");

  Terminal out;
  if (const JsonValue* const ids = tandem.find("completion_token_ids"); ids != nullptr) {
    for (const JsonValue& choice : ids->items()) {
      std::vector<int32_t> tokens;
      tokens.reserve(choice.items().size());
      if (!choice.is_array()) return bad_response("has impossible token ids");
      for (const JsonValue& id : choice.items()) {
        const auto number = id.as_integer();
        if (!number || *number < 0 || *number > INT32_MAX)
          return bad_response("has impossible token ids");
        tokens.push_back(static_cast<int32_t>(*number));
      }
      out.completion_ids.push_back(std::move(tokens));
    }
  }
  const JsonValue truthful = truthful_usage(std::move(usage), truth, prefill, out);
  TANDEM_TRY(with_usage, json_replace_member(json_text, "usage", truthful.dump()));
  if (report.is_null()) {
    TANDEM_TRY(edited, json_erase_member(with_usage, "tandem"));
    out.json = std::move(edited);
  } else {
    TANDEM_TRY(edited, json_replace_member(with_usage, "tandem", report.dump()));
    out.json = std::move(edited);
  }
  return out;
}

}  // namespace tandem::router
