#include "api/openai.h"

#include <fstream>
#include <memory>
#include <sstream>

#include <gtest/gtest.h>

namespace tandem::api {
namespace {

JsonValue parse(std::string_view text) {
  Result<JsonValue> json = parse_json(text);
  EXPECT_TRUE(json) << text;
  return json ? *json : JsonValue();
}

Result<ApiRequest> chat(const std::string& fields, bool trust = false) {
  return parse_request(Endpoint::kChatCompletions,
                       parse(R"({"messages":[{"role":"user","content":"hi"}])" + fields + "}"),
                       trust);
}
Result<ApiRequest> completion(const std::string& fields) {
  return parse_request(Endpoint::kCompletions, parse("{\"model\":\"m\"" + fields + "}"));
}

std::shared_ptr<const text::Tokenizer> tokenizer() {
  static const auto kMade = [] {
    std::ifstream file(std::string(TANDEM_SOURCE_DIR) + "/src/text/testdata/small_bpe_smollm.json");
    std::stringstream content;
    content << file.rdbuf();
    return *text::Tokenizer::create(*text::tokenizer_spec_from_json(parse(content.str())));
  }();
  return kMade;
}
text::ChatTemplate chat_template() {
  return std::move(*text::ChatTemplate::parse(
      "{% for m in messages %}<|turn|>{{ m.role }}:{{ m.content }}{% if m.tool_calls %}"
      "{{ m.tool_calls[0].function.arguments.a }}{% endif %}<|end|>{% endfor %}"
      "{% if add_generation_prompt %}<|turn|>{% endif %}{{ mood }}"));
}

TEST(OpenAiRequest, ReadsEveryField) {
  const auto request = chat(
      R"(,"model":"x","stream":true,"stream_options":{"include_usage":true},"temperature":0.5,"top_p":0.9,"top_k":7,)"
      R"("seed":-9223372036854775808,"max_completion_tokens":9,"stop":["a","bc"],"user":"u","prompt_cache_key":"k",)"
      R"("ignore_eos":true,"n":1,"logprobs":false,"presence_penalty":0,"unknown":{"a":[[{}]]},"tools":[])");
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->model, "x");
  EXPECT_TRUE(request->stream);
  EXPECT_TRUE(request->include_usage);
  EXPECT_FLOAT_EQ(request->sampling.temperature, 0.5F);
  EXPECT_FLOAT_EQ(request->sampling.top_p, 0.9F);
  EXPECT_EQ(request->sampling.top_k, 7);
  EXPECT_EQ(request->sampling.seed, uint64_t{1} << 63);
  EXPECT_EQ(request->sampling.max_tokens, 9);
  EXPECT_EQ(request->sampling.stop, (std::vector<std::string>{"a", "bc"}));
  EXPECT_TRUE(request->sampling.ignore_eos);
  EXPECT_EQ(request->user, "u");
  EXPECT_EQ(request->prompt_cache_key, "k");
  EXPECT_TRUE(request->tools.is_null());
}

TEST(OpenAiRequest, DefaultsAreTheDialects) {
  const auto request = chat(R"(,"temperature":null,"stop":null,"max_tokens":null,"stream":null)");
  ASSERT_TRUE(request);
  EXPECT_EQ(request->model, "default");
  EXPECT_FALSE(request->stream);
  EXPECT_FLOAT_EQ(request->sampling.temperature, 1);
  EXPECT_FALSE(request->sampling.seed);
  EXPECT_EQ(request->sampling.max_tokens, 0);
  EXPECT_EQ(completion(R"(,"prompt":"x")")->sampling.max_tokens, 16);
}

TEST(OpenAiRequest, BadFieldsAre400WithTheirPointer) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("temperature":2.1)", "/temperature"},
      {R"("temperature":-1)", "/temperature"},
      {R"("temperature":"1")", "/temperature"},
      {R"("temperature":1e999)", "/temperature"},
      {R"("top_p":0)", "/top_p"},
      {R"("top_p":1.5)", "/top_p"},
      {R"("top_k":-2)", "/top_k"},
      {R"("top_k":1.5)", "/top_k"},
      {R"("seed":9223372036854775808)", "/seed"},
      {R"("seed":"x")", "/seed"},
      {R"("max_tokens":0)", "/max_tokens"},
      {R"("max_tokens":99999999999)", "/max_tokens"},
      {R"("max_completion_tokens":-1)", "/max_completion_tokens"},
      {R"("stop":7)", "/stop"},
      {R"("stop":["a",7])", "/stop/1"},
      {R"("stop":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])",
       "/stop"},
      {R"("stream":1)", "/stream"},
      {R"("stream_options":[])", "/stream_options"},
      {R"("stream_options":{"include_usage":1})", "/stream_options/include_usage"},
      {R"("model":7)", "/model"},
      {R"("user":{})", "/user"},
      {R"("n":2)", "/n"},
      {R"("n":512)", "/n"},
      {R"("n":"1")", "/n"},
      {R"("logprobs":true)", "/logprobs"},
      {R"("top_logprobs":3)", "/top_logprobs"},
      {R"("logit_bias":{"99999999":-100})", "/logit_bias"},
      {R"("presence_penalty":0.5)", "/presence_penalty"},
      {R"("repetition_penalty":1.1)", "/repetition_penalty"},
      {R"("response_format":{"type":"json_object"})", "/response_format"},
      {R"("response_format":7)", "/response_format"},
      {R"("tool_choice":"required")", "/tool_choice"},
      {R"("tools":{"a":1})", "/tools"},
      {R"("tools":[[[]]])", "/tools/0"},
      {R"("chat_template":"x")", "/chat_template"},
      {R"("chat_template_kwargs":[])", "/chat_template_kwargs"},
      {R"("messages":[])", "/messages"},
      {R"("messages":"hi")", "/messages"},
      {R"("messages":[7])", "/messages/0"},
      {R"("messages":[{"content":"x"}])", "/messages/0/role"},
      {R"("messages":[{"role":"alien","content":"x"}])", "/messages/0/role"},
      {R"("messages":[{"role":"user"}])", "/messages/0/content"},
      {R"("messages":[{"role":"user","content":7}])", "/messages/0/content"},
      {R"("messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])",
       "/messages/0/content/0/type"},
      {R"("messages":[{"role":"user","content":[{"type":"text"}]}])", "/messages/0/content/0/text"},
      {R"("messages":[{"role":"assistant","tool_calls":{}}])", "/messages/0/tool_calls"},
      {R"("messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f"}}]}])",
       "/messages/0/tool_calls/0/function"},
  };
  for (const auto& [field, pointer] : cases) {
    JsonValue body = parse(R"({"messages":[{"role":"user","content":"hi"}]})");
    const JsonValue extra = parse(std::string("{") + field + "}");
    for (const auto& [key, value] : extra.members()) body.set(key, value);
    const auto request = parse_request(Endpoint::kChatCompletions, body);
    ASSERT_FALSE(request) << field;
    EXPECT_EQ(request.error().status, 400) << field;
    EXPECT_EQ(request.error().pointer, pointer) << field;
    EXPECT_FALSE(request.error().message.empty());
  }
  for (const char* body : {"[]", "null", "7", "{}"}) {
    EXPECT_EQ(parse_request(Endpoint::kChatCompletions, parse(body)).error().status, 400);
    EXPECT_EQ(parse_request(Endpoint::kCompletions, parse(body)).error().status, 400);
    EXPECT_EQ(parse_tokenize_request(parse(body)).error().status, 400);
    EXPECT_EQ(parse_detokenize_request(parse(body), *tokenizer()).error().status, 400);
  }
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
  EXPECT_EQ(completion(R"(,"prompt":"x")")->prompt, "x");
  EXPECT_EQ(completion(R"(,"prompt":["x"])")->prompt, "x");
  EXPECT_EQ(completion(R"(,"prompt":[1,2])")->prompt_token_ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(completion(R"(,"prompt":[[1,2]])")->prompt_token_ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(completion(R"(,"prompt":["x","y"])").error().pointer, "/prompt");
  EXPECT_EQ(completion(R"(,"prompt":[1,-2])").error().pointer, "/prompt/1");
  EXPECT_EQ(completion(R"(,"prompt":[1,2.5])").error().pointer, "/prompt/1");
  EXPECT_EQ(completion(R"(,"prompt":{})").error().pointer, "/prompt");
  EXPECT_EQ(completion("").error().pointer, "/prompt");
  EXPECT_EQ(completion(R"(,"prompt":"x","echo":true,"logprobs":1,"max_tokens":0)").error().status,
            400);
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
  EXPECT_EQ(*render_prompt(*request, *tokenizer(), nullptr), (std::vector<int32_t>{1, 2}));
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
  const auto tokens = render_prompt(*request, *tokenizer(), &model);
  ASSERT_TRUE(tokens) << tokens.error().message;
  EXPECT_EQ(tokenizer()->decode(*tokens, true), "<|turn|>user:hi<|end|><|turn|>calm");
  EXPECT_EQ(render_prompt(*request, *tokenizer(), nullptr).error().code, "no_chat_template");
  EXPECT_EQ(render_prompt(*completion(R"(,"prompt":"")"), *tokenizer(), nullptr).error().status,
            400);
  EXPECT_EQ(
      render_prompt(*completion(R"(,"prompt":[0,99999])"), *tokenizer(), nullptr).error().pointer,
      "/prompt/1");
}

TEST(CheckContext, NamesTheNumbers) {
  EXPECT_TRUE(check_context(412, 100, 512));
  EXPECT_TRUE(check_context(511, 0, 512));
  const auto over = check_context(500, 100, 512);
  ASSERT_FALSE(over);
  EXPECT_EQ(over.error().status, 400);
  EXPECT_EQ(over.error().code, "context_length_exceeded");
  for (const char* part : {"maximum context length is 512 tokens", "600", "500", "100"}) {
    EXPECT_NE(over.error().message.find(part), std::string::npos) << over.error().message;
  }
  const auto prompt = check_context(600, 0, 512);
  ASSERT_FALSE(prompt);
  EXPECT_NE(prompt.error().message.find("maximum context length is 512 tokens"), std::string::npos);
  EXPECT_NE(prompt.error().message.find("600"), std::string::npos);
  EXPECT_FALSE(check_context(512, 0, 512));
}

std::vector<JsonValue> frames(const std::string& bytes, bool* done = nullptr) {
  std::vector<JsonValue> out;
  size_t at = 0;
  while (at < bytes.size()) {
    const size_t end = bytes.find("\n\n", at);
    EXPECT_NE(end, std::string::npos);
    const std::string line = bytes.substr(at, end - at);
    EXPECT_TRUE(line.starts_with("data: "));
    if (line == "data: [DONE]") {
      EXPECT_EQ(end + 2, bytes.size()) << "[DONE] is last";
      if (done) *done = true;
    } else {
      out.push_back(parse(line.substr(6)));
    }
    at = end + 2;
  }
  return out;
}

protocol::FinishEvent finish_event() {
  return {.reason = protocol::FinishReason::kLength,
          .stop_string = {},
          .usage = {.prompt_tokens = 10, .cached_tokens = 4, .completion_tokens = 3},
          .completion_tokens = {5, 6, 7}};
}

std::string stream(ResponseRenderer& renderer) {
  return renderer.begin() + renderer.render(protocol::TextEvent{"Hé\n", {5}}) +
         renderer.render(protocol::TextEvent{"", {6}}) +
         renderer.render(protocol::TextEvent{"\"x\"", {7}}) + renderer.render(finish_event()) +
         renderer.render(protocol::TextEvent{"late", {}});
}

const char* const kUsage =
    R"({"prompt_tokens":10,"completion_tokens":3,"total_tokens":13,"prompt_tokens_details":{"cached_tokens":4}})";

TEST(ResponseRenderer, StreamsRoleTextOneFinishAndDone) {
  ResponseRenderer renderer(*chat(R"(,"stream":true)"), "chatcmpl-1", 7, "m");
  bool done = false;
  const auto chunks = frames(stream(renderer), &done);
  ASSERT_EQ(chunks.size(), 4U);
  EXPECT_TRUE(done);
  EXPECT_TRUE(renderer.finished());
  EXPECT_EQ(
      chunks[0].dump(),
      R"({"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,)"
      R"("delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]})");
  EXPECT_EQ(chunks[1].find("choices")->items()[0].find("delta")->dump(), "{\"content\":\"Hé\\n\"}");
  EXPECT_EQ(chunks[3].find("choices")->items()[0].find("finish_reason")->as_string(), "length");
  for (const JsonValue& chunk : chunks) EXPECT_EQ(chunk.find("usage"), nullptr);
}

TEST(ResponseRenderer, IncludeUsageAddsOneChunkWithoutChoices) {
  ResponseRenderer renderer(*chat(R"(,"stream":true,"stream_options":{"include_usage":true})"), "c",
                            7, "m");
  const auto chunks = frames(stream(renderer));
  ASSERT_EQ(chunks.size(), 5U);
  for (size_t i = 0; i < 4; ++i)
    EXPECT_TRUE(chunks[i].find("usage") && chunks[i].find("usage")->is_null());
  EXPECT_EQ(chunks[4].find("choices")->dump(), "[]");
  EXPECT_EQ(chunks[4].find("usage")->dump(), kUsage);
  EXPECT_EQ(chunks[4].find("tandem"), nullptr);
}

TEST(ResponseRenderer, ReportTokensNamesTheGeneratedIds) {
  auto request = *chat(R"(,"stream":true,"tandem":{"report_tokens":true})", true);
  ResponseRenderer streaming(request, "c", 7, "m");
  const auto chunks = frames(stream(streaming));
  ASSERT_EQ(chunks.size(), 5U);
  EXPECT_EQ(chunks[0].find("usage"), nullptr);
  EXPECT_EQ(chunks[4].find("tandem")->dump(), R"({"completion_token_ids":[5,6,7]})");
  ResponseRenderer whole(request, "c", 7, "m");
  whole.collect(finish_event());
  EXPECT_EQ(parse(*whole.body()).find("tandem")->dump(), R"({"completion_token_ids":[5,6,7]})");
}

TEST(ResponseRenderer, CompletionsStreamText) {
  ResponseRenderer renderer(*completion(R"(,"prompt":"x","stream":true)"), "cmpl-1", 7, "m");
  const auto chunks = frames(stream(renderer));
  ASSERT_EQ(chunks.size(), 3U);
  EXPECT_EQ(chunks[0].dump(),
            "{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":7,\"model\":\"m\","
            "\"choices\":[{\"index\":0,"
            "\"text\":\"Hé\\n\",\"logprobs\":null,\"finish_reason\":null}]}");
}

TEST(ResponseRenderer, TheWholeAnswerEqualsTheStreamedOne) {
  for (const bool is_chat : {true, false}) {
    const auto request = is_chat ? *chat("") : *completion(R"(,"prompt":"x")");
    ResponseRenderer streaming(request, "c", 7, "m");
    std::string text;
    for (const JsonValue& chunk : frames(stream(streaming))) {
      const JsonValue& choice = chunk.find("choices")->items()[0];
      const JsonValue* part = is_chat ? choice.find("delta")->find("content") : choice.find("text");
      if (part) text += part->as_string();
    }
    ResponseRenderer whole(request, "c", 7, "m");
    whole.collect(protocol::TextEvent{"Hé\n", {5}});
    whole.collect(protocol::TextEvent{"\"x\"", {7}});
    whole.collect(finish_event());
    const JsonValue body = parse(*whole.body());
    const JsonValue& choice = body.find("choices")->items()[0];
    EXPECT_EQ(
        (is_chat ? choice.find("message")->find("content") : choice.find("text"))->as_string(),
        text);
    EXPECT_EQ(choice.find("finish_reason")->as_string(), "length");
    EXPECT_EQ(body.find("usage")->dump(), kUsage);
  }
}

// dynamo#8430, sglang#33507: a failure must never look like a short answer.
TEST(ResponseRenderer, FailuresAreErrorFramesThenDone) {
  protocol::FinishEvent abort = finish_event();
  abort.reason = protocol::FinishReason::kAborted;
  for (const protocol::TokenEvent& event :
       {protocol::TokenEvent(
            protocol::ErrorEvent{{503, "worker_lost", "the decode worker died \xFF"}}),
        protocol::TokenEvent(abort)}) {
    ResponseRenderer renderer(*chat(R"(,"stream":true)"), "c", 7, "m");
    bool done = false;
    const auto chunks = frames(renderer.begin() + renderer.render(event), &done);
    EXPECT_TRUE(done);
    EXPECT_TRUE(renderer.failed());
    ASSERT_EQ(chunks.size(), 2U);
    ASSERT_NE(chunks[1].find("error"), nullptr);
    EXPECT_TRUE(chunks[1].find("error")->find("message")->is_string());
    ResponseRenderer whole(*chat(""), "c", 7, "m");
    whole.collect(event);
    EXPECT_EQ(whole.body().error().status, 503);
  }
  ResponseRenderer unfinished(*chat(""), "c", 7, "m");
  unfinished.collect(protocol::TextEvent{"x", {}});
  EXPECT_FALSE(unfinished.body());
}

TEST(Bodies, ModelsTokens) {
  const std::vector<ModelEntry> models{{"m", 512, ""}, {"tuned", 512, "m"}};
  EXPECT_EQ(
      models_body(models, 7),
      R"({"object":"list","data":[{"id":"m","object":"model","created":7,"owned_by":"tandem","max_model_len":512},)"
      R"({"id":"tuned","object":"model","created":7,"owned_by":"tandem","parent":"m","max_model_len":512}]})");
  const std::vector<int32_t> tokens{1, 2};
  EXPECT_EQ(tokenize_body(tokens, 512), R"({"count":2,"max_model_len":512,"tokens":[1,2]})");
  EXPECT_EQ(detokenize_body("a\"b"), R"({"prompt":"a\"b"})");
}

TEST(Tokenize, TextAndMessagesRoundTrip) {
  const auto model = chat_template();
  const auto plain = parse_tokenize_request(parse(R"({"prompt":"Hello world"})"));
  ASSERT_TRUE(plain);
  const auto tokens = tokenize(*plain, *tokenizer(), nullptr);
  EXPECT_EQ(tokenizer()->decode(*tokens), "Hello world");
  const auto messages = parse_tokenize_request(
      parse(R"({"messages":[{"role":"user","content":"hi"}],"add_generation_prompt":false})"));
  EXPECT_EQ(tokenizer()->decode(*tokenize(*messages, *tokenizer(), &model), true),
            "<|turn|>user:hi<|end|>");
  EXPECT_EQ(*parse_detokenize_request(parse(R"({"tokens":[4,5]})"), *tokenizer()),
            (std::vector<int32_t>{4, 5}));
  EXPECT_EQ(parse_detokenize_request(parse(R"({"tokens":[4,5000]})"), *tokenizer()).error().pointer,
            "/tokens/1");
}

}  // namespace
}  // namespace tandem::api
