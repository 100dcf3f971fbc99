#include <tuple>

#include "api/api_test_support.h"

namespace tandem::api {
namespace {

TEST(OpenAiRequest, ReadsEveryField) {
  const auto request = chat(
      R"(,"model":"x","stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true},)"
      R"("temperature":0.5,"top_p":0.9,"top_k":7,"min_p":0.05,"typical_p":0.7,"presence_penalty":1.5,)"
      R"("frequency_penalty":-2,"repetition_penalty":1.1,"logit_bias":{"9":-100,"3":2.5},)"
      R"("seed":-9223372036854775808,"max_completion_tokens":9,"min_tokens":2,"stop":["a","","bc"],)"
      R"("stop_token_ids":[4,5],"include_stop_str_in_output":true,"ignore_eos":true,"n":2,"best_of":2,)"
      R"("logprobs":true,"top_logprobs":3,"user":"u","prompt_cache_key":"k","unknown":{"a":[[{}]]},)"
      R"("tools":[],"reasoning_effort":"low")");
  ASSERT_TRUE(request) << request.error().message;
  const protocol::SamplingParams& sampling = request->sampling;
  EXPECT_EQ(request->model, "x");
  EXPECT_TRUE(request->stream && request->include_usage && request->continuous_usage);
  EXPECT_FLOAT_EQ(sampling.temperature, 0.5F);
  EXPECT_FLOAT_EQ(sampling.top_p, 0.9F);
  EXPECT_EQ(sampling.top_k, 7);
  EXPECT_FLOAT_EQ(sampling.min_p, 0.05F);
  EXPECT_FLOAT_EQ(sampling.typical_p, 0.7F);
  EXPECT_FLOAT_EQ(sampling.presence_penalty, 1.5F);
  EXPECT_FLOAT_EQ(sampling.frequency_penalty, -2);
  EXPECT_FLOAT_EQ(sampling.repetition_penalty, 1.1F);
  ASSERT_EQ(sampling.logit_bias.size(), 2U);
  EXPECT_EQ(sampling.logit_bias[0].token, 3) << "ascending";
  EXPECT_FLOAT_EQ(sampling.logit_bias[0].bias, 2.5F);
  EXPECT_EQ(sampling.logit_bias[1].token, 9);
  EXPECT_EQ(sampling.seed, uint64_t{1} << 63);
  EXPECT_EQ(sampling.max_tokens, 9);
  EXPECT_EQ(sampling.min_tokens, 2);
  EXPECT_EQ(sampling.stop, (std::vector<std::string>{"a", "bc"}));
  EXPECT_EQ(sampling.stop_token_ids, (std::vector<int32_t>{4, 5}));
  EXPECT_TRUE(sampling.include_stop && sampling.ignore_eos);
  EXPECT_EQ(sampling.n, 2);
  EXPECT_EQ(sampling.best_of, 2);
  EXPECT_EQ(sampling.logprobs, 3);
  EXPECT_FALSE(sampling.prompt_logprobs);
  EXPECT_EQ(request->user, "u");
  EXPECT_EQ(request->prompt_cache_key, "k");
  EXPECT_TRUE(request->tools.is_null());
  EXPECT_EQ(request->template_arguments.dump(), R"({"reasoning_effort":"low"})");
}

TEST(OpenAiRequest, DefaultsAreTheDialects) {
  const auto request = chat(R"(,"temperature":null,"stop":null,"max_tokens":null,"stream":null)");
  ASSERT_TRUE(request);
  EXPECT_EQ(request->model, "default");
  EXPECT_FALSE(request->stream);
  EXPECT_FLOAT_EQ(request->sampling.temperature, 1);
  EXPECT_FALSE(request->sampling.seed);
  EXPECT_EQ(request->sampling.max_tokens, 0);
  EXPECT_EQ(request->sampling.n, 1);
  EXPECT_EQ(request->sampling.best_of, 1);
  EXPECT_FALSE(request->sampling.logprobs);
  EXPECT_EQ(completion(R"(,"prompt":"x")")->sampling.max_tokens, 16);
  EXPECT_EQ(chat(R"(,"n":3)")->sampling.best_of, 3);
  EXPECT_EQ(chat(R"(,"logprobs":true)")->sampling.logprobs, 0);
  EXPECT_EQ(chat(R"(,"top_k":-1)")->sampling.top_k, 0);
}

struct Wrong {
  const char* field;
  const char* pointer;
  const char* code;
};

void expect_refused(Endpoint endpoint, const char* base, const Wrong& wrong) {
  JsonValue body = parse(base);
  const JsonValue extra = parse(std::string("{") + wrong.field + "}");
  for (const auto& [key, value] : extra.members()) body.set(key, value);
  const auto request = parse_request(endpoint, body);
  ASSERT_FALSE(request) << wrong.field;
  EXPECT_EQ(request.error().status, 400) << wrong.field;
  EXPECT_EQ(request.error().pointer, wrong.pointer) << wrong.field;
  EXPECT_EQ(request.error().code, wrong.code) << wrong.field << ": " << request.error().message;
  EXPECT_FALSE(request.error().message.empty());
}

constexpr const char* kType = "invalid_type";
constexpr const char* kValue = "invalid_value";
constexpr const char* kUnsupported = "unsupported_parameter";
constexpr const char* kBelow = "integer_below_min_value";
constexpr const char* kAbove = "integer_above_max_value";
constexpr const char* kRealBelow = "decimal_below_min_value";
constexpr const char* kRealAbove = "decimal_above_max_value";
constexpr const char* kInvalid = "invalid_request_error";

TEST(OpenAiRequest, BadFieldsOfAChatAre400WithTheirPointerAndCode) {
  const Wrong cases[] = {
      {R"("temperature":2.1)", "/temperature", kRealAbove},
      {R"("temperature":-1)", "/temperature", kRealBelow},
      {R"("temperature":"1")", "/temperature", kType},
      {R"("temperature":true)", "/temperature", kType},
      {R"("temperature":1e999)", "/temperature", kRealAbove},
      {R"("temperature":-1e999)", "/temperature", kRealBelow},
      {R"("top_p":-0.1)", "/top_p", kRealBelow},
      {R"("top_p":1.5)", "/top_p", kRealAbove},
      {R"("min_p":1.5)", "/min_p", kRealAbove},
      {R"("typical_p":0)", "/typical_p", kRealBelow},
      {R"("repetition_penalty":0)", "/repetition_penalty", kRealBelow},
      {R"("presence_penalty":2.5)", "/presence_penalty", kRealAbove},
      {R"("frequency_penalty":-2.5)", "/frequency_penalty", kRealBelow},
      {R"("top_k":-2)", "/top_k", kBelow},
      {R"("top_k":1.5)", "/top_k", kType},
      {R"("seed":9223372036854775808)", "/seed", kAbove},
      {R"("seed":99223372036854775808)", "/seed", kAbove},
      {R"("seed":"x")", "/seed", kType},
      {R"("max_tokens":0)", "/max_tokens", kBelow},
      {R"("max_tokens":99999999999)", "/max_tokens", kAbove},
      {R"("max_completion_tokens":-1)", "/max_completion_tokens", kBelow},
      {R"("max_completion_tokens":4,"max_tokens":4)", "/max_tokens", kValue},
      {R"("max_tokens":4,"min_tokens":5)", "/min_tokens", kValue},
      {R"("stop":7)", "/stop", kType},
      {R"("stop":["a",7])", "/stop/1", kType},
      {R"("stop":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])",
       "/stop", "array_above_max_length"},
      {R"("stop_token_ids":[1,-1])", "/stop_token_ids/1", kInvalid},
      {R"("stop_token_ids":7)", "/stop_token_ids", kInvalid},
      {R"("stream":1)", "/stream", kType},
      {R"("stream":true,"stream_options":[])", "/stream_options", kType},
      {R"("stream":true,"stream_options":{"include_usage":1})", "/stream_options/include_usage",
       kType},
      {R"("stream_options":{"include_usage":true})", "/stream_options", kValue},
      {R"("stream_options":{})", "/stream_options", kValue},
      {R"("model":7)", "/model", kType},
      {R"("user":{})", "/user", kType},
      {R"("n":0)", "/n", kBelow},
      {R"("n":512)", "/n", kAbove},
      {R"("n":"1")", "/n", kType},
      {R"("n":2,"best_of":1)", "/best_of", kValue},
      {R"("best_of":2,"stream":true)", "/best_of", kValue},
      {R"("logprobs":3)", "/logprobs", kType},
      {R"("top_logprobs":3)", "/top_logprobs", kValue},
      {R"("logprobs":false,"top_logprobs":3)", "/top_logprobs", kValue},
      {R"("logprobs":true,"top_logprobs":21)", "/top_logprobs", kAbove},
      {R"("logit_bias":{"x":1})", "/logit_bias/x", kValue},
      {R"("logit_bias":{"-1":1})", "/logit_bias/-1", kValue},
      {R"("logit_bias":{"1":101})", "/logit_bias/1", kValue},
      {R"("logit_bias":{"1":"x"})", "/logit_bias/1", kValue},
      {R"("logit_bias":{"1":1e999})", "/logit_bias/1", kValue},
      {R"("logit_bias":{"7":1,"07":2})", "/logit_bias/7", "duplicate_parameter"},
      {R"("logit_bias":[])", "/logit_bias", kType},
      {R"("response_format":{"type":"xml"})", "/response_format/type", kValue},
      {R"("response_format":{"type":"json_schema","json_schema":{"type":123}})",
       "/response_format/json_schema/schema", kType},
      {R"("response_format":7)", "/response_format", kType},
      {R"("tool_choice":"required")", "/tool_choice", kValue},
      {R"("tool_choice":{"type":"function","function":{"name":"f"}})", "/tool_choice", kValue},
      {R"("tool_choice":"sometimes")", "/tool_choice", kValue},
      {R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"any","tools":[]}})",
       "/tool_choice/allowed_tools/mode", kValue},
      {R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"tools":[]}})",
       "/tool_choice/allowed_tools/mode", kValue},
      {R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto"}})",
       "/tool_choice/allowed_tools/tools", kType},
      {R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[]}})",
       "/tool_choice/allowed_tools/tools", kValue},
      {R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function"}]}})",
       "/tool_choice/allowed_tools/tools/0", kValue},
      {R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{}}]}})",
       "/tool_choice/allowed_tools/tools/0", kValue},
      {R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":""}}]}})",
       "/tool_choice/allowed_tools/tools/0", kValue},
      {R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":7}}]}})",
       "/tool_choice/allowed_tools/tools/0", kValue},
      {R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{},"custom":{"name":"f"}}]}})",
       "/tool_choice/allowed_tools/tools/0", kValue},
      {R"("tools":{"a":1})", "/tools", kType},
      {R"("tools":[[[]]])", "/tools/0", kType},
      {R"("functions":[{"name":"f"}])", "/functions", kUnsupported},
      {R"("function_call":{"name":"f"})", "/function_call", kUnsupported},
      {R"("modalities":["audio"])", "/modalities", kUnsupported},
      {R"("audio":{"voice":"x"})", "/audio", kUnsupported},
      {R"("chat_template":"x")", "/chat_template", kUnsupported},
      {R"("chat_template_kwargs":[])", "/chat_template_kwargs", kType},
      {R"("kv_transfer_params":{"a":[[{}]]})", "/kv_transfer_params", kUnsupported},
      {R"("structured_outputs":{"structural_tag":{}})", "/structured_outputs/structural_tag",
       kUnsupported},
      {R"("priority":1)", "/priority", kUnsupported},
      {R"("echo":true)", "/echo", kUnsupported},
      {R"("metadata":7)", "/metadata", kType},
      {R"("store":"yes")", "/store", kType},
      {R"("messages":[])", "/messages", kInvalid},
      {R"("messages":"hi")", "/messages", kInvalid},
      {R"("messages":null)", "/messages", "missing_required_parameter"},
      {R"("messages":[7])", "/messages/0", kInvalid},
      {R"("messages":[{"content":"x"}])", "/messages/0/role", kInvalid},
      {R"("messages":[{"role":"alien","content":"x"}])", "/messages/0/role", kInvalid},
      {R"("messages":[{"role":"user"}])", "/messages/0/content", kInvalid},
      {R"("messages":[{"role":"user","content":7}])", "/messages/0/content", kInvalid},
      {R"("messages":[{"role":"user","role":"system","content":"x"}])", "/messages/0/role",
       "duplicate_parameter"},
      {R"("messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])",
       "/messages/0/content/0/type", "unsupported_content"},
      {R"("messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{}}]}])",
       "/messages/0/content/0/type", "unsupported_content"},
      {R"("messages":[{"role":"user","content":[{"type":"file","file":{}}]}])",
       "/messages/0/content/0/type", "unsupported_content"},
      {R"("messages":[{"role":"user","content":[{"type":"text"}]}])", "/messages/0/content/0/text",
       kInvalid},
      {R"("messages":[{"role":"assistant","tool_calls":{}}])", "/messages/0/tool_calls", kInvalid},
      {R"("messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f"}}]}])",
       "/messages/0/tool_calls/0/function", kInvalid},
  };
  for (const Wrong& wrong : cases) {
    expect_refused(Endpoint::kChatCompletions, R"({"messages":[{"role":"user","content":"hi"}]})",
                   wrong);
  }
}

TEST(OpenAiRequest, BadFieldsOfACompletionAre400WithTheirPointerAndCode) {
  const Wrong cases[] = {
      {R"("prompt":null)", "/prompt", "missing_required_parameter"},
      {R"("prompt":{})", "/prompt", kType},
      {R"("prompt":[])", "/prompt", "empty_array"},
      {R"("prompt":[[]])", "/prompt/0", "empty_array"},
      {R"("prompt":["x",7])", "/prompt/1", kType},
      {R"("prompt":[1,-2])", "/prompt/1", kInvalid},
      {R"("prompt":[1,2.5])", "/prompt/1", kInvalid},
      {R"("prompt":[[1],["x"]])", "/prompt/1/0", kInvalid},
      {R"("prompt":["a","b"],"n":65)", "/prompt", kValue},
      {R"("max_tokens":-1)", "/max_tokens", kBelow},
      {R"("logprobs":true)", "/logprobs", kType},
      {R"("logprobs":21)", "/logprobs", kAbove},
      {R"("echo":1)", "/echo", kType},
      {R"("suffix":"x")", "/suffix", kUnsupported},
      {R"("best_of":2,"stream":true)", "/best_of", kValue},
      {R"("prompt_logprobs":1)", "/prompt_logprobs", kUnsupported},
  };
  for (const Wrong& wrong : cases)
    expect_refused(Endpoint::kCompletions, R"({"prompt":"hi"})", wrong);
}

TEST(OpenAiRequest, BadFieldsOfAnEmbeddingAre400WithTheirPointerAndCode) {
  const Wrong cases[] = {
      {R"("input":null)", "/input", "missing_required_parameter"},
      {R"("input":"")", "/input", "empty_string"},
      {R"("input":["a",""])", "/input/1", "empty_string"},
      {R"("input":[])", "/input", "empty_array"},
      {R"("input":{"a":1})", "/input", kType},
      {R"("encoding_format":"hex")", "/encoding_format", kValue},
      {R"("encoding_format":7)", "/encoding_format", kType},
      {R"("dimensions":0)", "/dimensions", kBelow},
      {R"("pooling":"max")", "/pooling", kValue},
  };
  for (const Wrong& wrong : cases)
    expect_refused(Endpoint::kEmbeddings, R"({"input":"hi"})", wrong);
  for (const char* body : {"[]", "null", "7", "{}"}) {
    for (const Endpoint endpoint :
         {Endpoint::kChatCompletions, Endpoint::kCompletions, Endpoint::kEmbeddings,
          Endpoint::kTokenize, Endpoint::kDetokenize})
      EXPECT_EQ(parse_request(endpoint, parse(body)).error().status, 400);
  }
}

TEST(OpenAiRequest, ScoringAsksForNothingButThePromptsLogprobs) {
  const auto request = completion(R"(,"prompt":"x","echo":true,"logprobs":1,"max_tokens":0)");
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_TRUE(request->echo);
  EXPECT_TRUE(request->sampling.score_only);
  EXPECT_EQ(request->sampling.max_tokens, 0);
  EXPECT_EQ(request->sampling.logprobs, 1);
  EXPECT_EQ(request->sampling.prompt_logprobs, 1);
  EXPECT_TRUE(needs_one_worker(*request));
  EXPECT_FALSE(needs_one_worker(*completion(R"(,"prompt":"x","echo":true,"n":4)")));
  EXPECT_TRUE(needs_one_worker(*completion(R"(,"prompt":["x","y"])")));
  EXPECT_FALSE(completion(R"(,"prompt":"x","logprobs":1)")->sampling.prompt_logprobs);
}

TEST(OpenAiRequest, ToolChoiceNoneHidesTheTools) {
  const std::string tools = R"(,"tools":[{"type":"function","function":{"name":"f"}}])";
  EXPECT_EQ(chat(tools)->tools.items().size(), 1U);
  EXPECT_EQ(chat(tools + R"(,"tool_choice":"auto")")->tools.items().size(), 1U);
  EXPECT_TRUE(chat(tools + R"(,"tool_choice":"none")")->tools.is_null());
}

TEST(OpenAiRequest, AllowedToolsMayBeCalledAndNoOthers) {
  const std::string tools =
      R"(,"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}])";
  const auto allow = [&](const std::string& list) {
    return chat(tools + R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":)" + list + "}");
  };
  const auto some =
      allow(R"({"mode":"auto","tools":[{"type":"function","function":{"name":"g"}}]})");
  ASSERT_TRUE(some) << some.error().message;
  EXPECT_EQ(some->choice, ToolChoice::kAuto);
  EXPECT_EQ(some->allowed_tools, std::vector<std::string>{"g"});
  EXPECT_EQ(some->tools.items().size(), 2U);
  const auto none = allow(R"({"mode":"auto","tools":[]})");
  ASSERT_TRUE(none);
  EXPECT_TRUE(none->tools.is_null());
  EXPECT_FALSE(chat(tools)->allowed_tools);
  const auto unknown =
      allow(R"({"mode":"auto","tools":[{"type":"function","function":{"name":"h"}}]})");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().pointer, "/tool_choice");
}

TEST(OpenAiRequest, ResponsesSayAllowedToolsFlat) {
  const auto allow = [](const std::string& mode, const std::string& list) {
    return parse_request(
        Endpoint::kResponses,
        parse(
            R"({"input":"x","tools":[{"type":"function","name":"f"},{"type":"namespace","name":"n","tools":[{"type":"function","name":"f"}]}],"tool_choice":{"type":"allowed_tools","mode":")" +
            mode + R"(","tools":)" + list + "}}"));
  };
  const auto some = allow(
      "required", R"([{"type":"web_search"},{"type":"function","name":"f","namespace":"n"}])");
  ASSERT_TRUE(some) << some.error().message;
  EXPECT_EQ(some->choice, ToolChoice::kRequired);
  EXPECT_EQ(some->allowed_tools, std::vector<std::string>{"n__f"});
  EXPECT_TRUE(allow("auto", R"([{"type":"web_search"}])")->tools.is_null());
  EXPECT_EQ(allow("any", "[]").error().pointer, "/tool_choice/mode");
  EXPECT_EQ(allow("required", R"([{"type":"web_search"}])").error().pointer, "/tool_choice/tools");
  EXPECT_EQ(allow("auto", R"([{"type":"custom"}])").error().pointer, "/tool_choice/tools/0");
}

TEST(OpenAiRequest, AKeyGivenTwiceIsRefusedHoweverItIsSpelled) {
  for (const char* twice :
       {R"("max_tokens":2,"max_tokens":1)", R"("stream":true,"str\u0065am":false)",
        R"("unknown":1,"x":2,"unknown":1)"}) {
    const auto request = parse_request(
        Endpoint::kChatCompletions,
        parse(std::string(R"({"messages":[{"role":"user","content":"hi"}],)") + twice + "}"));
    ASSERT_FALSE(request) << twice;
    EXPECT_EQ(request.error().status, 400);
    EXPECT_TRUE(request.error().pointer) << twice;
  }
}

TEST(OpenAiRequest, ABodyOfVeryManyFieldsIsRefusedBeforeTheyAreSearched) {
  std::string body = R"({"messages":[{"role":"user","content":"hi"}])";
  for (int i = 0; i < 2000; ++i) body += ",\"x" + std::to_string(i) + "\":0";
  const auto request = parse_request(Endpoint::kChatCompletions, parse(body + "}"));
  ASSERT_FALSE(request);
  EXPECT_EQ(request.error().status, 400);
}

TEST(OpenAiRequest, ContentsBecomeStringsAndArgumentsObjects) {
  const auto request = parse_request(
      Endpoint::kChatCompletions,
      parse(
          R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},)"
          R"({"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"a\": 1.50}"}}]},)"
          R"({"role":"tool","tool_call_id":"1","content":""},{"role":"assistant","content":""},)"
          R"({"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"not json"}}],"kept":[1]}]})"));
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(
      request->messages.dump(),
      R"([{"role":"user","content":"a\nb"},{"role":"assistant","content":"","tool_calls":[{"id":"1","function":)"
      R"({"name":"f","arguments":{"a":1.50}}}]},{"role":"tool","tool_call_id":"1","content":""},)"
      R"({"role":"assistant","content":""},{"role":"assistant","tool_calls":[{"function":{"name":"f",)"
      R"("arguments":"not json"}}],"kept":[1],"content":""}])");
}

TEST(OpenAiRequest, PromptsComeAsTextOrTokens) {
  EXPECT_EQ(completion(R"(,"prompt":"x")")->prompts.at(0).text, "x");
  EXPECT_EQ(completion(R"(,"prompt":["x"])")->prompts.at(0).text, "x");
  EXPECT_EQ(completion(R"(,"prompt":[1,2])")->prompts.at(0).tokens, (std::vector<int32_t>{1, 2}));
  const auto several = completion(R"(,"prompt":[[1,2],"x",[3]])");
  ASSERT_EQ(several->prompts.size(), 3U);
  EXPECT_EQ(several->prompts[0].tokens, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(several->prompts[1].text, "x");
  EXPECT_EQ(several->prompts[2].tokens, (std::vector<int32_t>{3}));
}

TEST(OpenAiRequest, TheEnvelopeIsBelievedOnlyWhenTrusted) {
  const std::string fields =
      R"(,"tandem":{"leg":"decode","handoff":{"id":"0123456789abcdef0123456789abcdef",)"
      R"("attempt":3,"prefill_address":"unix:/x"},"context":{"tenant":"t","deadline_ms":50},)"
      R"("prompt_token_ids":[1,2],"report_tokens":true})";
  EXPECT_FALSE(chat(fields)->envelope);
  EXPECT_FALSE(chat(R"(,"tandem":7)")->envelope);
  const auto request = chat(fields, true);
  ASSERT_TRUE(request) << request.error().message;
  const TandemEnvelope& envelope = *request->envelope;
  EXPECT_EQ(envelope.leg, protocol::LegKind::kDecode);
  EXPECT_EQ(envelope.handoff.attempt, 3U);
  EXPECT_EQ(envelope.context.deadline, std::chrono::milliseconds(50));
  EXPECT_EQ(envelope_to_json(*parse_envelope(envelope_to_json(envelope))).dump(),
            envelope_to_json(envelope).dump());
  EXPECT_EQ(render_prompts(*request, *tokenizer(), nullptr)->at(0), (std::vector<int32_t>{1, 2}));
}

TEST(OpenAiRequest, BrokenEnvelopesNameTheField) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"leg":"x"})", "/tandem/leg"},
      {R"({"leg":"prefill"})", "/tandem/handoff"},
      {R"({"handoff":{"id":"xyz"}})", "/tandem/handoff/id"},
      {R"({"leg":"decode","handoff":{"id":"0123456789abcdef0123456789abcdef"}})",
       "/tandem/handoff"},
      {R"({"handoff":{"id":"0123456789abcdef0123456789abcdef","attempt":0}})",
       "/tandem/handoff/attempt"},
      {R"({"context":[]})", "/tandem/context"},
      {R"({"context":{"deadline_ms":-1}})", "/tandem/context/deadline_ms"},
      {R"({"prompt_token_ids":[-1]})", "/tandem/prompt_token_ids/0"},
      {R"({"report_tokens":1})", "/tandem/report_tokens"},
      {"7", "/tandem"}};
  for (const auto& [json, pointer] : cases)
    EXPECT_EQ(parse_envelope(parse(json)).error().pointer, pointer) << json;
}

TEST(RenderPrompt, RendersMessagesAndRefusesWhatCannotBe) {
  const auto model = chat_template();
  const auto request = chat(R"(,"chat_template_kwargs":{"mood":"calm"})");
  const auto tokens = render_prompts(*request, *tokenizer(), &model);
  ASSERT_TRUE(tokens) << tokens.error().message;
  EXPECT_EQ(tokenizer()->decode(tokens->at(0), true), "<|turn|>user:hi<|end|><|turn|>calm");
  EXPECT_EQ(render_prompts(*request, *tokenizer(), nullptr).error().code, "no_chat_template");
  EXPECT_EQ(render_prompts(*completion(R"(,"prompt":"")"), *tokenizer(), nullptr).error().status,
            400);
  EXPECT_EQ(
      render_prompts(*completion(R"(,"prompt":[0,99999])"), *tokenizer(), nullptr).error().pointer,
      "/prompt/1");
}

TEST(RenderPrompts, TokenIdsOfEveryFieldAreInTheVocabulary) {
  const std::string end = std::to_string(tokenizer()->vocab_size());
  const auto refused = [](const std::string& fields) {
    return render_prompts(*completion(R"(,"prompt":[1])" + fields), *tokenizer(), nullptr).error();
  };
  EXPECT_EQ(refused(R"(,"logit_bias":{"1":1,"99999999":-100})").pointer, "/logit_bias/99999999");
  EXPECT_EQ(refused(R"(,"logit_bias":{")" + end + R"(":1})").status, 400);
  EXPECT_EQ(refused(R"(,"stop_token_ids":[1,)" + end + "]").pointer, "/stop_token_ids/1");
  EXPECT_TRUE(
      render_prompts(*completion(R"(,"prompt":[1],"logit_bias":{"0":1},"stop_token_ids":[0])"),
                     *tokenizer(), nullptr));
  const auto several = completion(R"(,"prompt":["Hello","",[1,99999]])");
  EXPECT_EQ(render_prompts(*several, *tokenizer(), nullptr).error().pointer, "/prompt/1");
  const auto input = parse_request(Endpoint::kEmbeddings, parse(R"({"input":[[1,2,3],[99999]]})"));
  EXPECT_EQ(render_prompts(*input, *tokenizer(), nullptr).error().pointer, "/input/1/0");
}

TEST(CheckContext, NamesTheNumbers) {
  EXPECT_TRUE(check_context(512, *completion(R"(,"prompt":"x","max_tokens":0)"), 512));
  EXPECT_FALSE(check_context(513, *completion(R"(,"prompt":"x","max_tokens":0)"), 512));
  EXPECT_TRUE(
      check_context(512, *parse_request(Endpoint::kEmbeddings, parse(R"({"input":"x"})")), 512));
  EXPECT_TRUE(check_context(412, *chat(R"(,"max_tokens":100)"), 512));
  EXPECT_TRUE(check_context(511, *chat(""), 512));
  const auto over = check_context(500, *chat(R"(,"max_tokens":100)"), 512);
  ASSERT_FALSE(over);
  EXPECT_EQ(over.error().status, 400);
  EXPECT_EQ(over.error().code, "context_length_exceeded");
  for (const char* part : {"maximum context length is 512 tokens", "600", "500", "100"}) {
    EXPECT_NE(over.error().message.find(part), std::string::npos) << over.error().message;
  }
  const auto prompt = check_context(600, *chat(""), 512);
  ASSERT_FALSE(prompt);
  EXPECT_NE(prompt.error().message.find("maximum context length is 512 tokens"), std::string::npos);
  EXPECT_NE(prompt.error().message.find("600"), std::string::npos);
  EXPECT_FALSE(check_context(512, *chat(""), 512));
}

TEST(OpenAiRequest, LogprobsOfAllPromptsAndTheirChoicesAreBoundedTogether) {
  const auto checked = [](int64_t prompts, int64_t tokens, int n) {
    ApiRequest request = *parse_request(Endpoint::kCompletions,
                                        parse(R"({"prompt":"x","echo":true,"logprobs":20})"));
    request.sampling.n = n;
    request.prompts.assign(static_cast<size_t>(prompts),
                           {"", std::vector<int32_t>(static_cast<size_t>(tokens), 65)});
    return render_prompts(request, *tokenizer(), nullptr);
  };
  EXPECT_TRUE(checked(1, 49932, 1));  // 21 each: just under 1,048,576
  const std::tuple<int, int, int> cases[] = {
      {1, 49933, 1}, {2, 24967, 1}, {1, 24967, 2}, {64, 1000, 2}};
  for (const auto& [prompts, tokens, n] : cases) {
    const auto refused = checked(prompts, tokens, n);
    ASSERT_FALSE(refused) << prompts << " " << tokens << " " << n;
    EXPECT_EQ(refused.error().pointer, "/logprobs");
  }
}

}  // namespace
}  // namespace tandem::api
