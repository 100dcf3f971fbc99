#include <gtest/gtest.h>

#include "sim/kv_simulation.h"

namespace tandem::sim {
namespace {

TEST(Simulation, ARunIsAFunctionOfItsSeed) {
  for (uint64_t seed = 1; seed < 20; ++seed) {
    const Outcome first = run_plan(draw_plan(seed), true);
    const Outcome second = run_plan(draw_plan(seed), true);
    EXPECT_EQ(first.events, second.events);
    EXPECT_EQ(first.trace, second.trace);
  }
}

TEST(Simulation, NoWrongBytesNoLostPagesAndEveryRequestEnds) {
  const Campaign result = run_campaign(1000, 1, Break::kNone);
  EXPECT_TRUE(result.bad_seeds.empty())
      << "seed " << result.bad_seeds.front() << ": " << result.violation
      << "\nsee: tandem simulate kv --runs 1 --seed " << result.bad_seeds.front();
  EXPECT_GT(result.completed, 1000U);
  EXPECT_GT(result.failed, 100U);
  EXPECT_GT(result.abandoned, 50U);
  EXPECT_GT(result.fenced, 20U);
}

// Each protection is needed, and each check can fail.
class Broken : public ::testing::TestWithParam<std::string> {};

TEST_P(Broken, ProtectionsAreMissed) {
  const Campaign result = run_campaign(10000, 1, *parse_break(GetParam()));
  EXPECT_FALSE(result.bad_seeds.empty()) << "10,000 runs without it, and nothing went wrong";
}

INSTANTIATE_TEST_SUITE_P(Simulation, Broken, ::testing::ValuesIn(break_names()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace tandem::sim
