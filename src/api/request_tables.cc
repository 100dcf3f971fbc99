#include "api/request_tables.h"

#include <algorithm>
#include <array>
#include <limits>

#include "api/anthropic_readers.h"
#include "api/field_readers.h"
#include "api/responses_readers.h"

namespace tandem::api {

namespace {

using protocol::SamplingParams;

constexpr size_t kMaxName = 1024;
constexpr int64_t kMax32 = std::numeric_limits<int32_t>::max();

SamplingParams& sampling(Draft& draft) { return draft.request.sampling; }

constexpr Field kCommon[] = {
    {"model", "The served model's id, or \"default\"",
     Text{kMaxName, [](Draft& d) -> std::string& { return d.request.model; }}, R"("default")"},
    {"user", "Who asks; only keeps a user's requests on warm caches",
     Text{kMaxName, [](Draft& d) -> std::string& { return d.request.user; }}},
    {"cache_salt", "Only requests with the same one share cached prompts",
     Text{kMaxName, [](Draft& d) -> std::string& { return d.request.cache_salt; }}},
};

constexpr Field kStreamOptions[] = {
    {"include_usage", "One more chunk at the end, without choices, with the usage of the request",
     Flag{[](Draft& d) -> bool& { return d.request.include_usage; }}, "false"},
    {"continuous_usage_stats", "Every chunk has the usage so far",
     Flag{[](Draft& d) -> bool& { return d.request.continuous_usage; }}, "false"},
    {"include_obfuscation", "Padding against traffic analysis", Unused{"b"}},
};

// Of several dialects.
constexpr Field kStream = {"stream", "Answer with server-sent events",
                           Flag{[](Draft& d) -> bool& { return d.request.stream; }}, "false"};
constexpr Field kTemperature = {
    "temperature", "0: always the likeliest token",
    Real{0, 2, false, [](Draft& d) -> float& { return sampling(d).temperature; }}, "1"};
constexpr Field kTopP = {"top_p", "Keeps the likeliest tokens that together have this probability",
                         Real{0, 1, false, [](Draft& d) -> float& { return sampling(d).top_p; }},
                         "1"};
constexpr Field kTopK = {"top_k", "Keeps so many of the likeliest tokens; 0 or -1: all",
                         Integer{-1, kMax32,
                                 [](Draft& d, int64_t v) {
                                   sampling(d).top_k =
                                       static_cast<int32_t>(std::max<int64_t>(v, 0));
                                 }},
                         "0"};

constexpr Special kSchemaFormat{R"({"type":["object","string","null"]})", read_format_schema};
constexpr Special kRegexFormat{R"({"type":["string","null"]})", read_format_regex};
constexpr Special kGrammarFormat{R"({"type":["string","null"]})", read_format_grammar};

constexpr Field kGeneration[] = {
    kStream,
    {"stream_options", "Only with stream",
     Group{kStreamOptions, [](Draft& d) { d.stream_options = true; }}},
    kTemperature,
    kTopP,
    kTopK,
    {"min_p", "Keeps tokens at least this likely relative to the likeliest",
     Real{0, 1, false, [](Draft& d) -> float& { return sampling(d).min_p; }}, "0"},
    {"typical_p", "Locally typical sampling; 1: off",
     Real{0, 1, true, [](Draft& d) -> float& { return sampling(d).typical_p; }}, "1"},
    {"presence_penalty", "Taken from the logit of every token generated so far",
     Real{-2, 2, false, [](Draft& d) -> float& { return sampling(d).presence_penalty; }}, "0"},
    {"frequency_penalty", "The same, times how often it was generated",
     Real{-2, 2, false, [](Draft& d) -> float& { return sampling(d).frequency_penalty; }}, "0"},
    {"repetition_penalty",
     "Divides (or multiplies, when negative) the logits of tokens in the "
     "prompt and the answer; 1: off",
     Real{0, 10, true, [](Draft& d) -> float& { return sampling(d).repetition_penalty; }}, "1"},
    {"logit_bias", "Added to the logits of these token ids",
     Special{
         R"({"type":["object","null"],"maxProperties":1024,"propertyNames":{"pattern":"^[0-9]{1,9}$"},)"
         R"("additionalProperties":{"type":"number","minimum":-100,"maximum":100}})",
         read_logit_bias}},
    {"seed", "The same seed gives the same answer",
     Integer{std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(),
             [](Draft& d, int64_t v) { sampling(d).seed = static_cast<uint64_t>(v); }}},
    {"n", "Choices to answer with",
     Integer{1, protocol::kMaxChoices,
             [](Draft& d, int64_t v) { sampling(d).n = static_cast<int32_t>(v); }},
     "1"},
    {"best_of",
     "Choices to generate; the n likeliest per token are answered. Not with stream, "
     "unless it equals n",
     Integer{1, protocol::kMaxChoices, [](Draft& d, int64_t v) { d.best_of = v; }}},
    {"stop", "Ends the answer before one of these strings",
     Special{R"({"anyOf":[{"type":"null"},{"type":"string","maxLength":4096},)"
             R"({"type":"array","maxItems":16,"items":{"type":"string","maxLength":4096}}]})",
             read_stops}},
    {"stop_token_ids", "Ends the answer at one of these tokens",
     Special{
         R"({"type":["array","null"],"maxItems":128,"items":{"type":"integer","minimum":0,"maximum":2147483647}})",
         read_stop_tokens}},
    {"include_stop_str_in_output", "The stop string stays in the text",
     Flag{[](Draft& d) -> bool& { return sampling(d).include_stop; }}, "false"},
    {"ignore_eos", "Goes on after the model's own end token",
     Flag{[](Draft& d) -> bool& { return sampling(d).ignore_eos; }}, "false"},
    {"min_tokens", "No stop before so many tokens",
     Integer{0, kMax32,
             [](Draft& d, int64_t v) { sampling(d).min_tokens = static_cast<int32_t>(v); }},
     "0"},
    {"prompt_cache_key", "Names a conversation, to keep it on warm caches",
     Text{kMaxName, [](Draft& d) -> std::string& { return d.request.prompt_cache_key; }}},
    {"prompt_cache_retention", "How long a prompt stays cached", Unused{"s"}},
    {"safety_identifier", "Who asks, hashed", Unused{"s"}},
    {"metadata", "Tags of a stored answer", Unused{"o"}},
    {"store", "Keep the answer; nothing is ever kept here", Unused{"b"}},
    {"service_tier", "There is one tier", Unused{"s"}},
    {"request_id", "Use the x-request-id header", Unused{"s"}},
    {"prediction", "Text that the answer is expected to repeat", Unused{"o"}},
    {"skip_special_tokens", "Control tokens never show", Refused{"[true]"}},
    {"spaces_between_special_tokens", "Control tokens never show", Unused{"b"}},
    {"use_beam_search", "beam search", Refused{"[false]"}},
    {"length_penalty", "beam search", Refused{"[1]"}},
    {"priority", "no client may jump the queue", Refused{"[0]"}},
    {"truncate_prompt_tokens", "nothing is ever truncated", Refused{"[]"}},
    {"prompt_logprobs", "use echo and logprobs of /v1/completions", Refused{"[]"}},
    {"allowed_token_ids", "constrained output", Refused{"[[]]"}},
    {"bad_words", "constrained output", Refused{"[[]]"}},
    {"logits_processors", "code in requests", Refused{"[[]]"}},
    {"structured_outputs", "The answer's format: one of json, regex, choice, grammar, json_object",
     Special{
         R"({"type":["object","null"],"properties":{"json":{"type":["object","string","null"]},"regex":{"type":["string","null"]},)"
         R"("choice":{"type":["array","null"],"items":{"type":"string","minLength":1}},"grammar":{"type":["string","null"]},)"
         R"("json_object":{"type":["boolean","null"]},"structural_tag":{"type":"null"}},"anyOf":[{"type":"null"},{"maxProperties":0},)"
         R"({"required":["json"]},{"required":["regex"]},{"required":["choice"]},{"required":["grammar"]},{"required":["json_object"]}]})",
         read_structured_outputs}},
    {"guided_json", "A JSON schema that the answer follows", kSchemaFormat},
    {"guided_regex", "A regular expression that the whole answer matches", kRegexFormat},
    {"guided_choice", "Texts, one of which is the answer",
     Special{R"({"type":["array","null"],"items":{"type":"string","minLength":1}})",
             read_format_choice}},
    {"guided_grammar", "A grammar in GBNF or Lark", kGrammarFormat},
    {"json_schema", "As guided_json", kSchemaFormat},
    {"regex", "As guided_regex", kRegexFormat},
    {"grammar", "As guided_grammar", kGrammarFormat},
    {"ebnf", "As guided_grammar", kGrammarFormat},
    {"return_token_ids", "token ids in answers", Refused{"[false]"}},
    {"return_tokens_as_token_ids", "token ids in answers", Refused{"[false]"}},
    {"kv_transfer_params", "the router moves KV by itself", Refused{"[{}]"}},
    {"response_format",
     "What the answer's text must be: any text, a JSON object, or JSON of a schema",
     Special{
         R"({"anyOf":[{"type":"null"},{"type":"object","required":["type"],"properties":{"type":{"enum":["text","json_object"]}}},)"
         R"({"type":"object","required":["type","json_schema"],"properties":{"type":{"const":"json_schema"},"json_schema":)"
         R"({"type":"object","required":["schema"],"properties":{"schema":{"type":"object"},"strict":{"type":["boolean","null"]}}}}}]})",
         read_response_format}},
};

constexpr Field kTemplate[] = {
    {"tools", "Functions that the model's template is told of",
     Special{R"({"type":["array","null"],"maxItems":4096,"items":{"type":"object"}})", read_tools}},
    {"add_generation_prompt", "End the prompt where the assistant begins",
     Flag{[](Draft& d) -> bool& { return d.request.add_generation_prompt; }}, "true"},
    {"chat_template_kwargs", "More variables for the model's template",
     Special{R"({"type":["object","null"]})", read_template_arguments}},
    {"chat_template", "templates come with models", Refused{R"([""])"}},
    {"continue_final_message", "the last message is complete", Refused{"[false]"}},
    {"documents", "put them into messages", Refused{"[[]]"}},
};

constexpr const char* kMessagesSchema =
    R"({"type":"array","minItems":1,"items":{"type":"object","required":["role"],"properties":{)"
    R"("role":{"enum":["system","developer","user","assistant","tool","function"]},)"
    R"("content":{"anyOf":[{"type":"string"},{"type":"null"},{"type":"array","items":{"type":"object","required":["type"],)"
    R"("properties":{"type":{"enum":["text","input_text","output_text","refusal"]},"text":{"type":"string"},)"
    R"("refusal":{"type":"string"}}}}]},"tool_calls":{"type":["array","null"]},"tool_call_id":{"type":["string","null"]}}}})";

constexpr Field kChat[] = {
    {"messages", "The conversation so far", Special{kMessagesSchema, read_messages}, nullptr, true},
    {"max_completion_tokens", "The longest answer; absent: until the context is full",
     Integer{1, kMax32, [](Draft& d, int64_t v) { d.max_completion_tokens = v; }}},
    {"max_tokens", "The older name of max_completion_tokens; only one of them",
     Integer{1, kMax32, [](Draft& d, int64_t v) { d.max_tokens = v; }}},
    {"logprobs", "The logprob of every token of the answer",
     Flag{[](Draft& d) -> bool& { return d.logprobs; }}, "false"},
    {"top_logprobs", "With logprobs: so many alternatives for every token",
     Integer{0, protocol::kMaxTopLogprobs, [](Draft& d, int64_t v) { d.top_logprobs = v; }}},
    {"tool_choice",
     "auto, none (the model is then not told of the tools), required, or the function to call",
     Special{
         R"({"anyOf":[{"enum":["auto","none","required",null]},{"type":"object","required":["type","function"],)"
         R"("properties":{"type":{"const":"function"},"function":{"type":"object","required":["name"],)"
         R"("properties":{"name":{"type":"string"}}}}},{"type":"object","required":["type","custom"],)"
         R"("properties":{"type":{"const":"custom"},"custom":{"type":"object","required":["name"],)"
         R"("properties":{"name":{"type":"string"}}}}},{"type":"object","required":["type","allowed_tools"],)"
         R"("properties":{"type":{"const":"allowed_tools"},"allowed_tools":{"type":"object","required":["mode","tools"],)"
         R"("properties":{"mode":{"enum":["auto","required"]},"tools":{"type":"array","items":{"anyOf":[)"
         R"({"type":"object","required":["function"],"properties":{"function":{"type":"object","required":["name"],"properties":{"name":{"type":"string","minLength":1}}}}},)"
         R"({"type":"object","required":["custom"],"not":{"required":["function"]},)"
         R"("properties":{"custom":{"type":"object","required":["name"],"properties":{"name":{"type":"string","minLength":1}}}}}]}}},)"
         R"("anyOf":[{"properties":{"mode":{"const":"auto"}}},{"properties":{"mode":{"const":"required"},"tools":{"minItems":1}}}]}}}]})",
         read_tool_choice}},
    {"parallel_tool_calls", "false: at most one call in an answer",
     Flag{[](Draft& d) -> bool& { return d.request.parallel_calls; }}, "true"},
    {"stream_tool_arguments",
     "Streams a call's arguments while they are generated; else a call is told when it is "
     "complete, "
     "and one that breaks off is never told",
     Flag{[](Draft& d) -> bool& { return d.request.live_arguments; }}, "false"},
    {"reasoning_effort", "Given to the model's template",
     Text{64, [](Draft& d) -> std::string& { return d.reasoning_effort; }}},
    {"verbosity", "How long answers should be", Unused{"s"}},
    {"modalities", "text only", Refused{R"([["text"],[]])"}},
    {"audio", "text only", Refused{"[]"}},
    {"web_search_options", "no search", Refused{"[]"}},
    {"functions", "use tools", Refused{"[[]]"}},
    {"function_call", "use tool_choice", Refused{R"(["auto","none"])"}},
    {"echo", "only /v1/completions", Refused{"[false]"}},
};

constexpr Field kCompletions[] = {
    {"prompt", "A text, token ids, or an array of either; choice i of prompt p has index p * n + i",
     Special{
         R"({"anyOf":[{"type":"string"},{"type":"array","minItems":1,"items":{"type":"integer","minimum":0}},)"
         R"({"type":"array","minItems":1,"maxItems":2048,"items":{"anyOf":[{"type":"string"},)"
         R"({"type":"array","minItems":1,"items":{"type":"integer","minimum":0}}]}}]})",
         read_prompts},
     nullptr, true},
    {"max_tokens", "The longest answer; 0: none, for echo with logprobs",
     Integer{0, kMax32, [](Draft& d, int64_t v) { d.max_tokens = v; }}, "16"},
    {"logprobs", "The logprob of every token, and of so many alternatives",
     Integer{0, protocol::kMaxTopLogprobs,
             [](Draft& d, int64_t v) {
               d.logprobs = true;
               d.top_logprobs = v;
             }}},
    {"echo", "The prompt comes before the answer, with its logprobs when they are asked for",
     Flag{[](Draft& d) -> bool& { return d.request.echo; }}, "false"},
    {"suffix", "text after the answer", Refused{R"([""])"}},
};

constexpr std::string_view kEncodings[] = {"float", "base64"};
constexpr std::string_view kPoolings[] = {"mean", "last"};
constexpr Field kEmbeddings[] = {
    {"input", "A text, token ids, or an array of either",
     Special{
         R"({"anyOf":[{"type":"string","minLength":1},{"type":"array","minItems":1,"items":{"type":"integer","minimum":0}},)"
         R"({"type":"array","minItems":1,"maxItems":2048,"items":{"anyOf":[{"type":"string","minLength":1},)"
         R"({"type":"array","minItems":1,"items":{"type":"integer","minimum":0}}]}}]})",
         read_prompts},
     nullptr, true},
    {"encoding_format", "base64: the little-endian float32 values",
     Words{kEncodings,
           [](Draft& d, std::string_view word) { d.request.base64 = word == "base64"; }},
     R"("float")"},
    {"dimensions", "The first so many values, made unit length again; at most the model's width",
     Integer{1, kMax32, [](Draft& d, int64_t v) { d.request.dimensions = v; }}},
    {"pooling", "How the tokens' states become one vector; absent: as the server is set up",
     Words{kPoolings,
           [](Draft& d, std::string_view word) {
             d.request.pooling =
                 word == "mean" ? protocol::Pooling::kMean : protocol::Pooling::kLast;
           }}},
    {"truncate_prompt_tokens", "nothing is ever truncated", Refused{"[]"}},
};

constexpr Field kTokenize[] = {
    {"prompt", "A text (or give messages)",
     Special{R"({"type":["string","null"]})", read_prompt_text}},
    {"messages", "A conversation, rendered by the model's template",
     Special{R"({"type":["array","null"]})", read_messages}},
    {"add_special_tokens", "A prompt begins as the model's prompts begin",
     Flag{[](Draft& d) -> bool& { return d.request.add_special_tokens; }}, "true"},
};

constexpr Field kDetokenize[] = {
    {"tokens", "Token ids",
     Special{R"({"type":"array","items":{"type":"integer","minimum":0,"maximum":2147483647}})",
             read_token_prompt},
     nullptr, true},
};

constexpr Field kMessagesCommon[] = {
    {"messages", "The conversation so far",
     Special{
         R"({"type":"array","minItems":1,"items":{"type":"object","required":["role","content"],"properties":{)"
         R"("role":{"enum":["user","assistant","system"]},"content":{"anyOf":[{"type":"string"},{"type":"array"}]}}}})",
         read_anthropic_messages},
     nullptr, true},
    {"system", "What comes before the conversation: a text or text blocks",
     Special{R"({"type":["string","array","null"]})", read_anthropic_system}},
    {"tools", "Functions that the model may call; tools that the vendor runs are ignored",
     Special{R"({"type":["array","null"],"maxItems":4096,"items":{"type":"object"}})",
             read_anthropic_tools}},
    {"tool_choice", "auto, any, none, or the tool to call",
     Special{
         R"({"anyOf":[{"type":"null"},{"type":"object","required":["type"],"properties":{"type":{"enum":["auto","any","none"]}}},)"
         R"({"type":"object","required":["type","name"],"properties":{"type":{"const":"tool"},"name":{"type":"string"}}}]})",
         read_anthropic_tool_choice}},
    {"thinking", "Whether the model reasons first; budgets are the model's own business",
     Special{
         R"({"type":["object","null"],"required":["type"],"properties":{"type":{"type":"string"}}})",
         read_thinking}},
    {"output_config", "effort, and the format of the answer",
     Special{R"({"type":["object","null"]})", read_output_config}},
    {"output_format", "The format of the answer",
     Special{R"({"type":["object","null"]})", read_text_format}},
    {"context_management", "Nothing is edited here", Unused{"o"}},
    {"cache_control", "Prompts are cached without it", Unused{"o"}},
};

constexpr Field kMessagesGeneration[] = {
    {"max_tokens", "The longest answer",
     Integer{1, kMax32, [](Draft& d, int64_t v) { d.max_tokens = v; }}, nullptr, true},
    kStream,
    kTemperature,
    kTopP,
    kTopK,
    {"stop_sequences", "Ends the answer before one of these strings",
     Special{
         R"({"type":["array","null"],"maxItems":16,"items":{"type":"string","maxLength":4096}})",
         read_stop_sequences}},
    {"metadata", "Who asks; only keeps a session on warm caches",
     Special{R"({"type":["object","null"]})", read_anthropic_metadata}},
    {"service_tier", "There is one tier", Unused{"s"}},
};

constexpr Field kResponsesCommon[] = {
    {"previous_response_id", "Goes on from a response that was kept",
     Text{kMaxName, [](Draft& d) -> std::string& { return d.request.previous_response_id; }}},
    {"input", "A text, or the items of the conversation",
     Special{R"({"type":["string","array","null"]})", read_input}},
    {"instructions", "What comes before the conversation; not kept for the next response",
     Text{kMaxPromptBytes, [](Draft& d) -> std::string& { return d.system; }}},
    {"tools", "Functions, custom tools and namespaces of them; what others run is ignored",
     Special{R"({"type":["array","null"],"maxItems":4096,"items":{"type":"object"}})",
             read_response_tools}},
    {"tool_choice", "auto, none, required, or the tool to call",
     Special{
         R"({"anyOf":[{"enum":["auto","none","required",null]},{"type":"object","required":["type","name"],"properties":{)"
         R"("type":{"enum":["function","custom"]},"name":{"type":"string"},"namespace":{"type":["string","null"]}}},)"
         R"({"type":"object","required":["type","mode","tools"],"properties":{"type":{"const":"allowed_tools"},)"
         R"("mode":{"enum":["auto","required"]},"tools":{"type":"array","items":{"anyOf":[)"
         R"({"type":"object","required":["name"],"properties":{"name":{"type":"string","minLength":1}}},{"type":"object","required":["type"],)"
         R"("properties":{"type":{"type":"string","minLength":1,"not":{"enum":["function","custom"]}}}}]}}},"anyOf":[{"properties":{"mode":{"const":"auto"}}},)"
         R"({"properties":{"mode":{"const":"required"},"tools":{"minItems":1,"contains":{"properties":{"type":{"enum":["function","custom"]}}}}}}]}]})",
         read_response_tool_choice}},
    {"parallel_tool_calls", "false: at most one call in an answer",
     Flag{[](Draft& d) -> bool& { return d.request.parallel_calls; }}, "true"},
    {"reasoning", "effort: how much the model reasons first",
     Special{R"({"type":["object","null"]})", read_reasoning}},
    {"text", "The format of the answer",
     Special{R"({"type":["object","null"]})", read_text_options}},
    {"truncation", "Nothing is ever truncated", Unused{"s"}},
    {"conversation", "use previous_response_id", Refused{"[]"}},
};

constexpr Field kResponsesGeneration[] = {
    {"max_output_tokens", "The longest answer; absent: until the context is full",
     Integer{1, kMax32, [](Draft& d, int64_t v) { d.max_tokens = v; }}},
    kStream,
    {"stream_options", "Padding against traffic analysis", Unused{"o"}},
    {"stream_tool_arguments",
     "Streams a call's arguments while they are generated; else a call is told when it is complete",
     Flag{[](Draft& d) -> bool& { return d.request.live_arguments; }}, "false"},
    kTemperature,
    kTopP,
    {"store", "Keep the response, so that another may go on from it",
     Flag{[](Draft& d) -> bool& { return d.request.store; }}, "true"},
    {"include", "reasoning.encrypted_content: reasoning in a form that can be sent back",
     Special{R"({"type":["array","null"],"items":{"type":"string"}})", read_include}},
    {"prompt_cache_key", "Names a conversation, to keep it on warm caches",
     Text{kMaxName, [](Draft& d) -> std::string& { return d.request.prompt_cache_key; }}},
    {"metadata", "Tags that the response repeats", Unused{"o"}},
    {"client_metadata", "The client's own", Unused{"o"}},
    {"safety_identifier", "Who asks, hashed", Unused{"s"}},
    {"service_tier", "There is one tier", Unused{"s"}},
    {"max_tool_calls", "Tools are run by the client", Unused{"n"}},
    {"top_logprobs", "Not told in this dialect", Unused{"n"}},
    {"background", "answers come at once", Refused{"[false]"}},
    {"prompt", "prompts are not kept", Refused{"[]"}},
};

using Table = std::span<const Field>;
constexpr std::array<Table, 4> kChatTables = {kCommon, kGeneration, kTemplate, kChat};
constexpr std::array<Table, 3> kCompletionTables = {kCommon, kGeneration, kCompletions};
constexpr std::array<Table, 2> kEmbeddingTables = {kCommon, kEmbeddings};
constexpr std::array<Table, 3> kTokenizeTables = {kCommon, kTemplate, kTokenize};
constexpr std::array<Table, 3> kMessagesTables = {kCommon, kMessagesCommon, kMessagesGeneration};
constexpr std::array<Table, 2> kCountTables = {kCommon, kMessagesCommon};
constexpr std::array<Table, 3> kResponsesTables = {kCommon, kResponsesCommon, kResponsesGeneration};
constexpr std::array<Table, 2> kInputTables = {kCommon, kResponsesCommon};
constexpr std::array<Table, 2> kDetokenizeTables = {kCommon, kDetokenize};

}  // namespace

std::span<const std::span<const Field>> request_tables(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::kChatCompletions:
      return kChatTables;
    case Endpoint::kCompletions:
      return kCompletionTables;
    case Endpoint::kEmbeddings:
      return kEmbeddingTables;
    case Endpoint::kTokenize:
      return kTokenizeTables;
    case Endpoint::kMessages:
      return kMessagesTables;
    case Endpoint::kCountTokens:
      return kCountTables;
    case Endpoint::kResponses:
      return kResponsesTables;
    case Endpoint::kInputTokens:
      return kInputTables;
    default:
      return kDetokenizeTables;
  }
}

}  // namespace tandem::api
