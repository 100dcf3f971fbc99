#include "sample/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace tandem::sample {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

int32_t token_of(const std::vector<float>& logits, const Filters& filters, uint64_t seed = 1,
                 int64_t position = 0) {
  Scratch scratch;
  const auto sampled = sample(logits, filters, seed, 0, position, scratch);
  EXPECT_TRUE(sampled);
  return sampled ? *sampled : -1;
}

std::vector<float> random_logits(size_t size, uint32_t seed, float spread) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(size);
  for (float& logit : logits) logit = normal(engine);
  return logits;
}

// Frequencies over `draws` positions.
std::vector<double> frequencies(const std::vector<float>& logits, const Filters& filters,
                                int draws) {
  std::vector<double> counts(logits.size());
  for (int i = 0; i < draws; ++i)
    counts[static_cast<size_t>(token_of(logits, filters, 42, i))] += 1;
  return counts;
}

std::vector<double> softmax(const std::vector<float>& logits, double temperature) {
  std::vector<double> p;
  p.reserve(logits.size());
  for (const float logit : logits) p.push_back(std::exp(static_cast<double>(logit) / temperature));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

// What top_k, then top_p should leave, the slow way.
std::vector<double> filtered(std::vector<double> p, int32_t top_k, double top_p) {
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return p[a] != p[b] ? p[a] > p[b] : a < b; });
  size_t kept = top_k > 0 ? std::min<size_t>(static_cast<size_t>(top_k), p.size()) : p.size();
  double total = 0;
  for (size_t i = 0; i < kept; ++i) total += p[order[i]];
  double sum = 0;
  size_t nucleus = 0;
  while (nucleus < kept && sum < top_p * total - 1e-12) sum += p[order[nucleus++]];
  std::vector<double> out(p.size());
  for (size_t i = 0; i < std::max<size_t>(nucleus, 1); ++i) out[order[i]] = p[order[i]] / sum;
  return out;
}

// Chi-square statistic, with its degrees of freedom; counts where nothing is expected fail
// outright.
void expect_distribution(const std::vector<double>& counts, const std::vector<double>& expected,
                         int draws) {
  double statistic = 0;
  int cells = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (expected[i] == 0) {
      EXPECT_EQ(counts[i], 0) << "token " << i << " was filtered out";
      continue;
    }
    const double mean = expected[i] * draws;
    if (mean < 5) continue;
    statistic += (counts[i] - mean) * (counts[i] - mean) / mean;
    ++cells;
  }
  const double freedom = std::max(cells - 1, 1);
  // Mean plus five standard deviations of a chi-square distribution.
  EXPECT_LT(statistic, freedom + 5 * std::sqrt(2 * freedom) + 5);
}

// The vectors published with the algorithm (Random123, kat_vectors).
TEST(Philox, EqualsThePublishedVectors) {
  const auto expect = [](const Philox& got, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    EXPECT_EQ(got.word[0], a);
    EXPECT_EQ(got.word[1], b);
    EXPECT_EQ(got.word[2], c);
    EXPECT_EQ(got.word[3], d);
  };
  expect(philox4x32_10({0, 0, 0, 0}, {0, 0}), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
  expect(philox4x32_10({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U}), 0x408f276d, 0x41c83b0e, 0xa20bc7c6,
         0x6d5451fd);
  expect(philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
         0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1);
}

TEST(Sampler, UniformNumbersAreUniformAndIndependentOfOtherRequests) {
  double sum = 0;
  double square = 0;
  double neighbours = 0;
  constexpr int kDraws = 100000;
  double last = 0.5;
  for (int i = 0; i < kDraws; ++i) {
    const double u = uniform(7, 0, i);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
    square += u * u;
    neighbours += (u - 0.5) * (last - 0.5);
    last = u;
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 0.005);
  EXPECT_NEAR(square / kDraws, 1.0 / 3, 0.005);
  EXPECT_NEAR(neighbours / kDraws, 0, 0.002);
  EXPECT_NE(uniform(7, 0, 3), uniform(8, 0, 3));
  EXPECT_NE(uniform(7, 0, 3), uniform(7, 1, 3));
  EXPECT_NE(uniform(7, 0, 3), uniform(uint64_t{7} << 32, 0, 3));
  EXPECT_NE(uniform(7, 0, 3), uniform(7, 0, 3, 1));
  EXPECT_NE(uniform(7, 0, 3), uniform(7, 0, int64_t{3} << 32));
}

TEST(Sampler, GreedyTakesTheLowestIdOfEqualOnes) {
  EXPECT_EQ(token_of({1, 5, 3, 5}, {.temperature = 0}), 1);
  EXPECT_EQ(token_of({1, 5, 3, 5}, {.temperature = 1, .top_k = 1}), 1);
  EXPECT_EQ(token_of({-kInfinity, -7}, {.temperature = 0}), 1);
  EXPECT_EQ(token_of({2}, {.temperature = 0.7F}), 0);
}

TEST(Sampler, SameSeedAndPositionGiveTheSameToken) {
  const auto logits = random_logits(1000, 3, 2);
  const Filters filters{.temperature = 0.9F, .top_k = 50, .top_p = 0.95F};
  std::vector<int32_t> first;
  first.reserve(200);
  for (int i = 0; i < 200; ++i) first.push_back(token_of(logits, filters, 99, i));
  for (int i = 199; i >= 0; --i)
    EXPECT_EQ(token_of(logits, filters, 99, i), first[static_cast<size_t>(i)]);
  std::vector<int32_t> other;
  other.reserve(200);
  for (int i = 0; i < 200; ++i) other.push_back(token_of(logits, filters, 100, i));
  EXPECT_NE(first, other);
}

TEST(Sampler, DrawsFollowTheFilteredDistribution) {
  constexpr int kDraws = 60000;
  for (const float spread : {0.5F, 2.0F}) {
    const auto logits = random_logits(40, 11, spread);
    for (const float temperature : {0.5F, 1.0F, 1.7F}) {
      for (const int32_t top_k : {0, 5, 40}) {
        for (const float top_p : {1.0F, 0.8F, 0.3F, 0.01F}) {
          const Filters filters{.temperature = temperature, .top_k = top_k, .top_p = top_p};
          const auto expected = filtered(softmax(logits, static_cast<double>(temperature)), top_k,
                                         static_cast<double>(top_p));
          SCOPED_TRACE(testing::Message() << temperature << " " << top_k << " " << top_p);
          expect_distribution(frequencies(logits, filters, kDraws), expected, kDraws);
        }
      }
    }
  }
}

// Flat and peaked distributions over a real vocabulary's size take the windows' fallbacks.
TEST(Sampler, FiltersHoldOverLargeVocabularies) {
  const std::vector<float> flat(150000, 1.25F);
  const Filters nucleus{.temperature = 1, .top_p = 0.5F};
  for (int i = 0; i < 20; ++i) EXPECT_LT(token_of(flat, nucleus, 5, i), 75001);
  const Filters top{.temperature = 1, .top_k = 10};
  for (int i = 0; i < 20; ++i) EXPECT_LT(token_of(flat, top, 5, i), 10);

  auto logits = random_logits(49152, 17, 3);
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  const std::vector<size_t> best(order.begin(), order.begin() + 20);
  for (int i = 0; i < 200; ++i) {
    const auto token = static_cast<size_t>(token_of(logits, {.temperature = 2, .top_k = 20}, 6, i));
    EXPECT_NE(std::find(best.begin(), best.end(), token), best.end());
  }
  logits[order[0]] = 1e4F;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(token_of(logits, {.temperature = 1, .top_k = 20, .top_p = 0.9F}, 6, i),
              static_cast<int32_t>(order[0]));
  }
}

TEST(Sampler, ForbiddenTokensAreNeverDrawn) {
  std::vector<float> logits(100, -kInfinity);
  logits[17] = -3;
  logits[63] = -3;
  for (const Filters& filters :
       {Filters{}, Filters{.top_p = 0.99F}, Filters{.top_k = 50}, Filters{.min_p = 0.01F},
        Filters{.typical_p = 0.9F}, Filters{.temperature = 5, .top_k = 3, .top_p = 0.9F}}) {
    for (int i = 0; i < 200; ++i) {
      const int32_t token = token_of(logits, filters, 8, i);
      EXPECT_TRUE(token == 17 || token == 63) << token;
    }
  }
}

// vllm#13035, #22881: NaN logits must fail the request, not become token 0.
TEST(Sampler, LogitsThatAreNotNumbersAreAnError) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& logits : std::vector<std::vector<float>>{
           {}, {nan}, {1, nan, 2}, {1, kInfinity}, {-kInfinity, -kInfinity}}) {
    for (const float temperature : {0.0F, 1.0F}) {
      Scratch scratch;
      const auto sampled = sample(logits, {.temperature = temperature}, 1, 0, 0, scratch);
      ASSERT_FALSE(sampled);
      EXPECT_EQ(sampled.error().status, 500);
      EXPECT_EQ(sampled.error().code, "bad_logits");
    }
  }
}

// A flat distribution has every token at the filters' edge.
TEST(Sampler, EveryFilterHoldsOverAFlatVocabulary) {
  const std::vector<float> flat(50000, 0.5F);
  const auto count = [&](const Filters& filters) {
    const auto kept = kept_tokens(flat, filters);
    EXPECT_TRUE(kept);
    return kept ? kept->size() : 0;
  };
  EXPECT_EQ(count({.top_p = 0.25F}), 12500U);
  EXPECT_EQ(count({.min_p = 0.5F}), 50000U);
  EXPECT_EQ(count({.typical_p = 0.25F}), 50000U) << "all are equally typical";
  EXPECT_EQ(count({.top_k = 100, .top_p = 0.5F}), 50U);
}

TEST(Sampler, DrawsFollowEveryFiltersDistribution) {
  constexpr int kDraws = 40000;
  const auto logits = random_logits(60, 5, 1.5F);
  for (const Filters& filters :
       {Filters{.min_p = 0.1F}, Filters{.typical_p = 0.6F}, Filters{.top_k = 20, .min_p = 0.2F},
        Filters{.temperature = 1.3F, .top_p = 0.9F, .min_p = 0.05F, .typical_p = 0.8F}}) {
    std::vector<double> expected(logits.size());
    const auto kept = kept_tokens(logits, filters);
    ASSERT_TRUE(kept);
    EXPECT_LT(kept->size(), logits.size());
    for (const auto& chance : *kept)
      expected[static_cast<size_t>(chance.token)] = std::exp(static_cast<double>(chance.logprob));
    expect_distribution(frequencies(logits, filters, kDraws), expected, kDraws);
  }
}

}  // namespace
}  // namespace tandem::sample
