// Perplexity and divergence against values worked out by hand.
#include <cmath>
#include <numeric>

#include "eval/divergence.h"
#include "eval/eval_test_support.h"
#include "eval/perplexity.h"
#include "eval/windows.h"
#include "numerics/error.h"

namespace tandem::eval {
namespace {

using PerplexityTest = EvalTest;
using DivergenceTest = EvalTest;

double number(const JsonValue& json, std::string_view key) {
  const JsonValue* value = json.find(key);
  return value == nullptr ? std::nan("") : value->as_double().value_or(std::nan(""));
}

TEST(PlanWindows, ScoreEveryTokenOnceExceptTheFirstOfEach) {
  const auto apart = plan_windows(10, 4, 0, false);
  ASSERT_EQ(apart.size(), 3U);
  EXPECT_EQ(apart[1].begin, 4U);
  EXPECT_EQ(apart[1].first_scored, 5U);
  EXPECT_EQ(apart[2].end, 10U);
  // A last window of one token predicts nothing.
  EXPECT_EQ(plan_windows(9, 4, 0, false).size(), 2U);
}

TEST(PlanWindows, OverlapOrABosScoreEveryToken) {
  for (const bool bos : {false, true}) {
    for (size_t tokens = 2; tokens < 40; ++tokens) {
      for (int32_t stride = 1; stride <= 7; ++stride) {
        size_t next = bos ? 0 : 1;
        for (const Window& window : plan_windows(tokens, 8, stride, bos)) {
          EXPECT_EQ(window.first_scored, next);
          EXPECT_LE(window.end - window.begin, bos ? 7U : 8U);
          next = window.end;
        }
        EXPECT_EQ(next, tokens);
      }
    }
  }
}

TEST_F(PerplexityTest, IsTheExponentialOfTheMeanLoss) {
  const std::string text = "the quick brown fox jumps over the lazy dog; once more, and again.";
  for (const int32_t stride : {0, 5}) {
    LoadedModel loaded = bigram_model();
    PerplexityOptions options;
    options.text = {
        .path = write("t", text), .window = 16, .stride = stride, .limit = 0, .threads = 3};
    const auto summary = run_perplexity(loaded, options);
    ASSERT_TRUE(summary) << summary.error().message;
    double sum = 0;
    int count = 0;
    for (size_t i = 1; i < text.size(); ++i) {
      if (stride == 0 && i % 16 == 0) continue;
      const auto ids = loaded.tokenizer->encode(text.substr(i - 1, 2));
      sum -= bigram_logprob(ids[0], ids[1], loaded.tokenizer->vocab_size());
      ++count;
    }
    EXPECT_EQ(number(*summary, "positions"), count);
    EXPECT_NEAR(number(*summary, "mean_nll"), sum / count, 1e-6);
    EXPECT_EQ(number(*summary, "perplexity"), std::exp(number(*summary, "mean_nll")));
  }
}

TEST_F(PerplexityTest, ARunThatGoesOnGivesTheSame) {
  LoadedModel loaded = bigram_model();
  PerplexityOptions options;
  options.text = {.path = write("t", std::string(50, 'a') + std::string(51, 'b')), .window = 16};
  const auto whole = run_perplexity(loaded, options);
  options.journal = path("j");
  ASSERT_TRUE(run_perplexity(loaded, options));
  const std::string lines = read("j");
  write("j", lines.substr(0, lines.size() / 2));
  const int64_t before = bigram(loaded).rows;
  const auto resumed = run_perplexity(loaded, options);
  ASSERT_TRUE(resumed) << resumed.error().message;
  EXPECT_EQ(resumed->dump(), whole->dump());
  EXPECT_LT(bigram(loaded).rows - before, 90);
  EXPECT_EQ(read("j"), lines);
}

TEST_F(PerplexityTest, WhatCannotBeScoredIsSaid) {
  LoadedModel loaded = bigram_model();
  EXPECT_FALSE(run_perplexity(loaded, {{.path = path("absent")}, ""}));
  EXPECT_FALSE(run_perplexity(loaded, {{.path = write("t", "x"), .window = 16}, ""}));
  EXPECT_FALSE(run_perplexity(loaded, {{.path = write("t", "xyz"), .window = 257}, ""}));
  EXPECT_FALSE(run_perplexity(loaded, {{.path = write("t", "xyz"), .window = 8, .stride = 9}, ""}));
}

std::vector<float> logits_of(std::initializer_list<double> probabilities) {
  std::vector<float> out;
  for (const double p : probabilities) out.push_back(static_cast<float>(std::log(p) + 3));
  return out;
}

TEST(ComparePosition, HasTheDivergenceOfTheFormula) {
  const auto p = logits_of({0.5, 0.25, 0.125, 0.125});
  const auto q = logits_of({0.25, 0.25, 0.25, 0.25});
  const double kl = 0.5 * std::log(2.0) + 2 * 0.125 * std::log(0.5);
  const auto all = compare_position(reference_position(p, 0, 0), q);
  EXPECT_NEAR(all.kl, kl, 1e-6);
  EXPECT_NEAR(all.kl, numerics::kl_divergence(p, q), 1e-6);
  EXPECT_TRUE(all.same_top);  // the lowest id wins q's tie
  EXPECT_NEAR(all.max_probability, 0.25, 1e-6);
  // The two unlikely tokens taken together, 0.25 against 0.5: less than the whole.
  const auto two = compare_position(reference_position(p, 0, 2), q);
  EXPECT_NEAR(two.kl, 0.5 * std::log(2.0) + 0.25 * std::log(0.5), 1e-6);
  EXPECT_LE(two.kl, all.kl + 1e-9);
}

TEST(ReferenceFile, PositionsComeBackWithinTheStatedError) {
  std::vector<float> logits(300);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = 9 * std::sin(static_cast<float>(i * i));
  const double norm = numerics::log_sum_exp(logits);
  for (const int32_t top : {0, 1, 40, 300, 999}) {
    const ReferencePosition one[] = {reference_position(logits, 7, top)};
    const auto back = decode_positions(encode_positions(one, 300), 300, 1);
    ASSERT_TRUE(back) << back.error().message;
    const ReferencePosition& position = back->front();
    EXPECT_EQ(position.tokens.size(), top == 0 ? 300U : std::min<size_t>(top, 300));
    EXPECT_EQ(position.likeliest, static_cast<int32_t>(numerics::argmax(logits)));
    EXPECT_NEAR(position.target_logprob, logits[7] - norm, 1e-6);
    double sum = std::exp(position.rest_logprob);
    for (size_t i = 0; i < position.tokens.size(); ++i) {
      EXPECT_NEAR(position.logprobs[i], logits[static_cast<size_t>(position.tokens[i])] - norm,
                  1e-6);
      sum += std::exp(position.logprobs[i]);
    }
    EXPECT_NEAR(sum, 1, 1e-5);
  }
}

TEST_F(DivergenceTest, AModelDoesNotDifferFromItselfAndDoesFromAnother) {
  const std::string text = write("t", "to be or not to be, that is the question here and now");
  SaveReferenceOptions save{.text = {.path = text, .window = 16}, .file = path("r"), .top = 0};
  LoadedModel loaded = bigram_model();
  ASSERT_TRUE(save_reference(loaded, save));
  const auto same = run_divergence(loaded, {.text = text, .threads = 2, .file = path("r")});
  ASSERT_TRUE(same) << same.error().message;
  EXPECT_LT(number(*same, "mean_kl"), 1e-6);
  EXPECT_EQ(number(*same, "top1_agreement"), 1);
  EXPECT_NEAR(number(*same, "perplexity"), number(*same, "reference_perplexity"), 1e-3);
  LoadedModel sharper = bigram_model(2);
  DivergenceOptions compare{.text = text, .threads = 2, .file = path("r"), .journal = path("j")};
  const auto other = run_divergence(sharper, compare);
  ASSERT_TRUE(other);
  EXPECT_GT(number(*other, "mean_kl"), 0.1);
  EXPECT_GE(number(*other->find("kl_percentiles"), "100"), number(*other, "mean_kl"));
  // Resumed from half of its items, the same.
  const std::string lines = read("j");
  write("j", lines.substr(0, lines.size() / 2));
  EXPECT_EQ(run_divergence(sharper, compare)->dump(), other->dump());
}

TEST_F(DivergenceTest, ATornReferenceIsFinishedAndADamagedOneRefused) {
  const std::string text = write("t", std::string(70, 'x') + std::string(30, 'y'));
  SaveReferenceOptions save{.text = {.path = text, .window = 16}, .file = path("r"), .top = 8};
  LoadedModel loaded = bigram_model();
  ASSERT_TRUE(save_reference(loaded, save));
  const std::string whole = read("r");
  for (const size_t cut : {whole.size() - 1, whole.size() / 2}) {
    write("r", whole.substr(0, cut));
    EXPECT_FALSE(run_divergence(loaded, {.text = text, .file = path("r")}));
    ASSERT_TRUE(save_reference(loaded, save));
    EXPECT_EQ(read("r"), whole);
  }
  std::string damaged = whole;
  damaged[whole.size() - 40] ^= 1;
  write("r", damaged);
  EXPECT_FALSE(run_divergence(loaded, {.text = text, .file = path("r")}));
  write("r", whole);
  EXPECT_FALSE(
      run_divergence(loaded, {.text = write("u", std::string(100, 'z')), .file = path("r")}));
  save.top = 9;
  EXPECT_FALSE(save_reference(loaded, save));
}

}  // namespace
}  // namespace tandem::eval
