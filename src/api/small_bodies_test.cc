#include "api/api_test_support.h"

namespace tandem::api {
namespace {

TEST(Bodies, ModelsTokens) {
  const std::vector<ModelEntry> models{{"m", 512, ""}, {"tuned", 512, "m"}};
  EXPECT_EQ(
      models_body(models, 7),
      R"({"object":"list","data":[{"id":"m","object":"model","created":7,"owned_by":"tandem","max_model_len":512},)"
      R"({"id":"tuned","object":"model","created":7,"owned_by":"tandem","parent":"m","max_model_len":512}]})");
  EXPECT_EQ(model_body(models[0], 7),
            R"({"id":"m","object":"model","created":7,"owned_by":"tandem","max_model_len":512})");
  const std::vector<int32_t> tokens{1, 2};
  EXPECT_EQ(tokenize_body(tokens, 512), R"({"count":2,"max_model_len":512,"tokens":[1,2]})");
  EXPECT_EQ(detokenize_body("a\"b"), R"({"prompt":"a\"b"})");
}

TEST(Tokenize, TextAndMessagesRoundTrip) {
  const auto model = chat_template();
  const auto plain = parse_request(Endpoint::kTokenize, parse(R"({"prompt":"Hello world"})"));
  ASSERT_TRUE(plain);
  const auto tokens = tokenize(*plain, *tokenizer(), nullptr);
  EXPECT_EQ(tokenizer()->decode(*tokens), "Hello world");
  const auto messages = parse_request(
      Endpoint::kTokenize,
      parse(R"({"messages":[{"role":"user","content":"hi"}],"add_generation_prompt":false})"));
  EXPECT_EQ(tokenizer()->decode(*tokenize(*messages, *tokenizer(), &model), true),
            "<|turn|>user:hi<|end|>");
  EXPECT_EQ(parse_request(Endpoint::kDetokenize, parse(R"({"tokens":[4,5]})"))->prompts[0].tokens,
            (std::vector<int32_t>{4, 5}));
  EXPECT_EQ(detokenize(*parse_request(Endpoint::kDetokenize, parse(R"({"tokens":[4,5000]})")),
                       *tokenizer())
                .error()
                .pointer,
            "/tokens/1");
}

}  // namespace
}  // namespace tandem::api
