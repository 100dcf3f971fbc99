// What a layout says beside the calls: markers that a model lacks, names, formats of answers,
// requests' grammars, errors.
#include "api/tools/call_layout_test_support.h"

namespace tandem::api {
namespace {

TEST(CallLayout, SaysWhichTokenIsMissing) {
  for (const char* parser : {"kimi_k2", "kimi_k3", "deepseek_v3", "gemma4", "harmony", "mistral"}) {
    const Model model = model_of({parser, "", "", false});
    const auto forced = reply_grammar(*chat(body_of(kSchemas[0], R"(,"tool_choice":"required")")),
                                      *model.format, Opening::kFree);
    ASSERT_FALSE(forced) << parser;
    EXPECT_EQ(forced.error().status, 400);
    EXPECT_EQ(forced.error().pointer, "/tool_choice");
    EXPECT_NE(forced.error().message.find(find_family(parser)->markers[0]), std::string::npos);
    const auto strict =
        reply_grammar(*chat(body_of(kSchemas[0], "")), *model.format, Opening::kFree);
    ASSERT_FALSE(strict) << parser;
    EXPECT_EQ(strict.error().pointer, "/tools/0/function/parameters");
  }
}

TEST(CallLayout, ANameThatIsNotReadBackIsRefusedInEveryDialect) {
  const Model model = model_of({"llama4_pythonic", "", "", true});
  const auto pointer = [&](Endpoint endpoint, const std::string& body) {
    const auto request = parse_request(endpoint, parse(body));
    EXPECT_TRUE(request) << request.error().message;
    const auto spec = reply_grammar(*request, *model.format, Opening::kFree);
    return spec ? std::string("none") : spec.error().pointer.value_or("");
  };
  EXPECT_EQ(
      pointer(
          Endpoint::kResponses,
          R"({"input":"x","tools":[{"type":"function","name":"a b"}],"tool_choice":"required"})"),
      "/tools/0/name");
  EXPECT_EQ(
      pointer(Endpoint::kResponses,
              R"({"input":"x","tools":[{"type":"custom","name":"a b"}],"tool_choice":"required"})"),
      "/tools/0/name");
  EXPECT_EQ(
      pointer(
          Endpoint::kMessages,
          R"({"max_tokens":1,"messages":[{"role":"user","content":"x"}],"tools":[{"name":"a b","input_schema":{"type":"object"}}],"tool_choice":{"type":"any"}})"),
      "/tools/0/name");
  EXPECT_EQ(
      pointer(Endpoint::kResponses, R"({"input":"x","tools":[{"type":"function","name":"a b"}]})"),
      "none");
}

TEST(CallLayout, IsThereForEveryFamily) {
  for (const Family& family : families()) EXPECT_NE(family.layout, nullptr) << family.name;
}

TEST(CallLayout, FormatsAreInsideWhatFamiliesWriteAroundAnswers) {
  const Model model = model_of({"harmony", "", "", true});
  const auto request = chat(
      R"(,"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"object","properties":{"a":{"const":1}},"required":["a"],"additionalProperties":false}}})");
  const auto spec = reply_grammar(*request, *model.format, Opening::kFree);
  ASSERT_TRUE(spec && *spec);
  const auto grammar = compiled(**spec, model);
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    Writer writer(model, grammar, seed);
    if (writer.finish())
      EXPECT_EQ(read(model, JsonValue::array(), writer).text, "{\"a\": 1}") << writer.text;
  }
}

TEST(CallLayout, AStrictToolMakesNoFormatStrict) {
  const Model model = model_of({"hermes", "", "", false});
  const auto notes = [&](const char* strict) {
    const auto request = chat(body_of(
        kSchemas[3],
        R"(,"response_format":{"type":"json_schema","json_schema":{"name":"x","strict":)" +
            std::string(strict) +
            R"(,"schema":{"oneOf":[{"type":"integer"},{"type":"integer","minimum":2}]}}})"));
    const auto spec = reply_grammar(*request, *model.format, Opening::kFree);
    EXPECT_TRUE(spec) << spec.error().message;
    const auto made = grammar::compile(**spec, model.vocabulary);
    return made ? (*made)->notes().size() : 1000;
  };
  EXPECT_EQ(notes("false"), 1U);
  EXPECT_EQ(notes("true"), 1000U) << "refused";
}

TEST(CallLayout, GrammarsOfRequestsMeanTheSameWhereverTheyStand) {
  const Model model = model_of({"glm", "", "", true});
  const auto code = [&](const char* definition, Opening opening) {
    const auto request = chat(R"(,"guided_grammar":)" + JsonValue::string(definition).dump());
    if (!request) return request.error().code;
    const auto spec = reply_grammar(*request, *model.format, opening);
    if (!spec) return spec.error().code;
    const auto made = grammar::compile(**spec, model.vocabulary);
    if (!made) EXPECT_EQ(made.error().pointer, "/guided_grammar");
    return made ? std::string("none") : made.error().code;
  };
  for (const Opening opening : {Opening::kAnswer, Opening::kReasoning, Opening::kFree}) {
    for (const char* refused : {"start: <|end|>", "start: %json {}", "root ::= <[1]>"})
      EXPECT_EQ(code(refused, opening), "unsupported_grammar") << refused;
    for (const char* taken : {"start: \"a\" b?\nb: /[^x]/", "root ::= \"a\" [b-d]*"})
      EXPECT_EQ(code(taken, opening), "none") << taken;
  }
}

TEST(CallLayout, ErrorsOfSchemasAndGrammarsSayWhere) {
  const Model model = model_of({"glm", "", "", true});
  const auto error = [&](const std::string& fields) {
    const auto request = chat(fields);
    if (!request) return request.error().pointer.value_or("");
    const auto spec = reply_grammar(*request, *model.format, Opening::kFree);
    if (!spec) return spec.error().pointer.value_or("");
    const auto made = grammar::compile(**spec, model.vocabulary);
    return made ? std::string("none") : made.error().pointer.value_or("");
  };
  EXPECT_EQ(error(body_of(R"({"type":"object","properties":{"a":{"not":{}}}})",
                          R"(,"tool_choice":"required")")),
            "/tools/0/function/parameters/properties/a/not");
  const auto custom = [](const char* definition) {
    return R"(,"tools":[{"type":"custom","custom":{"name":"x","format":{"type":"grammar","grammar":{"syntax":"lark","definition":)" +
           JsonValue::string(definition).dump() + "}}}}]";
  };
  EXPECT_EQ(error(custom("start: nothing")), "/tools/0/custom/format/grammar/definition");
  EXPECT_EQ(error(custom("start: <|end|>")), "/tools/0/custom/format/grammar/definition");
  EXPECT_EQ(error(custom("start: %json {}")), "/tools/0/custom/format/grammar/definition");
  EXPECT_EQ(error(custom("start: \"a\"")), "none");
  EXPECT_EQ(error(body_of(kSchemas[3],
                          R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":)"
                          R"("required","tools":[{"type":"function","function":{"name":"x"}}]}})")),
            "/tool_choice");
  EXPECT_EQ(
      error(body_of(kSchemas[3],
                    R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":)"
                    R"("required","tools":[{"type":"function","function":{"name":"other"}}]}})")),
      "none");
}

}  // namespace
}  // namespace tandem::api
