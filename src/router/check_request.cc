#include <charconv>

#include "router/request_run.h"

namespace tandem::router {

namespace {

std::string ids_text(const std::vector<int32_t>& ids) {
  std::string out = "[";
  char digits[16];
  for (const int32_t id : ids) {
    if (out.size() > 1) out += ',';
    out.append(digits,
               static_cast<size_t>(std::to_chars(digits, digits + sizeof digits, id).ptr - digits));
  }
  return out += ']';
}

}  // namespace

protocol::ContentId prefix_root(const ServedModel& model, const CheckedRequest& checked) {
  // The length keeps a salt from being read as part of an adapter's name.
  const std::string scope =
      std::to_string(checked.adapter.size()) + ":" + checked.adapter + checked.salt;
  return protocol::root_content_id(model.lineage, model.block_tokens, scope);
}

Result<CheckedRequest> check_request(api::Endpoint endpoint, const std::string& text,
                                     const ModelList& models) {
  TANDEM_TRY(body, parse_json(text));
  if (body.find("tandem") != nullptr) {
    return invalid_request("'tandem' is not a field that clients may set; remove it", "/tandem");
  }
  TANDEM_TRY(parsed, api::parse_request(endpoint, body));
  TANDEM_TRY(model, models.choose(parsed.model));
  TANDEM_TRY(prompts, api::render_prompts(parsed, *model->tokenizer, model->chat_template.get()));
  CheckedRequest checked;
  checked.model = model;
  if (model->has_adapter(parsed.model)) checked.adapter = parsed.model;
  checked.salt = parsed.cache_salt;
  for (const auto& prompt : prompts) {
    TANDEM_CHECK(
        api::check_context(static_cast<int64_t>(prompt.size()), parsed, model->context_length));
    checked.prompt_tokens += static_cast<int64_t>(prompt.size());
    checked.ids_json += (checked.ids_json.empty() ? "" : ",") + ids_text(prompt);
  }
  if (prompts.size() > 1) checked.ids_json = '[' + checked.ids_json + ']';
  checked.one_worker = api::needs_one_worker(parsed);
  checked.blocks =
      protocol::content_ids(prefix_root(*model, checked), prompts[0], model->block_tokens);
  checked.prompt = std::move(prompts[0]);
  checked.max_tokens = parsed.sampling.max_tokens;
  checked.stream = parsed.stream;
  checked.include_usage = parsed.include_usage;
  checked.affinity_key = !parsed.prompt_cache_key.empty() ? parsed.prompt_cache_key : parsed.user;
  return checked;
}

}  // namespace tandem::router
