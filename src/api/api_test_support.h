// Bodies, a tokenizer and a template for the tests of this folder.
#pragma once

#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "api/openai.h"

namespace tandem::api {

inline JsonValue parse(std::string_view text) {
  Result<JsonValue> json = parse_json(text);
  EXPECT_TRUE(json) << text;
  return json ? *json : JsonValue();
}

inline Result<ApiRequest> chat(const std::string& fields, bool trust = false) {
  return parse_request(Endpoint::kChatCompletions,
                       parse(R"({"messages":[{"role":"user","content":"hi"}])" + fields + "}"),
                       trust);
}
inline Result<ApiRequest> completion(const std::string& fields, bool trust = false) {
  return parse_request(Endpoint::kCompletions, parse("{\"model\":\"m\"" + fields + "}"), trust);
}

inline std::shared_ptr<const text::Tokenizer> tokenizer() {
  static const auto kMade = [] {
    std::ifstream file(std::string(TANDEM_SOURCE_DIR) + "/src/text/testdata/small_bpe_smollm.json");
    std::stringstream content;
    content << file.rdbuf();
    return *text::Tokenizer::create(*text::tokenizer_spec_from_json(parse(content.str())));
  }();
  return kMade;
}

// Shows roles, contents, the first call's argument `a` and the template variable `mood`.
inline text::ChatTemplate chat_template() {
  return std::move(*text::ChatTemplate::parse(
      "{% for m in messages %}<|turn|>{{ m.role }}:{{ m.content }}{% if m.tool_calls %}"
      "{{ m.tool_calls[0].function.arguments.a }}{% endif %}<|end|>{% endfor %}"
      "{% if add_generation_prompt %}<|turn|>{% endif %}{{ mood }}"));
}

}  // namespace tandem::api
