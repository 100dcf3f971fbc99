#include "api/responses.h"

#include "api/api_test_support.h"

namespace tandem::api {
namespace {

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

ReplyContext context(std::vector<int64_t> prompt_tokens = {10}, std::string id = "c") {
  return {std::move(id), 7, "m", "fp_1", std::move(prompt_tokens), tokenizer().get()};
}

protocol::FinishEvent finish_event(int32_t choice = 0) {
  return {.reason = protocol::FinishReason::kLength,
          .stop_string = {},
          .choice = choice,
          .usage = {.prompt_tokens = 10, .cached_tokens = 4, .completion_tokens = 3},
          .completion_tokens = {5, 6, 7}};
}

protocol::TokenLogprobs scored(int32_t token, std::string bytes, float logprob) {
  return {{token, logprob, bytes}, {{token, logprob, bytes}, {token + 1, logprob - 1, "alt"}}};
}

// The events of one choice: text of three tokens, the second without text of its own.
std::vector<protocol::TokenEvent> events(int32_t choice = 0) {
  return {protocol::TextEvent{"Hé\n", {5}, choice, {scored(5, "Hé\n", -0.5F)}},
          protocol::TextEvent{"", {6}, choice, {scored(6, "\xE2\x82", -1.5F)}},
          protocol::TextEvent{"\"x\"", {7}, choice, {scored(7, "\"x\"", -2.5F)}},
          finish_event(choice), protocol::TextEvent{"late", {}, choice}};
}

std::vector<protocol::TokenEvent> without_logprobs(std::vector<protocol::TokenEvent> from) {
  for (auto& event : from) {
    if (auto* text = std::get_if<protocol::TextEvent>(&event)) text->logprobs.clear();
  }
  return from;
}

std::string stream(ResponseRenderer& renderer, const std::vector<protocol::TokenEvent>& of) {
  std::string out = renderer.begin();
  for (const auto& event : of) out += renderer.render(0, event);
  return out;
}

const char* const kUsage =
    R"({"prompt_tokens":10,"completion_tokens":3,"total_tokens":13,"prompt_tokens_details":{"cached_tokens":4},)"
    R"("completion_tokens_details":{"reasoning_tokens":0}})";

const JsonValue& choice_of(const JsonValue& chunk) { return chunk.find("choices")->items().at(0); }

TEST(ResponseRenderer, StreamsRoleTextOneFinishAndDone) {
  ResponseRenderer renderer(*chat(R"(,"stream":true)"), context({10}, "chatcmpl-1"));
  bool done = false;
  const auto chunks = frames(stream(renderer, without_logprobs(events())), &done);
  ASSERT_EQ(chunks.size(), 4U);
  EXPECT_TRUE(done);
  EXPECT_TRUE(renderer.finished());
  EXPECT_EQ(
      chunks[0].dump(),
      R"({"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","service_tier":"default",)"
      R"("system_fingerprint":"fp_1","choices":[{"index":0,)"
      R"("delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}]})");
  EXPECT_EQ(choice_of(chunks[1]).find("delta")->dump(), "{\"content\":\"Hé\\n\"}");
  EXPECT_EQ(choice_of(chunks[3]).find("finish_reason")->as_string(), "length");
  EXPECT_TRUE(choice_of(chunks[3]).find("stop_reason")->is_null());
  for (const JsonValue& chunk : chunks) EXPECT_EQ(chunk.find("usage"), nullptr);
}

TEST(ResponseRenderer, IncludeUsageAddsOneChunkWithoutChoices) {
  ResponseRenderer renderer(*chat(R"(,"stream":true,"stream_options":{"include_usage":true})"),
                            context());
  const auto chunks = frames(stream(renderer, without_logprobs(events())));
  ASSERT_EQ(chunks.size(), 5U);
  for (size_t i = 0; i < 4; ++i)
    EXPECT_TRUE(chunks[i].find("usage") && chunks[i].find("usage")->is_null());
  EXPECT_EQ(chunks[4].find("choices")->dump(), "[]");
  EXPECT_EQ(chunks[4].find("usage")->dump(), kUsage);
  EXPECT_EQ(chunks[4].find("tandem"), nullptr);
}

TEST(ResponseRenderer, ContinuousUsageCountsAsItGoes) {
  ResponseRenderer renderer(
      *chat(R"(,"stream":true,"stream_options":{"continuous_usage_stats":true})"), context());
  const auto chunks = frames(stream(renderer, without_logprobs(events())));
  ASSERT_EQ(chunks.size(), 5U);
  const int64_t counts[] = {0, 1, 3, 3, 3};
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(chunks[i].find("usage")->find("completion_tokens")->as_integer(), counts[i]) << i;
    EXPECT_EQ(chunks[i].find("usage")->find("prompt_tokens")->as_integer(), 10);
  }
  EXPECT_EQ(chunks[4].find("usage")->dump(), kUsage);
}

TEST(ResponseRenderer, ReportTokensNamesTheGeneratedIdsOfEveryChoice) {
  const auto request = *chat(R"(,"n":2,"stream":true,"tandem":{"report_tokens":true})", true);
  ResponseRenderer streaming(request, context());
  auto both = without_logprobs(events(1));
  for (const auto& event : without_logprobs(events(0))) both.push_back(event);
  const auto chunks = frames(stream(streaming, both));
  EXPECT_EQ(chunks[0].find("usage"), nullptr);
  EXPECT_EQ(chunks.back().find("tandem")->dump(), R"({"completion_token_ids":[[5,6,7],[5,6,7]]})");
  ResponseRenderer whole(request, context());
  whole.collect(0, finish_event(1));
  EXPECT_FALSE(whole.finished());
  whole.collect(0, finish_event(0));
  EXPECT_EQ(parse(*whole.body()).find("tandem")->dump(),
            R"({"completion_token_ids":[[5,6,7],[5,6,7]]})");
}

TEST(ResponseRenderer, UsageCountsWhatBestOfGeneratedAndNobodyGets) {
  ResponseRenderer renderer(*completion(R"(,"prompt":"a","best_of":5)"), context());
  auto finish = finish_event();
  finish.discarded_tokens = 40;
  renderer.collect(0, finish);
  const JsonValue body = parse(*renderer.body());
  EXPECT_EQ(body.find("usage")->find("completion_tokens")->as_integer(), 43);
  EXPECT_EQ(body.find("usage")->find("total_tokens")->as_integer(), 53);
}

TEST(ResponseRenderer, EachChoiceHasOneFinishAndUsageCountsThePromptOnce) {
  const auto request = *chat(R"(,"n":3,"stream":true,"stream_options":{"include_usage":true})");
  ResponseRenderer renderer(request, context());
  std::string bytes = renderer.begin();
  for (const int32_t choice : {2, 0, 1}) {
    for (const auto& event : without_logprobs(events(choice))) bytes += renderer.render(0, event);
    bytes += renderer.render(0, finish_event(choice));  // twice: ignored
  }
  const auto chunks = frames(bytes);
  std::vector<int> roles(3);
  std::vector<int> finishes(3);
  for (const JsonValue& chunk : chunks) {
    for (const JsonValue& choice : chunk.find("choices")->items()) {
      const auto index = static_cast<size_t>(*choice.find("index")->as_integer());
      finishes.at(index) += choice.find("finish_reason")->is_null() ? 0 : 1;
      roles.at(index) += choice.find("delta")->find("role") == nullptr ? 0 : 1;
    }
  }
  EXPECT_EQ(roles, (std::vector<int>{1, 1, 1}));
  EXPECT_EQ(finishes, (std::vector<int>{1, 1, 1}));
  EXPECT_EQ(chunks.back().find("usage")->find("prompt_tokens")->as_integer(), 10);
  EXPECT_EQ(chunks.back().find("usage")->find("completion_tokens")->as_integer(), 9);
  EXPECT_EQ(chunks.back().find("usage")->find("total_tokens")->as_integer(), 19);
}

TEST(ResponseRenderer, SeveralPromptsHaveIndexPromptTimesNPlusChoice) {
  const auto request = *completion(R"(,"prompt":["x","y"],"n":2)");
  ResponseRenderer renderer(request, context({10, 20}));
  for (const size_t prompt : {1U, 0U}) {
    for (const int32_t choice : {1, 0}) {
      renderer.collect(
          prompt,
          protocol::TextEvent{std::to_string(prompt) + "/" + std::to_string(choice), {1}, choice});
      auto finish = finish_event(choice);
      finish.usage.prompt_tokens = prompt == 0 ? 10 : 20;
      renderer.collect(prompt, finish);
    }
  }
  const JsonValue body = parse(*renderer.body());
  const char* const texts[] = {"0/0", "0/1", "1/0", "1/1"};
  for (size_t i = 0; i < 4; ++i) {
    const JsonValue& choice = body.find("choices")->items().at(i);
    EXPECT_EQ(choice.find("index")->as_integer(), static_cast<int64_t>(i));
    EXPECT_EQ(choice.find("text")->as_string(), texts[i]);
  }
  EXPECT_EQ(body.find("usage")->find("prompt_tokens")->as_integer(), 30);
  EXPECT_EQ(body.find("usage")->find("completion_tokens")->as_integer(), 12);
}

TEST(ResponseRenderer, ChatLogprobsNameTokensBytesAndAlternatives) {
  ResponseRenderer renderer(*chat(R"(,"logprobs":true,"top_logprobs":2)"), context());
  for (const auto& event : events()) renderer.collect(0, event);
  const JsonValue body = parse(*renderer.body());
  const JsonValue* logprobs = choice_of(body).find("logprobs");
  ASSERT_EQ(logprobs->find("content")->items().size(), 3U);
  EXPECT_EQ(
      logprobs->find("content")->items()[1].dump(),
      "{\"token\":\"\uFFFD\",\"logprob\":-1.5,\"bytes\":[226,130],\"top_logprobs\":[{\"token\":"
      "\"\uFFFD\",\"logprob\":-1.5,\"bytes\":[226,130]},{\"token\":\"alt\",\"logprob\":-2.5,"
      "\"bytes\":[97,108,116]}]}");
  EXPECT_TRUE(logprobs->find("refusal")->is_null());
}

TEST(ResponseRenderer, CompletionLogprobsAreFourListsWithOffsetsInCharacters) {
  ResponseRenderer renderer(*completion(R"(,"prompt":"x","logprobs":2)"), context());
  for (const auto& event : events()) renderer.collect(0, event);
  const JsonValue body = parse(*renderer.body());
  const JsonValue* logprobs = choice_of(body).find("logprobs");
  EXPECT_EQ(logprobs->find("tokens")->dump(), "[\"Hé\\n\",\"bytes:\\\\xe2\\\\x82\",\"\\\"x\\\"\"]");
  EXPECT_EQ(logprobs->find("token_logprobs")->dump(), "[-0.5,-1.5,-2.5]");
  EXPECT_EQ(logprobs->find("text_offset")->dump(), "[0,3,4]");
  EXPECT_EQ(logprobs->find("top_logprobs")->items()[0].dump(), "{\"Hé\\n\":-0.5,\"alt\":-1.5}");
}

// vllm#10234: what filters make impossible must not make JSON impossible.
TEST(ResponseRenderer, LogprobsAreFinite) {
  auto event =
      protocol::TextEvent{"a", {5}, 0, {scored(5, "a", -std::numeric_limits<float>::infinity())}};
  event.logprobs[0].top[1].logprob = std::numeric_limits<float>::quiet_NaN();
  ResponseRenderer renderer(*completion(R"(,"prompt":"x","logprobs":2)"), context());
  renderer.collect(0, event);
  renderer.collect(0, finish_event());
  const JsonValue body = parse(*renderer.body());
  EXPECT_EQ(choice_of(body).find("logprobs")->find("token_logprobs")->dump(), "[-9999]");
}

protocol::PromptEvent prompt_event() {
  const std::vector<int32_t> ids = tokenizer()->encode("Hello world");
  protocol::PromptEvent event{ids, {}};
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i == 0) {
      event.logprobs.emplace_back(std::nullopt);
    } else {
      event.logprobs.emplace_back(
          scored(ids[i], std::string(tokenizer()->token_bytes(ids[i])), -1));
    }
  }
  return event;
}

// vllm#6521: scoring clients ask for exactly this.
TEST(ResponseRenderer, EchoPutsThePromptAndItsLogprobsBeforeTheText) {
  const auto request =
      *completion(R"(,"prompt":"Hello world","echo":true,"logprobs":1,"max_tokens":0)");
  ResponseRenderer renderer(request, context());
  renderer.collect(0, prompt_event());
  auto finish = finish_event();
  finish.completion_tokens.clear();
  finish.usage.completion_tokens = 0;
  renderer.collect(0, finish);
  const JsonValue body = parse(*renderer.body());
  EXPECT_EQ(choice_of(body).find("text")->as_string(), "Hello world");
  const JsonValue* logprobs = choice_of(body).find("logprobs");
  std::string joined;
  size_t i = 0;
  for (const JsonValue& token : logprobs->find("tokens")->items()) {
    EXPECT_EQ(logprobs->find("text_offset")->items()[i++].as_integer(),
              static_cast<int64_t>(joined.size()));
    joined += token.as_string();
  }
  EXPECT_EQ(joined, "Hello world");
  EXPECT_TRUE(logprobs->find("token_logprobs")->items()[0].is_null());
  EXPECT_TRUE(logprobs->find("top_logprobs")->items()[0].is_null());
  EXPECT_EQ(logprobs->find("token_logprobs")->items()[1].dump(), "-1");
  EXPECT_EQ(choice_of(body).find("finish_reason")->as_string(), "length");
}

TEST(ResponseRenderer, EchoOfTokenIdsIsTheirText) {
  const auto ids = tokenizer()->encode("Hello world");
  std::string list;
  for (const int32_t id : ids) list += (list.empty() ? "" : ",") + std::to_string(id);
  const auto request = *completion(R"(,"echo":true,"n":2,"prompt":[)" + list + "]");
  ResponseRenderer whole(request, context());
  for (const int32_t choice : {0, 1}) {
    for (const auto& event : without_logprobs(events(choice))) whole.collect(0, event);
  }
  const JsonValue body = parse(*whole.body());
  for (const JsonValue& choice : body.find("choices")->items())
    EXPECT_EQ(choice.find("text")->as_string(), "Hello worldHé\n\"x\"");
  ResponseRenderer streaming(request, context());
  EXPECT_EQ(frames(streaming.begin()).size(), 2U);
}

TEST(ResponseRenderer, StopReasonIsTheClientsOwnStopOnly) {
  const auto request = *chat(R"(,"stop":"x","stop_token_ids":[9])");
  const auto reason = [&](const std::optional<std::string>& string, std::optional<int32_t> token) {
    auto finish = finish_event();
    finish.reason = protocol::FinishReason::kStop;
    finish.stop_string = string;
    finish.stop_token = token;
    ResponseRenderer renderer(request, context());
    renderer.collect(0, finish);
    return choice_of(parse(*renderer.body())).find("stop_reason")->dump();
  };
  EXPECT_EQ(reason("x", {}), "\"x\"");
  EXPECT_EQ(reason({}, 9), "9");
  EXPECT_EQ(reason({}, 2), "null") << "the model's own end";
}

// What a client gets of a stream, put together as clients do.
JsonValue assembled(const std::vector<JsonValue>& chunks, bool is_chat) {
  JsonValue text = JsonValue::string("");
  JsonValue out = JsonValue::object();
  std::string joined;
  LogprobLists lists;
  for (const JsonValue& chunk : chunks) {
    if (const JsonValue* usage = chunk.find("usage"); usage != nullptr && usage->is_object())
      out.set("usage", *usage);
    for (const JsonValue& choice : chunk.find("choices")->items()) {
      const JsonValue* part = is_chat ? choice.find("delta")->find("content") : choice.find("text");
      if (part != nullptr) joined += part->as_string();
      if (!choice.find("finish_reason")->is_null()) {
        out.set("finish_reason", *choice.find("finish_reason"));
        out.set("stop_reason", *choice.find("stop_reason"));
      }
      const JsonValue* logprobs = choice.find("logprobs");
      const auto append = [&](const char* key, JsonValue& to) {
        if (const JsonValue* from = logprobs->find(key)) {
          for (const JsonValue& item : from->items()) to.push_back(item);
        }
      };
      append("content", lists.content);
      append("tokens", lists.tokens);
      append("token_logprobs", lists.token_logprobs);
      append("top_logprobs", lists.top_logprobs);
      append("text_offset", lists.text_offset);
    }
  }
  out.set("text", JsonValue::string(joined));
  for (const auto& [key, list] :
       {std::pair{"content", &lists.content}, std::pair{"tokens", &lists.tokens},
        std::pair{"token_logprobs", &lists.token_logprobs},
        std::pair{"top_logprobs", &lists.top_logprobs},
        std::pair{"text_offset", &lists.text_offset}})
    out.set(key, *list);
  return out;
}

TEST(ResponseRenderer, TheWholeAnswerEqualsTheStreamedOne) {
  for (const bool is_chat : {true, false}) {
    for (const bool logprobs : {true, false}) {
      for (const bool echo : {true, false}) {
        if (echo && is_chat) continue;
        std::string fields = R"(,"stream":true,"stream_options":{"include_usage":true})";
        if (logprobs)
          fields += is_chat ? R"(,"logprobs":true,"top_logprobs":2)" : R"(,"logprobs":2)";
        if (echo) fields += R"(,"echo":true)";
        const auto request =
            is_chat ? *chat(fields) : *completion(R"(,"prompt":"Hello world")" + fields);
        std::vector<protocol::TokenEvent> of;
        if (echo && logprobs) of.emplace_back(prompt_event());
        for (const auto& event : logprobs ? events() : without_logprobs(events()))
          of.push_back(event);
        ResponseRenderer streaming(request, context());
        const JsonValue streamed = assembled(frames(stream(streaming, of)), is_chat);
        ResponseRenderer whole(request, context());
        for (const auto& event : of) whole.collect(0, event);
        const JsonValue body = parse(*whole.body());
        const JsonValue& choice = choice_of(body);
        const std::string text =
            (is_chat ? choice.find("message")->find("content") : choice.find("text"))->as_string();
        EXPECT_EQ(text, (echo ? "Hello world" : "") + std::string("Hé\n\"x\""));
        EXPECT_EQ(streamed.find("text")->as_string(), text);
        EXPECT_EQ(*streamed.find("finish_reason"), *choice.find("finish_reason"));
        EXPECT_EQ(*streamed.find("stop_reason"), *choice.find("stop_reason"));
        EXPECT_EQ(*streamed.find("usage"), *body.find("usage"));
        for (const char* key :
             {"content", "tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
          const JsonValue* list = choice.find("logprobs")->find(key);
          EXPECT_EQ(streamed.find(key)->dump(), list == nullptr ? "[]" : list->dump()) << key;
        }
      }
    }
  }
}

// dynamo#8430, sglang#33507: a failure must never look like a short answer.
TEST(ResponseRenderer, AWholeAnswerHoldsLogprobsUpToABoundAndAStreamAnyNumber) {
  for (const bool stream : {false, true}) {
    const auto request = *chat(std::string(R"(,"logprobs":true,"top_logprobs":20)") +
                               (stream ? R"(,"stream":true)" : ""));
    ResponseRenderer renderer(request, context());
    for (int i = 0; i < 300 && !renderer.finished(); ++i) {
      const protocol::TextEvent event{
          "x", {5}, 0, std::vector<protocol::TokenLogprobs>(100, scored(5, "x", 0))};
      if (stream) {
        (void)renderer.render(0, event);
      } else {
        renderer.collect(0, event);
      }
    }
    EXPECT_EQ(renderer.failed(), !stream);
    if (stream) continue;
    const auto body = renderer.body();
    ASSERT_FALSE(body);
    EXPECT_EQ(body.error().status, 400);
    EXPECT_EQ(body.error().code, "answer_too_large");
  }
}

TEST(ResponseRenderer, FailuresAreErrorFramesThenDone) {
  protocol::FinishEvent abort = finish_event();
  abort.reason = protocol::FinishReason::kAborted;
  for (const protocol::TokenEvent& event :
       {protocol::TokenEvent(
            protocol::ErrorEvent{{503, "worker_lost", "the decode worker died \xFF"}}),
        protocol::TokenEvent(abort)}) {
    ResponseRenderer renderer(*chat(R"(,"stream":true)"), context());
    bool done = false;
    const auto chunks = frames(renderer.begin() + renderer.render(0, event), &done);
    EXPECT_TRUE(done);
    EXPECT_TRUE(renderer.failed());
    ASSERT_EQ(chunks.size(), 2U);
    ASSERT_NE(chunks[1].find("error"), nullptr);
    EXPECT_TRUE(chunks[1].find("error")->find("message")->is_string());
    ResponseRenderer whole(*chat(""), context());
    whole.collect(0, event);
    EXPECT_EQ(whole.body().error().status, 503);
  }
  ResponseRenderer unfinished(*chat(""), context());
  unfinished.collect(0, protocol::TextEvent{"x", {}});
  EXPECT_FALSE(unfinished.body());
}

TEST(ReplyNotes, AreBoundedAndSayWhatIsLeftOut) {
  EXPECT_TRUE(reply_notes({}).is_null());
  std::vector<std::string> many(40, std::string(399, 'x') + "\xC3\xA9");
  const JsonValue told = reply_notes(many);
  ASSERT_EQ(told.items().size(), 16U);
  EXPECT_EQ(told.items()[0].as_string(), std::string(399, 'x')) << "no half of a character";
  EXPECT_EQ(told.items()[15].as_string(), "and 25 more of that kind");
}

TEST(ReplyNotes, AreInTheFirstChunkAndInTheWholeAnswer) {
  for (const char* stream_field :
       {"", R"(,"stream":true,"stream_options":{"include_usage":true})"}) {
    for (const auto& request :
         {chat(stream_field), completion(R"(,"prompt":"x")" + std::string(stream_field))}) {
      ReplyContext noted = context();
      noted.notes = reply_notes({"/a is read otherwise."});
      ResponseRenderer streamed(*request, noted);
      const auto chunks = frames(stream(streamed, without_logprobs(events())));
      for (size_t i = 0; i < chunks.size(); ++i)
        EXPECT_EQ(chunks[i].find("tandem_notes") != nullptr, i == 0) << i;
      ResponseRenderer whole(*request, noted);
      for (const auto& event : without_logprobs(events())) whole.collect(0, event);
      EXPECT_EQ(parse(*whole.body()).find("tandem_notes")->dump(), R"(["/a is read otherwise."])");
      ResponseRenderer silent(*request, context());
      for (const auto& event : without_logprobs(events())) silent.collect(0, event);
      EXPECT_EQ(parse(*silent.body()).find("tandem_notes"), nullptr);
    }
  }
}

}  // namespace
}  // namespace tandem::api
