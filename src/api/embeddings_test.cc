#include "api/embeddings.h"

#include <cstring>
#include <limits>

#include "api/api_test_support.h"

namespace tandem::api {
namespace {

ApiRequest asked(const std::string& more = "") {
  return *parse_request(Endpoint::kEmbeddings, parse(R"({"input":["a","b"])" + more + "}"));
}

TEST(Embeddings, AreListsOfNumbersInTheOrderOfTheInputs) {
  const auto body = embeddings_body(asked(), "m", {{0.5F, -1e-5F}, {0.1F, 2}}, 7);
  EXPECT_EQ(*body,
            R"({"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.5,-1e-05]},)"
            R"({"object":"embedding","index":1,"embedding":[0.1,2]}],"model":"m",)"
            R"("usage":{"prompt_tokens":7,"total_tokens":7}})");
  EXPECT_TRUE(parse_json(*body));
}

// ollama#6934: the SDKs ask for base64 and read little-endian float32.
TEST(Embeddings, Base64HoldsLittleEndianFloats) {
  const auto body = parse(*embeddings_body(asked(R"(,"encoding_format":"base64")"), "m",
                                           {{1.0F, -2.0F}, {0.0F, 0.0F}}, 7));
  EXPECT_EQ(body.find("data")->items()[0].find("embedding")->as_string(), "AACAPwAAAMA=");
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foo"), "Zm9v");
  EXPECT_EQ(base64("foob"), "Zm9vYg==");
}

TEST(Embeddings, FewerDimensionsAreUnitLengthAgain) {
  const auto body =
      parse(*embeddings_body(asked(R"(,"dimensions":2)"), "m", {{3, 4, 12}, {0, 0, 1}}, 7));
  EXPECT_EQ(body.find("data")->items()[0].find("embedding")->dump(), "[0.6,0.8]");
  EXPECT_EQ(body.find("data")->items()[1].find("embedding")->dump(), "[0,0]");
  const auto wide = embeddings_body(asked(R"(,"dimensions":4)"), "m", {{3, 4, 12}, {0, 0, 1}}, 7);
  EXPECT_EQ(wide.error().status, 400);
  EXPECT_EQ(wide.error().pointer, "/dimensions");
}

// vllm#19661: never JSON that is none.
TEST(Embeddings, NumbersThatAreNoneAreAnError) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto body = embeddings_body(asked(), "m", {{0, nan}, {0, 1}}, 7);
  EXPECT_EQ(body.error().status, 500);
  EXPECT_EQ(body.error().code, "embedding_not_finite");
}

}  // namespace
}  // namespace tandem::api
