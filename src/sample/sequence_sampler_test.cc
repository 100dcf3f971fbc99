#include "sample/sequence_sampler.h"

#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "sample/logprobs.h"

namespace tandem::sample {
namespace {

std::vector<float> random_logits(size_t size, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(size);
  for (float& logit : logits) logit = normal(engine);
  return logits;
}

protocol::ScoredToken token_of(SequenceSampler& sampler, std::vector<float> logits,
                               int64_t position) {
  Scratch scratch;
  auto sampled = sampler.sample(logits, position, scratch);
  EXPECT_TRUE(sampled);
  return sampled ? *sampled : protocol::ScoredToken{-1, 0, {}};
}

TEST(Penalties, FollowTheFormulas) {
  const std::vector<int32_t> prompt = {1, 2};
  TokenCounts counts(prompt, true);
  counts.set(2, std::vector<int32_t>{2, 3, 3});
  std::vector<float> logits = {1, 1, 1, 1, -1};
  penalize(logits, counts, {.presence = 0.25F, .frequency = 0.5F, .repetition = 2});
  EXPECT_EQ(logits[0], 1) << "never seen";
  EXPECT_EQ(logits[1], 0.5F) << "in the prompt: repetition only";
  EXPECT_EQ(logits[2], 0.5F - 0.5F - 0.25F) << "generated once";
  EXPECT_EQ(logits[3], 0.5F - 1.0F - 0.25F) << "generated twice";
  counts.set(5, std::vector<int32_t>{4});
  logits = {0, 0, 0, 0, -1};
  penalize(logits, counts, {.repetition = 2});
  EXPECT_EQ(logits[4], -2) << "a negative logit gets smaller";
}

// Preemption and roll-back hand the same positions in again.
TEST(Penalties, CountsFollowTheTokensHoweverTheyCome) {
  const std::vector<int32_t> prompt = {1, 2, 3};
  const auto penalized = [&](TokenCounts& counts) {
    std::vector<float> logits(10, 4.0F);
    penalize(logits, counts, {.presence = 1, .frequency = 1, .repetition = 2});
    return logits;
  };
  TokenCounts steps(prompt, true);
  for (int32_t i = 0; i < 5; ++i) steps.set(3 + i, std::vector<int32_t>{4 + i % 3});
  TokenCounts whole(prompt, true);
  whole.set(0, std::vector<int32_t>{1, 2, 3, 4, 5});
  whole.set(5, std::vector<int32_t>{6, 4, 5});
  EXPECT_EQ(penalized(steps), penalized(whole));
  TokenCounts rolled(prompt, true);
  rolled.set(3, std::vector<int32_t>{4, 5, 9, 9, 9});
  rolled.set(5, std::vector<int32_t>{6, 4, 5});
  EXPECT_EQ(penalized(rolled), penalized(whole));
  rolled.set(0, prompt);  // computed again from the start
  TokenCounts fresh(prompt, true);
  EXPECT_EQ(penalized(rolled), penalized(fresh));
}

TEST(SequenceSampler, AMovedSequenceSamplesTheSame) {
  protocol::SamplingParams params;
  params.presence_penalty = 0.7F;
  params.frequency_penalty = 0.3F;
  params.repetition_penalty = 1.2F;
  params.logit_bias = {{3, 1.5F}, {7, -100}};
  params.min_p = 0.02F;
  params.min_tokens = 4;
  params.logprobs = 3;
  const std::vector<int32_t> prompt = {5, 6, 5};
  const std::vector<int32_t> stops = {0};
  std::vector<int32_t> tokens = prompt;
  std::vector<protocol::ScoredToken> sampled;
  SequenceSampler stays(params, stops, 11, 2, prompt);
  stays.note(0, prompt);
  for (int i = 0; i < 40; ++i) {
    const auto logits = random_logits(30, static_cast<uint32_t>(i));
    const auto position = static_cast<int64_t>(tokens.size());
    sampled.push_back(token_of(stays, logits, position));
    EXPECT_NE(sampled.back().token, 7);
    if (i < 4) EXPECT_NE(sampled.back().token, 0) << "no stop token before min_tokens";
    SequenceSampler moved(params, stops, 11, 2, prompt);
    moved.note(0, tokens);
    EXPECT_EQ(token_of(moved, logits, position), sampled.back());
    tokens.push_back(sampled.back().token);
    stays.note(position, std::span(tokens).last(1));
  }
}

TEST(SequenceSampler, BiasBringsATokenOutOrForbidsIt) {
  protocol::SamplingParams params;
  params.temperature = 0;
  params.logit_bias = {{5, 100}};
  SequenceSampler for_five(params, {}, 1, 0, {});
  EXPECT_EQ(token_of(for_five, random_logits(30, 1), 0).token, 5);
  const auto logits = random_logits(30, 1);
  SequenceSampler greedy;
  const int32_t first = token_of(greedy, logits, 0).token;
  params.logit_bias = {{first, -100}};
  SequenceSampler without(params, {}, 1, 0, {});
  EXPECT_NE(token_of(without, logits, 0).token, first);
}

// The numbers are the model's own, whatever was done to the logits afterwards.
TEST(SequenceSampler, LogprobsIgnoreBiasPenaltiesAndFilters) {
  protocol::SamplingParams params;
  params.temperature = 0.7F;
  params.top_k = 10;
  params.logprobs = 4;
  params.logit_bias = {{2, 50}};
  params.repetition_penalty = 1.5F;
  const std::vector<int32_t> prompt = {1, 4, 9};
  const auto logits = random_logits(50, 8);
  SequenceSampler sampler(params, {}, 1, 0, prompt);
  const auto sampled = token_of(sampler, logits, 3);
  EXPECT_EQ(sampled.token, 2);
  const auto own = Distribution::of(logits);
  ASSERT_TRUE(own);
  EXPECT_EQ(sampled.logprob, own->logprob(2));
  std::vector<protocol::Chance> top;
  own->top(4, top);
  EXPECT_EQ(sampled.top, top);
}

// vllm#10234: minus infinity must not reach a client.
TEST(SequenceSampler, ForbiddenTokensAreNotAmongTheLikeliest) {
  std::vector<float> logits(20, -std::numeric_limits<float>::infinity());
  logits[3] = 1;
  logits[4] = 2;
  logits[5] = -3e38F;
  protocol::SamplingParams params;
  params.logprobs = 20;
  SequenceSampler sampler(params, {}, 1, 0, {});
  const auto sampled = token_of(sampler, logits, 0);
  ASSERT_EQ(sampled.top.size(), 3U);
  EXPECT_EQ(sampled.top[0].token, 4);
  for (const auto& chance : sampled.top) EXPECT_TRUE(std::isfinite(chance.logprob));
}

}  // namespace
}  // namespace tandem::sample
