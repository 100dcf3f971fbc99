// Sampling takes no memory from its second call on, and sorts no vocabulary: whatever is wanted.
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "base/counting_new.inl.h"
#include "sample/sequence_sampler.h"

namespace tandem::sample {
namespace {

TEST(Allocations, SamplingTakesNoMemory) {
  std::mt19937 engine(1);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(50000);
  for (float& logit : logits) logit = normal(engine);
  protocol::SamplingParams every;
  every.temperature = 0.8F;
  every.top_k = 100;
  every.top_p = 0.95F;
  every.min_p = 0.01F;
  every.typical_p = 0.9F;
  every.frequency_penalty = 0.5F;
  every.logit_bias = {{7, 2.0F}};
  protocol::SamplingParams greedy;
  greedy.temperature = 0;
  protocol::SamplingParams plain;
  protocol::SamplingParams top_p;
  top_p.top_p = 0.9F;
  const std::vector<int32_t> prompt = {1, 2, 3};
  for (const auto& params : {every, greedy, plain, top_p}) {
    const SequenceSampler sampler(params, {}, 1, 0, prompt);
    Scratch scratch;
    std::vector<float> row;
    for (int64_t position = 3; position < 40; ++position) {
      row = logits;
      const int64_t before = allocations;
      const bool sampled = sampler.sample(row, position, scratch).has_value();
      const int64_t found = allocations - before;
      ASSERT_TRUE(sampled);
      if (position > 3) ASSERT_EQ(found, 0) << "top_k " << params.top_k << " at " << position;
    }
  }
}

}  // namespace
}  // namespace tandem::sample
