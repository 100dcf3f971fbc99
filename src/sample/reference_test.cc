// Filters, penalties and logprobs against numbers of transformers' logits processors
// (scripts/reference/sampling.py).
#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "base/json_value.h"
#include "sample/logprobs.h"
#include "sample/penalties.h"
#include "sample/sampler.h"

namespace tandem::sample {
namespace {

JsonValue golden() {
  std::ifstream in(std::string(TANDEM_SOURCE_DIR) + "/tests/golden/sampling.json");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  auto json = parse_json(text);
  EXPECT_TRUE(json) << "tests/golden/sampling.json";
  return json ? *json : JsonValue();
}

std::vector<float> floats(const JsonValue& array) {
  std::vector<float> out;
  for (const JsonValue& value : array.items())
    out.push_back(static_cast<float>(value.as_double().value_or(NAN)));
  return out;
}

float number(const JsonValue& json, std::string_view key, double fallback) {
  const JsonValue* value = json.find(key);
  return static_cast<float>(value == nullptr ? fallback : value->as_double().value_or(fallback));
}

TEST(SamplingReference, KeepsWhatTransformersKeepsWithTheSameProbabilities) {
  const JsonValue json = golden();
  int cases = 0;
  for (const JsonValue& row : json.find("rows")->items()) {
    const std::vector<float> logits = floats(*row.find("logits"));
    std::vector<int32_t> tokens;
    for (const JsonValue& token : row.find("tokens")->items())
      tokens.push_back(static_cast<int32_t>(token.as_double().value_or(-1)));
    for (const JsonValue& expected : row.find("cases")->items()) {
      SCOPED_TRACE(std::to_string(++cases));
      const Filters filters{.temperature = number(expected, "temperature", 1),
                            .top_k = static_cast<int32_t>(number(expected, "top_k", 0)),
                            .top_p = number(expected, "top_p", 1),
                            .min_p = number(expected, "min_p", 0),
                            .typical_p = number(expected, "typical_p", 1)};
      const Penalties penalties{.repetition = number(expected, "repetition_penalty", 1)};
      std::vector<float> changed = logits;
      // The tokens count as a prompt of five and an output of the others.
      TokenCounts counts(std::span(tokens).first(5), true);
      counts.set(5, std::span(tokens).subspan(5));
      if (penalties.any()) penalize(changed, counts, penalties);
      const auto kept = kept_tokens(changed, filters);
      ASSERT_TRUE(kept);
      const auto& wanted = expected.find("kept")->items();
      ASSERT_EQ(kept->size(), wanted.size());
      for (size_t i = 0; i < wanted.size(); ++i) {
        EXPECT_EQ((*kept)[i].token, static_cast<int32_t>(*wanted[i].items()[0].as_double()));
        EXPECT_NEAR((*kept)[i].logprob, *wanted[i].items()[1].as_double(), 2e-5);
      }
    }
  }
  EXPECT_EQ(cases, 42);
}

TEST(SamplingReference, LogprobsAreTheLogSoftmax) {
  const JsonValue json = golden();
  for (const JsonValue& row : json.find("rows")->items()) {
    const std::vector<float> logits = floats(*row.find("logits"));
    const std::vector<float> wanted = floats(*row.find("logprobs"));
    const auto distribution = Distribution::of(logits);
    ASSERT_TRUE(distribution);
    for (size_t i = 0; i < logits.size(); ++i)
      EXPECT_NEAR(distribution->logprob(static_cast<int32_t>(i)), wanted[i], 2e-5);
    std::vector<protocol::Chance> top;
    distribution->top(20, top);
    ASSERT_EQ(top.size(), 20U);
    std::vector<float> sorted = wanted;
    std::ranges::sort(sorted, std::greater<>());
    for (size_t i = 0; i < top.size(); ++i) EXPECT_NEAR(top[i].logprob, sorted[i], 2e-5);
  }
}

}  // namespace
}  // namespace tandem::sample
