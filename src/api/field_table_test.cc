// Every row of every table, probed by values made from the row itself: its bounds, just beyond
// them, and every other kind of value. openai_request_test.cc says by hand what the tables should
// be.
#include <limits>

#include "api/api_test_support.h"
#include "api/openapi.h"
#include "api/request_tables.h"

namespace tandem::api {
namespace {

struct Bad {
  JsonValue value;
  std::string code;
};
struct Probes {
  std::vector<JsonValue> good = {JsonValue()};  // null is always as good as absent
  std::vector<Bad> bad;
};

JsonValue of_kind(char kind) {
  switch (kind) {
    case 'b':
      return JsonValue::boolean(true);
    case 'n':
      return JsonValue::integer(1);
    case 's':
      return JsonValue::string("x");
    case 'a':
      return JsonValue::array({JsonValue::object()});
    default:
      return parse(R"({"a":[[{}]]})");
  }
}

void other_kinds(Probes& probes, std::string_view kinds) {
  for (const char kind : std::string_view("bnsao")) {
    if (kinds.find(kind) == std::string_view::npos)
      probes.bad.push_back({of_kind(kind), "invalid_type"});
  }
}

struct Prober {
  Probes operator()(const Flag&) const {
    Probes probes;
    probes.good.push_back(JsonValue::boolean(false));
    probes.good.push_back(JsonValue::boolean(true));
    other_kinds(probes, "b");
    return probes;
  }
  Probes operator()(const Integer& rule) const {
    Probes probes;
    probes.good.push_back(JsonValue::integer(rule.low));
    probes.good.push_back(JsonValue::integer(rule.high));
    if (rule.low > std::numeric_limits<int64_t>::min())
      probes.bad.push_back({JsonValue::integer(rule.low - 1), "integer_below_min_value"});
    if (rule.high < std::numeric_limits<int64_t>::max())
      probes.bad.push_back({JsonValue::integer(rule.high + 1), "integer_above_max_value"});
    probes.bad.push_back({JsonValue::number_text("1e300"), "integer_above_max_value"});
    probes.bad.push_back({JsonValue::real(0.5), "invalid_type"});
    other_kinds(probes, "n");
    return probes;
  }
  Probes operator()(const Real& rule) const {
    Probes probes;
    if (!rule.above) probes.good.push_back(JsonValue::real(rule.low));
    probes.good.push_back(JsonValue::real((rule.low + rule.high) / 2));
    probes.good.push_back(JsonValue::real(rule.high));
    if (rule.above) probes.bad.push_back({JsonValue::real(rule.low), "decimal_below_min_value"});
    probes.bad.push_back({JsonValue::real(rule.low - 0.001), "decimal_below_min_value"});
    probes.bad.push_back({JsonValue::real(rule.high + 0.001), "decimal_above_max_value"});
    other_kinds(probes, "n");
    return probes;
  }
  Probes operator()(const Text& rule) const {
    Probes probes;
    probes.good.push_back(JsonValue::string(std::string(rule.limit, 'a')));
    probes.bad.push_back(
        {JsonValue::string(std::string(rule.limit + 1, 'a')), "string_above_max_length"});
    other_kinds(probes, "s");
    return probes;
  }
  Probes operator()(const Words& rule) const {
    Probes probes;
    for (const std::string_view word : rule.words)
      probes.good.push_back(JsonValue::string(std::string(word)));
    probes.bad.push_back({JsonValue::string("no such word"), "invalid_value"});
    other_kinds(probes, "s");
    return probes;
  }
  Probes operator()(const Group&) const {
    Probes probes;
    probes.good.push_back(parse(R"({"unknown":[1]})"));
    probes.bad.push_back({JsonValue::array(), "invalid_type"});
    other_kinds(probes, "o");
    return probes;
  }
  Probes operator()(const Special&) const {
    Probes probes;
    probes.bad.push_back({JsonValue::boolean(true), ""});
    probes.bad.push_back({JsonValue::array({JsonValue::array({JsonValue::boolean(true)})}), ""});
    return probes;
  }
  Probes operator()(const Unused& rule) const {
    Probes probes;
    for (const char kind : std::string_view(rule.kinds)) probes.good.push_back(of_kind(kind));
    other_kinds(probes, rule.kinds);
    return probes;
  }
  Probes operator()(const Refused& rule) const {
    Probes probes;
    const JsonValue neutral = parse(rule.neutral);
    for (const JsonValue& value : neutral.items()) probes.good.push_back(value);
    probes.bad.push_back({parse(R"({"a":[[{}]]})"), "unsupported_parameter"});
    probes.bad.push_back({JsonValue::string("anything"), "unsupported_parameter"});
    return probes;
  }
};

struct Case {
  Endpoint endpoint;
  const char* minimal;
};
constexpr Case kCases[] = {
    {Endpoint::kChatCompletions, R"({"messages":[{"role":"user","content":"x"}]})"},
    {Endpoint::kCompletions, R"({"prompt":"x"})"},
    {Endpoint::kEmbeddings, R"({"input":"x"})"},
    {Endpoint::kTokenize, R"({"prompt":"x"})"},
    {Endpoint::kDetokenize, R"({"tokens":[1]})"},
};

// A body in which `field` may be given: some need another.
JsonValue body_for(const Case& row, const std::string& field) {
  JsonValue body = parse(row.minimal);
  if (field == "stream_options") body.set("stream", JsonValue::boolean(true));
  if (field == "top_logprobs") body.set("logprobs", JsonValue::boolean(true));
  return body;
}

void probe_good(const Case& row, const JsonValue& body, const Field& field,
                const std::string& what) {
  const auto request = parse_request(row.endpoint, body);
  const bool either =
      row.endpoint == Endpoint::kTokenize && std::string_view(field.name) == "prompt";
  if ((field.required || either) && body.find(field.name)->is_null()) {
    ASSERT_FALSE(request) << what;
    EXPECT_EQ(request.error().code, "missing_required_parameter") << what;
    return;
  }
  EXPECT_TRUE(request) << what << ": " << (request ? "" : request.error().message);
}

void probe_bad(const Case& row, const JsonValue& body, const std::string& pointer, const Bad& bad,
               const std::string& what) {
  const auto request = parse_request(row.endpoint, body);
  ASSERT_FALSE(request) << what;
  EXPECT_EQ(request.error().status, 400) << what;
  EXPECT_TRUE(request.error().pointer.value_or("").starts_with(pointer))
      << what << " at " << request.error().pointer.value_or("nowhere");
  if (!bad.code.empty()) {
    EXPECT_EQ(request.error().code, bad.code) << what << ": " << request.error().message;
  }
}

TEST(FieldTable, EveryRowTakesWhatItSaysAndNothingElse) {
  size_t probed = 0;
  for (const Case& row : kCases) {
    for (const std::span<const Field> table : request_tables(row.endpoint)) {
      for (const Field& field : table) {
        const Probes probes = std::visit(Prober{}, field.rule);
        const auto with = [&](const JsonValue& value) {
          JsonValue body = body_for(row, field.name);
          body.set(field.name, value);
          return body;
        };
        const std::string what = std::string(row.minimal) + " with " + field.name + " ";
        for (const JsonValue& value : probes.good)
          probe_good(row, with(value), field, what + value.dump().substr(0, 80));
        for (const Bad& bad : probes.bad) {
          probe_bad(row, with(bad.value), std::string("/") + field.name, bad,
                    what + bad.value.dump().substr(0, 80));
        }
        probed += probes.good.size() + probes.bad.size();
      }
    }
  }
  EXPECT_GT(probed, 800U) << "rows are missing";
}

TEST(FieldTable, NestedRowsAreReadWithTheirPointers) {
  const Field* options = nullptr;
  for (const std::span<const Field> table : request_tables(Endpoint::kChatCompletions)) {
    for (const Field& field : table) {
      if (std::string_view(field.name) == "stream_options") options = &field;
    }
  }
  ASSERT_NE(options, nullptr);
  for (const Field& inner : std::get<Group>(options->rule).fields) {
    for (const Bad& bad : std::visit(Prober{}, inner.rule).bad) {
      JsonValue body = body_for(kCases[0], "stream_options");
      body.set("stream_options", JsonValue::object({{inner.name, bad.value}}));
      probe_bad(kCases[0], body, std::string("/stream_options/") + inner.name, bad, inner.name);
    }
  }
}

TEST(FieldTable, NoRowIsGivenTwice) {
  for (const Case& row : kCases) {
    std::vector<std::string> names;
    for (const std::span<const Field> table : request_tables(row.endpoint)) {
      for (const Field& field : table) names.emplace_back(field.name);
    }
    std::sort(names.begin(), names.end());
    EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end()) << row.minimal;
  }
}

TEST(OpenApi, SaysWhatTheTablesSay) {
  const JsonValue document = openapi_document();
  EXPECT_EQ(parse(document.dump()), document);
  const JsonValue* schemas = document.find("components")->find("schemas");
  const JsonValue* chat = schemas->find("ChatRequest")->find("properties");
  EXPECT_EQ(chat->find("temperature")->find("maximum")->dump(), "2");
  EXPECT_EQ(chat->find("temperature")->find("type")->dump(), R"(["number","null"])");
  EXPECT_EQ(chat->find("typical_p")->find("exclusiveMinimum")->dump(), "0");
  EXPECT_EQ(chat->find("n")->find("maximum")->dump(), "128");
  EXPECT_EQ(chat->find("tool_choice")->find("anyOf")->items()[0].find("enum")->dump(),
            R"(["auto","none","required",null])");
  EXPECT_EQ(chat->find("logprobs")->find("type")->dump(), R"(["boolean","null"])");
  EXPECT_EQ(chat->find("stream_options")
                ->find("properties")
                ->find("include_usage")
                ->find("default")
                ->dump(),
            "false");
  EXPECT_EQ(schemas->find("ChatRequest")->find("required")->dump(), R"(["messages"])");
  const JsonValue* completion = schemas->find("CompletionRequest")->find("properties");
  EXPECT_EQ(completion->find("logprobs")->find("type")->dump(), R"(["integer","null"])");
  EXPECT_EQ(completion->find("max_tokens")->find("default")->dump(), "16");
  EXPECT_EQ(schemas->find("EmbeddingRequest")
                ->find("properties")
                ->find("encoding_format")
                ->find("enum")
                ->dump(),
            R"(["float","base64",null])");
  for (const auto& [name, schema] : chat->members())
    EXPECT_FALSE(schema.find("description")->as_string().empty()) << name;
}

// A reference to a schema that is missing would make the document useless.
void check_references(const JsonValue& json, const JsonValue& schemas) {
  if (const JsonValue* to = json.find("$ref")) {
    const std::string name = to->as_string().substr(std::string("#/components/schemas/").size());
    EXPECT_NE(schemas.find(name), nullptr) << to->as_string();
  }
  for (const JsonValue& item : json.items()) check_references(item, schemas);
  for (const auto& [key, value] : json.members()) check_references(value, schemas);
}

TEST(OpenApi, EveryReferenceLeadsSomewhere) {
  const JsonValue document = openapi_document();
  check_references(document, *document.find("components")->find("schemas"));
}

}  // namespace
}  // namespace tandem::api
