#include "router/checked_request.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "protocol/content_id.h"
#include "router/connectors/leg_body.h"
#include "router/response_routes.h"

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

PromptPrefix tandem_prefix(const PrefixHasher& hasher, const ServedModel& model,
                           const TandemRequest& request, std::span<const int32_t> tokens) {
  // A worker's events name a salt by the root of its chains (worker/kv_publisher.h).
  const std::string salt =
      request.salt.empty()
          ? std::string()
          : protocol::root_content_id(model.lineage, model.block_tokens, request.salt).hex();
  const PrefixRule rule{.hasher = hasher,
                        .model = model.id,
                        .adapter = request.adapter,
                        .block_tokens = {model.block_tokens}};
  return prefix_of_tokens(rule, tokens, salt);
}

PromptPrefix tandem_prefix_after(const PrefixHasher& hasher, const ServedModel& model,
                                 const TandemRequest& request, const PromptPrefix& prompt,
                                 std::span<const int32_t> answer) {
  const size_t whole = prompt.chain().size() * static_cast<size_t>(model.block_tokens);
  std::vector<int32_t> tail(request.prompt.begin() + static_cast<std::ptrdiff_t>(whole),
                            request.prompt.end());
  tail.insert(tail.end(), answer.begin(), answer.end());
  if (whole == 0) return tandem_prefix(hasher, model, request, tail);
  PromptPrefix longer = prompt;
  std::vector<BlockKey>& keys = longer.kinds[0].keys;
  for (const BlockKey key : PrefixHasher::of_tokens(keys.back(), tail, model.block_tokens))
    keys.push_back(key);
  return longer;
}

Result<CheckedRequest> check_tandem_request(const GenerateRoute& route,
                                            std::shared_ptr<const std::string> text,
                                            const ModelList& models, const PrefixHasher& hasher,
                                            api::ResponseStore& responses, uint64_t tenant) {
  TANDEM_TRY(body, parse_json(*text));
  if (body.find("tandem") != nullptr) {
    return invalid_request("'tandem' is not a field that clients may set; remove it", "/tandem");
  }
  TANDEM_TRY(earlier, earlier_items(responses, body, tenant));
  const JsonValue items = earlier.empty() ? JsonValue() : *parse_json(earlier);
  TANDEM_TRY(parsed,
             api::parse_request(*route.endpoint, body, false, earlier.empty() ? nullptr : &items));
  TANDEM_TRY(model, models.choose(parsed.model));
  TANDEM_TRY(prompts, api::render_prompts(parsed, *model->tokenizer, model->chat_template.get()));
  CheckedRequest checked;
  checked.model = model;
  checked.api = route.api;
  TandemRequest& tandem = checked.tandem.emplace();
  if (model->has_adapter(parsed.model)) tandem.adapter = parsed.model;
  tandem.salt = parsed.cache_salt;
  for (const auto& prompt : prompts) {
    TANDEM_CHECK(
        api::check_context(static_cast<int64_t>(prompt.size()), parsed, model->context_length));
    checked.prompt_tokens += static_cast<int64_t>(prompt.size());
    tandem.ids_json += (tandem.ids_json.empty() ? "" : ",") + ids_text(prompt);
  }
  if (prompts.size() > 1) tandem.ids_json = '[' + tandem.ids_json + ']';
  checked.one_worker = api::needs_one_worker(parsed);
  if (route.endpoint == api::Endpoint::kResponses && parsed.store) {
    JsonValue added = api::input_items(body);
    tandem.input = added.dump();
    JsonValue all = items.is_null() ? JsonValue::array() : items;
    for (JsonValue& item : added.items()) all.push_back(std::move(item));
    tandem.conversation = all.dump();
  }
  checked.prefix = tandem_prefix(hasher, *model, tandem, prompts[0]);
  tandem.prompt = std::move(prompts[0]);
  checked.max_tokens = parsed.sampling.max_tokens;
  checked.stream = parsed.stream;
  checked.include_usage = parsed.include_usage;
  checked.affinity_key = !parsed.prompt_cache_key.empty() ? parsed.prompt_cache_key : parsed.user;
  // Where the members stand, for the splices; the parser above was stricter.
  TANDEM_TRY(facts, read_facts(route.api, *text));
  checked.facts = std::move(facts);
  checked.body = std::move(text);
  return checked;
}

CheckedRequest check_opaque_request(const GenerateRoute& route,
                                    std::shared_ptr<const std::string> body, BodyFacts facts,
                                    ModelList::Pointer model, const PrefixRule& rule) {
  CheckedRequest checked;
  checked.api = route.api;
  checked.body = std::move(body);
  checked.prefix = prefix_of_body(rule, route.endpoint, *checked.body, facts);
  checked.prompt_tokens = facts.estimated_tokens;
  checked.one_worker = !may_pair(*model->connector, facts);
  checked.max_tokens = static_cast<int32_t>(
      std::clamp<int64_t>(facts.max_tokens.value_or(0), 0, std::numeric_limits<int32_t>::max()));
  checked.stream = facts.stream;
  checked.include_usage = facts.include_usage;
  checked.affinity_key = facts.affinity_key;
  checked.model = std::move(model);
  checked.facts = std::move(facts);
  return checked;
}

}  // namespace tandem::router
