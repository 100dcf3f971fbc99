#include "api/ollama.h"

#include "api/api_test_support.h"

namespace tandem::api {
namespace {

TEST(Ollama, ChatBecomesAChatCompletion) {
  const auto request = parse_ollama(
      OllamaRoute::kChat,
      parse(
          R"({"model":"m:latest","messages":[{"role":"user","content":"hi","images":[]}],"keep_alive":"5m",)"
          R"("options":{"temperature":0.5,"num_predict":9,"repeat_penalty":1.2,"stop":["x"],"num_ctx":4096,"seed":3}})"));
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_TRUE(request->stream) << "unless told not to";
  EXPECT_EQ(request->endpoint, Endpoint::kChatCompletions);
  EXPECT_EQ(request->model, "m:latest");
  const auto parsed = parse_request(Endpoint::kChatCompletions, request->body);
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->model, "m");
  EXPECT_TRUE(parsed->stream && parsed->include_usage);
  EXPECT_FLOAT_EQ(parsed->sampling.temperature, 0.5F);
  EXPECT_FLOAT_EQ(parsed->sampling.repetition_penalty, 1.2F);
  EXPECT_EQ(parsed->sampling.max_tokens, 9);
  EXPECT_EQ(parsed->sampling.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(parsed->sampling.seed, 3U);
}

TEST(Ollama, GenerateBecomesMessagesOrARawPrompt) {
  const auto rendered = parse_ollama(
      OllamaRoute::kGenerate,
      parse(R"({"prompt":"hi","system":"be brief","stream":false,"options":{"num_predict":-1}})"));
  EXPECT_EQ(rendered->body.find("messages")->dump(),
            R"([{"role":"system","content":"be brief"},{"role":"user","content":"hi"}])");
  EXPECT_FALSE(rendered->stream);
  EXPECT_EQ(rendered->body.find("max_tokens"), nullptr);
  const auto raw = parse_ollama(OllamaRoute::kGenerate, parse(R"({"prompt":"hi","raw":true})"));
  EXPECT_EQ(raw->endpoint, Endpoint::kCompletions);
  EXPECT_EQ(raw->body.find("prompt")->as_string(), "hi");
}

TEST(Ollama, WhatCannotBeServedIsRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"messages":[{"role":"user","content":"x","images":["aGk="]}]})", "/messages/0/images"},
      {R"({"messages":[{"role":"user","content":"x"}],"format":"xml"})", "/format"},
      {R"({"messages":[{"role":"user","content":"x"}],"format":7})", "/format"},
      {R"({"messages":"x"})", "/messages"},
      {R"([])", ""},
      {R"({"messages":[],"logprobs":true})", "/logprobs"},
      {R"({})", "/messages"},
      {R"({"messages":[],"stream":1})", "/stream"},
      {R"({"messages":[],"options":7})", "/options"},
      {R"({"messages":[],"options":{"num_predict":"x"}})", "/options/num_predict"},
  };
  for (const auto& [body, pointer] : cases) {
    const auto request = parse_ollama(OllamaRoute::kChat, parse(body));
    ASSERT_FALSE(request) << body;
    EXPECT_EQ(request.error().status, 400);
    EXPECT_EQ(request.error().pointer, pointer) << body;
  }
  EXPECT_EQ(parse_ollama(OllamaRoute::kGenerate, parse("{}")).error().pointer, "/prompt");
  for (const char* body : {"{}", R"({"input":7})"})
    EXPECT_EQ(parse_ollama(OllamaRoute::kEmbed, parse(body)).error().pointer, "/input");
  EXPECT_EQ(parse_ollama(OllamaRoute::kEmbedding, parse(R"({"prompt":["a"]})")).error().pointer,
            "/prompt");
  EXPECT_EQ(ollama_error(R"({"error":{"message":"why"}})"), R"({"error":"why"})");
  EXPECT_TRUE(parse(ollama_error("nonsense")).find("error")->is_string());
}

TEST(Ollama, AFormatIsJsonOrASchema) {
  const auto request = [](const char* format) {
    return parse_ollama(OllamaRoute::kGenerate,
                        parse(std::string(R"({"prompt":"hi","format":)") + format + "}"))
        ->body;
  };
  EXPECT_EQ(request("\"json\"").find("response_format")->dump(), R"({"type":"json_object"})");
  const JsonValue schema = request(R"({"type":"object","properties":{"a":{"type":"integer"}}})");
  EXPECT_EQ(schema.find("response_format")->dump(),
            R"({"type":"json_schema","json_schema":{"name":"format","schema":)"
            R"({"type":"object","properties":{"a":{"type":"integer"}}}}})");
  const auto parsed = parse_request(Endpoint::kChatCompletions, schema);
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(request("\"\"").find("response_format"), nullptr);
}

TEST(Ollama, CallsAndResultsInMessagesGetIds) {
  const auto request = parse_ollama(OllamaRoute::kChat, parse(R"({"messages":[
    {"role":"user","content":"x"},
    {"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{"a":1}}},
                                                   {"function":{"name":"g","arguments":{}}}]},
    {"role":"tool","content":"2","tool_name":"g"},{"role":"tool","content":"1"},
    {"role":"assistant","tool_calls":[{"function":{"name":"f"}}, 7]},
    {"role":"assistant","tool_calls":[{"id":"mine","function":{"name":"f","arguments":"{}"}}]},
    {"role":"tool","content":"3"},{"role":"tool","content":"4"}]})"));
  ASSERT_TRUE(request);
  const auto& messages = request->body.find("messages")->items();
  EXPECT_EQ(
      messages[1].find("tool_calls")->dump(),
      R"([{"function":{"name":"f","arguments":"{\"a\":1}"},"id":"call00000","type":"function"},)"
      R"({"function":{"name":"g","arguments":"{}"},"id":"call00001","type":"function"}])");
  EXPECT_EQ(messages[2].find("tool_call_id")->as_string(), "call00001");
  EXPECT_EQ(messages[3].find("tool_call_id")->as_string(), "call00000");
  EXPECT_EQ(messages[4].find("tool_calls")->dump(),
            R"([{"function":{"name":"f","arguments":"{}"},"id":"call00002","type":"function"},7])");
  EXPECT_EQ(messages[6].find("tool_call_id")->as_string(), "mine");
  EXPECT_EQ(messages[7].find("tool_call_id")->as_string(), "call00003");
  const auto sound = parse_ollama(OllamaRoute::kChat, parse(R"({"messages":[
    {"role":"user","content":"x"},
    {"role":"assistant","content":"","tool_calls":[{"function":{"name":"f"}}]},
    {"role":"tool","content":"1"}]})"));
  const auto parsed = parse_request(Endpoint::kChatCompletions, sound->body);
  EXPECT_TRUE(parsed) << parsed.error().message;
}

TEST(Ollama, CallsThatAreNoneOrTooLongDoNoHarm) {
  const auto request = *parse_ollama(
      OllamaRoute::kChat, parse(R"({"model":"m","messages":[{"role":"user","content":"x"}]})"));
  const auto chunk = [](const std::string& calls) {
    return R"({"choices":[{"delta":{"tool_calls":)" + calls + "}}]}";
  };
  OllamaReply odd(request, "t");
  for (const char* calls : {"7", "[null,7,{}]", R"([{"index":1000,"function":{"name":"f"}}])",
                            R"([{"index":-1,"function":{"name":"f"}}])",
                            R"([{"function":{"arguments":"{}"}}])", R"([{"function":7}])"})
    EXPECT_EQ(odd.line(chunk(calls), 1), "") << calls;
  // A stream that ends without a reason still tells its calls; pieces without an index go on.
  EXPECT_EQ(odd.line(chunk(R"([{"function":{"name":"f","arguments":"[1"}}])"), 1), "");
  EXPECT_EQ(odd.line(chunk(R"([{"function":{"arguments":"]"}}])"), 1), "");
  const auto last = parse(odd.line("[DONE]", 1));
  EXPECT_EQ(last.find("message")->find("tool_calls")->dump(),
            R"([{"function":{"name":"f","arguments":"[1]"}}])");

  OllamaReply endless(request, "t");
  const std::string piece = chunk(R"([{"index":0,"function":{"name":"f","arguments":")" +
                                  std::string(1 << 20, 'x') + R"("}}])");
  std::string said;
  for (int i = 0; i < 9 && said.empty(); ++i) said = endless.line(piece, 1);
  EXPECT_NE(said.find("error"), std::string::npos);
  EXPECT_EQ(endless.line("[DONE]", 1), "");
}

TEST(Ollama, NotesStandInTheFirstLine) {
  const auto request = *parse_ollama(
      OllamaRoute::kChat, parse(R"({"model":"m","messages":[{"role":"user","content":"x"}]})"));
  OllamaReply reply(request, "t");
  reply.line(R"({"choices":[{"delta":{"content":""}}],"tandem_notes":["/a"]})", 1);
  const std::string first = reply.line(R"({"choices":[{"delta":{"content":"H"}}]})", 1);
  EXPECT_NE(first.find(R"("tandem_notes":["/a"])"), std::string::npos) << first;
  const std::string second = reply.line(R"({"choices":[{"delta":{"content":"i"}}]})", 1);
  EXPECT_EQ(second.find("tandem_notes"), std::string::npos);
}

TEST(Ollama, CallsComeWholeInOneLine) {
  const auto request = *parse_ollama(
      OllamaRoute::kChat, parse(R"({"model":"m","messages":[{"role":"user","content":"x"}]})"));
  OllamaReply stream(request, "t");
  const auto delta = [&](const char* calls, const char* reason) {
    return stream.line(std::string(R"({"choices":[{"delta":{"tool_calls":)") + calls +
                           R"(},"finish_reason":)" + reason + "}]}",
                       1);
  };
  EXPECT_EQ(delta(R"([{"index":0,"id":"c","function":{"name":"f","arguments":""}}])", "null"), "");
  EXPECT_EQ(delta(R"([{"index":0,"function":{"arguments":"{\"a\":"}}])", "null"), "");
  EXPECT_EQ(delta(R"([{"index":0,"function":{"arguments":"1}"}}])", "null"), "");
  EXPECT_EQ(
      delta(R"([{"index":1,"id":"d","function":{"name":"g","arguments":""}}])", "\"tool_calls\""),
      "{\"model\":\"m\",\"created_at\":\"t\",\"message\":{\"role\":\"assistant\",\"content\":\"\","
      "\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1}}},"
      "{\"function\":{\"name\":\"g\",\"arguments\":{}}}]},\"done\":false}\n");
  EXPECT_NE(stream.line("[DONE]", 1).find(R"("done_reason":"stop")"), std::string::npos);
  const std::string whole =
      OllamaReply(request, "t")
          .whole(
              R"({"choices":[{"message":{"content":null,"tool_calls":[{"id":"c","function":{"name":"f",)"
              R"("arguments":"{\"a\": tru"}}]},"finish_reason":"tool_calls"}],"usage":{}})",
              9);
  EXPECT_EQ(whole,
            R"({"model":"m","created_at":"t","message":{"role":"assistant","content":"",)"
            R"("tool_calls":[{"function":{"name":"f","arguments":"{\"a\": tru"}}]},"done":true,)"
            R"("done_reason":"stop","total_duration":9})");
}

TEST(Ollama, EventsBecomeLinesAndTheLastHasTheCounts) {
  const auto request = *parse_ollama(
      OllamaRoute::kChat, parse(R"({"model":"m","messages":[{"role":"user","content":"x"}]})"));
  OllamaReply reply(request, "2026-01-01T00:00:00Z");
  EXPECT_EQ(
      reply.line(
          R"({"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]})", 1),
      "");
  EXPECT_EQ(reply.line(
                R"({"choices":[{"delta":{"content":"Hi"},"finish_reason":null}],"usage":null})", 1),
            "{\"model\":\"m\",\"created_at\":\"2026-01-01T00:00:00Z\",\"message\":{\"role\":"
            "\"assistant\","
            "\"content\":\"Hi\"},\"done\":false}\n");
  EXPECT_EQ(reply.line(R"({"choices":[{"delta":{},"finish_reason":"length"}],"usage":null})", 1),
            "");
  EXPECT_EQ(reply.line(R"({"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}})", 1),
            "");
  EXPECT_EQ(reply.line("[DONE]", 77),
            "{\"model\":\"m\",\"created_at\":\"2026-01-01T00:00:00Z\",\"message\":{\"role\":"
            "\"assistant\","
            "\"content\":\"\"},\"done\":true,\"done_reason\":\"length\",\"total_duration\":77,"
            "\"prompt_eval_count\":5,\"eval_count\":2}\n");
}

TEST(Ollama, AStreamThatFailsEndsWithItsErrorOnly) {
  const auto request =
      *parse_ollama(OllamaRoute::kChat, parse(R"({"messages":[{"role":"user","content":"x"}]})"));
  OllamaReply reply(request, "t");
  EXPECT_EQ(reply.line(R"({"error":{"message":"lost"}})", 1), "{\"error\":\"lost\"}\n");
  EXPECT_EQ(reply.line("[DONE]", 1), "");
}

TEST(Ollama, AWholeAnswerIsOneObject) {
  const auto request =
      *parse_ollama(OllamaRoute::kGenerate, parse(R"({"model":"m","prompt":"x","stream":false})"));
  const OllamaReply reply(request, "t");
  EXPECT_EQ(reply.whole(R"({"choices":[{"message":{"content":"Hi"},"finish_reason":"length"}],)"
                        R"("usage":{"prompt_tokens":5,"completion_tokens":2}})",
                        9),
            R"({"model":"m","created_at":"t","response":"Hi","done":true,"done_reason":"length",)"
            R"("total_duration":9,"prompt_eval_count":5,"eval_count":2})");
}

TEST(Ollama, WithoutAPromptOnlyTheModelIsLoaded) {
  for (const char* body : {R"({"model":"m","messages":[]})", R"({"model":"m"})"}) {
    const auto request = *parse_ollama(OllamaRoute::kChat, parse(body));
    EXPECT_TRUE(request.load) << body;
    EXPECT_EQ(OllamaReply(request, "t").loaded(),
              R"({"model":"m","created_at":"t","message":{"role":"assistant","content":""},)"
              R"("done":true,"done_reason":"load"})");
  }
  EXPECT_TRUE(parse_ollama(OllamaRoute::kGenerate, parse(R"({"model":"m","prompt":""})"))->load);
  EXPECT_FALSE(parse_ollama(OllamaRoute::kGenerate, parse(R"({"model":"m","prompt":" "})"))->load);
}

TEST(Ollama, EmbeddingsOfOneOrSeveralTexts) {
  const auto several = *parse_ollama(OllamaRoute::kEmbed,
                                     parse(R"({"model":"m","input":["a","b"],"truncate":true})"));
  const auto parsed = parse_request(Endpoint::kEmbeddings, several.body);
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->prompts.size(), 2U);
  const char* answer =
      R"({"data":[{"embedding":[0.25,-1]},{"embedding":[0.5,1e-9]}],"usage":{"prompt_tokens":4}})";
  EXPECT_EQ(OllamaReply(several, "t").whole(answer, 9),
            R"({"model":"m","embeddings":[[0.25,-1],[0.5,1e-9]],"total_duration":9,)"
            R"("prompt_eval_count":4})");
  const auto one = *parse_ollama(OllamaRoute::kEmbedding, parse(R"({"model":"m","prompt":"a"})"));
  EXPECT_EQ(one.body.find("input")->as_string(), "a");
  EXPECT_EQ(OllamaReply(one, "t").whole(answer, 9), R"({"embedding":[0.25,-1]})");
}

}  // namespace
}  // namespace tandem::api
