// Bodies of the OpenAI dialect to plain requests: the tables, then what only several fields
// together can say.
#include <algorithm>
#include <utility>

#include "api/field_table.h"
#include "api/fields.h"
#include "api/openai.h"
#include "api/request_tables.h"
#include "api/responses_readers.h"
#include "api/tools/arguments.h"

namespace tandem::api {

namespace {

tl::unexpected<Error> refuse(std::string sentence, std::string pointer) {
  return make_error(400, "invalid_value", std::move(sentence), std::move(pointer));
}

bool generates(Endpoint endpoint) {
  return endpoint == Endpoint::kCompletions || is_conversation(endpoint);
}

Status finish_lengths(Draft& draft) {
  protocol::SamplingParams& sampling = draft.request.sampling;
  const bool chat = is_conversation(draft.request.endpoint);
  if (draft.max_tokens && draft.max_completion_tokens) {
    return refuse("'max_tokens' and 'max_completion_tokens' are the same thing: give one of them",
                  "/max_tokens");
  }
  const auto given = draft.max_tokens ? draft.max_tokens : draft.max_completion_tokens;
  // The older dialect generates 16 tokens unless asked.
  sampling.max_tokens = static_cast<int32_t>(given.value_or(chat ? 0 : 16));
  sampling.score_only = !chat && given == 0;
  if (given && sampling.min_tokens > *given) {
    return refuse("'min_tokens' is more than the " + std::to_string(*given) + " of 'max_tokens'",
                  "/min_tokens");
  }
  return {};
}

Status finish_choices(Draft& draft) {
  ApiRequest& request = draft.request;
  protocol::SamplingParams& sampling = request.sampling;
  sampling.best_of = static_cast<int32_t>(draft.best_of.value_or(sampling.n));
  if (sampling.best_of < sampling.n) return refuse("'best_of' must be at least 'n'", "/best_of");
  if (request.stream && sampling.best_of > sampling.n)
    return refuse("the best of several choices cannot be streamed: 'best_of' must equal 'n'",
                  "/best_of");
  const auto prompts = static_cast<int64_t>(std::max<size_t>(request.prompts.size(), 1));
  if (prompts * sampling.best_of > protocol::kMaxChoices) {
    return refuse(std::to_string(prompts) + " prompts with " + std::to_string(sampling.best_of) +
                      " choices each are more than the " + std::to_string(protocol::kMaxChoices) +
                      " choices of one request",
                  prompts > 1 ? "/prompt" : "/n");
  }
  return {};
}

Status finish_logprobs(Draft& draft) {
  ApiRequest& request = draft.request;
  if (draft.top_logprobs && !draft.logprobs)
    return refuse("'top_logprobs' needs 'logprobs' to be true", "/top_logprobs");
  if (!draft.logprobs) return {};
  const auto top = static_cast<int32_t>(draft.top_logprobs.value_or(0));
  request.sampling.logprobs = top;
  if (request.echo) request.sampling.prompt_logprobs = top;
  return {};
}

Status finish_choice_of_tools(const Draft& draft) {
  const ApiRequest& request = draft.request;
  const ToolTable tools(request.tools);
  if (request.allowed_tools &&
      std::ranges::none_of(*request.allowed_tools,
                           [&](const std::string& name) { return tools.knows(name); })) {
    return refuse("'tool_choice' allows none of the tools", "/tool_choice");
  }
  if (request.choice == ToolChoice::kAuto) return {};
  if (request.tools.is_null())
    return refuse("'tool_choice' asks for a call, but there are no tools", "/tool_choice");
  if (request.choice != ToolChoice::kNamed || tools.knows(request.chosen_tool)) return {};
  return refuse("'tool_choice' names '" + request.chosen_tool.substr(0, 128) +
                    "', which is not among the tools",
                "/tool_choice");
}

// Templates name it in one of a few ways; what a template does not know does no harm.
void finish_reasoning(Draft& draft) {
  JsonValue& arguments = draft.request.template_arguments;
  const auto set = [&](const char* key, JsonValue value) {
    if (arguments.is_null()) arguments = JsonValue::object();
    if (arguments.find(key) == nullptr) arguments.set(key, std::move(value));
  };
  if (draft.reasoning_effort == "none") draft.thinking = false;
  if (!draft.reasoning_effort.empty())
    set("reasoning_effort", JsonValue::string(draft.reasoning_effort));
  if (!draft.thinking) return;
  set("enable_thinking", JsonValue::boolean(*draft.thinking));
  set("thinking", JsonValue::boolean(*draft.thinking));
}

Status finish_generation(Draft& draft) {
  ApiRequest& request = draft.request;
  if (draft.stream_options && !request.stream)
    return refuse("'stream_options' is only allowed with 'stream'", "/stream_options");
  TANDEM_CHECK(finish_lengths(draft));
  TANDEM_CHECK(finish_choices(draft));
  TANDEM_CHECK(finish_logprobs(draft));
  if (draft.tools_off || request.tools.items().empty()) request.tools = JsonValue();
  TANDEM_CHECK(finish_choice_of_tools(draft));
  finish_reasoning(draft);
  if (!draft.system.empty()) {
    JsonValue first = JsonValue::object({{"role", JsonValue::string("system")}});
    first.set("content", JsonValue::string(std::move(draft.system)));
    auto& messages = request.messages.items();
    messages.insert(messages.begin(), std::move(first));
  }
  if (is_conversation(request.endpoint) && request.messages.items().empty() &&
      request.previous_response_id.empty())
    return make_error(400, "missing_required_parameter", "there is nothing to answer", "/input");
  return {};
}

// What the client asked for and the response object repeats.
JsonValue response_echo(const JsonValue& body) {
  JsonValue out = JsonValue::object();
  for (const char* key :
       {"instructions", "max_output_tokens", "metadata", "parallel_tool_calls",
        "previous_response_id", "prompt_cache_key", "reasoning", "store", "temperature", "text",
        "tool_choice", "tools", "top_p", "truncation", "user"}) {
    if (const JsonValue* value = body.find(key)) out.set(key, *value);
  }
  return out;
}

Status finish_tokenize(const ApiRequest& request) {
  const bool one = request.messages.is_null() != request.prompts.empty();
  if (one) return {};
  return make_error(400, "missing_required_parameter",
                    "give either 'prompt', a string, or 'messages'", "/prompt");
}

}  // namespace

Result<ApiRequest> parse_request(Endpoint endpoint, const JsonValue& body, bool trust_envelope,
                                 const JsonValue* earlier) {
  if (!body.is_object()) return invalid_request("the body must be a JSON object", "");
  Draft draft;
  draft.request.endpoint = endpoint;
  draft.earlier = earlier;
  for (const std::span<const Field> table : request_tables(endpoint))
    TANDEM_CHECK(read_fields(table, body, "", draft));
  const bool items = endpoint == Endpoint::kResponses || endpoint == Endpoint::kInputTokens;
  if (items && draft.request.messages.is_null())
    TANDEM_CHECK(read_input(JsonValue::array(), "/input", draft));
  if (generates(endpoint)) TANDEM_CHECK(finish_generation(draft));
  if (endpoint == Endpoint::kTokenize) TANDEM_CHECK(finish_tokenize(draft.request));
  if (endpoint == Endpoint::kResponses) draft.request.echo_fields = response_echo(body);
  if (trust_envelope) {
    if (const JsonValue* envelope = Fields(body, "").find("tandem")) {
      TANDEM_TRY(parsed, parse_envelope(*envelope));
      draft.request.envelope = std::move(parsed);
    }
  }
  return std::move(draft.request);
}

bool needs_one_worker(const ApiRequest& request) {
  return request.endpoint == Endpoint::kEmbeddings || request.prompts.size() > 1 ||
         protocol::needs_one_leg(request.sampling);
}

}  // namespace tandem::api
