#include "router/checked_request.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <utility>

#include "router/connectors/leg_body.h"

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

protocol::ContentId prefix_root(const ServedModel& model, const TandemRequest& request) {
  // The length keeps a salt from being read as part of an adapter's name.
  const std::string scope =
      std::to_string(request.adapter.size()) + ":" + request.adapter + request.salt;
  return protocol::root_content_id(model.lineage, model.block_tokens, scope);
}

Result<CheckedRequest> check_tandem_request(const GenerateRoute& route,
                                            std::shared_ptr<const std::string> text,
                                            const ModelList& models) {
  TANDEM_TRY(body, parse_json(*text));
  if (body.find("tandem") != nullptr) {
    return invalid_request("'tandem' is not a field that clients may set; remove it", "/tandem");
  }
  TANDEM_TRY(parsed, api::parse_request(*route.endpoint, body));
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
  checked.block_tokens = model->block_tokens;
  checked.blocks =
      protocol::content_ids(prefix_root(*model, tandem), prompts[0], model->block_tokens);
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

namespace {

// Of the facts' chain of hashes every so-many-th stands for a block: the map of prefixes is asked
// once a block, and a megabyte has thousands of chunks.
constexpr size_t kChunksPerBlock = 8;

}  // namespace

CheckedRequest check_opaque_request(const GenerateRoute& route,
                                    std::shared_ptr<const std::string> body, BodyFacts facts,
                                    ModelList::Pointer model) {
  CheckedRequest checked;
  checked.api = route.api;
  checked.body = std::move(body);
  checked.block_tokens = static_cast<int32_t>(kChunksPerBlock * kPrefixChunkBytes / 4);
  checked.blocks.reserve(facts.prefix.size() / kChunksPerBlock);
  for (size_t at = kChunksPerBlock - 1; at < facts.prefix.size(); at += kChunksPerBlock) {
    protocol::ContentId& id = checked.blocks.emplace_back();
    std::memcpy(id.bytes.data(), &facts.prefix[at], sizeof facts.prefix[at]);
  }
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
