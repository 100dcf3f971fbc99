#include "api/ollama.h"

#include "api/api_test_support.h"

namespace tandem::api {
namespace {

TEST(Ollama, ChatBecomesAChatCompletion) {
  const auto request = parse_ollama(
      true,
      parse(
          R"({"model":"m:latest","messages":[{"role":"user","content":"hi","images":[]}],"keep_alive":"5m",)"
          R"("options":{"temperature":0.5,"num_predict":9,"repeat_penalty":1.2,"stop":["x"],"num_ctx":4096,"seed":3}})"));
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_TRUE(request->stream) << "unless told not to";
  EXPECT_TRUE(request->messages);
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
      false,
      parse(R"({"prompt":"hi","system":"be brief","stream":false,"options":{"num_predict":-1}})"));
  EXPECT_EQ(rendered->body.find("messages")->dump(),
            R"([{"role":"system","content":"be brief"},{"role":"user","content":"hi"}])");
  EXPECT_FALSE(rendered->stream);
  EXPECT_EQ(rendered->body.find("max_tokens"), nullptr);
  const auto raw = parse_ollama(false, parse(R"({"prompt":"hi","raw":true})"));
  EXPECT_FALSE(raw->messages);
  EXPECT_EQ(raw->body.find("prompt")->as_string(), "hi");
}

TEST(Ollama, WhatCannotBeServedIsRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"messages":[{"role":"user","content":"x","images":["aGk="]}]})", "/messages/0/images"},
      {R"({"messages":[],"format":"json"})", "/format"},
      {R"({})", "/messages"},
      {R"([])", ""},
      {R"({"messages":[],"stream":1})", "/stream"},
      {R"({"messages":[],"options":7})", "/options"},
      {R"({"messages":[],"options":{"num_predict":"x"}})", "/options/num_predict"},
  };
  for (const auto& [body, pointer] : cases) {
    const auto request = parse_ollama(true, parse(body));
    ASSERT_FALSE(request) << body;
    EXPECT_EQ(request.error().status, 400);
    EXPECT_EQ(request.error().pointer, pointer) << body;
  }
  EXPECT_EQ(parse_ollama(false, parse("{}")).error().pointer, "/prompt");
  EXPECT_EQ(ollama_error(R"({"error":{"message":"why"}})"), R"({"error":"why"})");
  EXPECT_TRUE(parse(ollama_error("nonsense")).find("error")->is_string());
}

TEST(Ollama, EventsBecomeLinesAndTheLastHasTheCounts) {
  const auto request =
      *parse_ollama(true, parse(R"({"model":"m","messages":[{"role":"user","content":"x"}]})"));
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
      *parse_ollama(true, parse(R"({"messages":[{"role":"user","content":"x"}]})"));
  OllamaReply reply(request, "t");
  EXPECT_EQ(reply.line(R"({"error":{"message":"lost"}})", 1), "{\"error\":\"lost\"}\n");
  EXPECT_EQ(reply.line("[DONE]", 1), "");
}

TEST(Ollama, AWholeAnswerIsOneObject) {
  const auto request = *parse_ollama(false, parse(R"({"model":"m","prompt":"x","stream":false})"));
  const OllamaReply reply(request, "t");
  EXPECT_EQ(reply.whole(R"({"choices":[{"message":{"content":"Hi"},"finish_reason":"length"}],)"
                        R"("usage":{"prompt_tokens":5,"completion_tokens":2}})",
                        9),
            R"({"model":"m","created_at":"t","response":"Hi","done":true,"done_reason":"length",)"
            R"("total_duration":9,"prompt_eval_count":5,"eval_count":2})");
}

}  // namespace
}  // namespace tandem::api
