#include "numerics/flat_table.h"

#include <cstdint>
#include <map>
#include <random>

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(FlatTable, FindsWhatIsThereThroughGrowthAndShrinking) {
  FlatTable<8, 2> table;
  std::map<uint64_t, uint64_t> model;
  std::mt19937_64 random(1);
  for (int step = 0; step < 200000; ++step) {
    const uint64_t key = 1 + random() % 5000;
    auto* const slot = table.find(key);
    ASSERT_EQ(slot != nullptr, model.contains(key)) << step;
    if (slot != nullptr) {
      ASSERT_EQ(slot->second, model[key]);
    }
    // It fills for a while, then empties.
    const bool grow = (step / 20000) % 2 == 0;
    if (slot == nullptr && (grow || random() % 4 == 0)) {
      table.insert(key).second = step;
      model[key] = static_cast<uint64_t>(step);
    } else if (slot != nullptr && (!grow || random() % 4 == 0)) {
      table.erase(*slot);
      model.erase(key);
    }
    ASSERT_EQ(table.size(), model.size());
  }
  uint64_t place = 0;
  while (auto* const slot = table.sweep(place)) {
    ASSERT_EQ(model.erase(slot->key()), 1U);
    table.erase(*slot);
    --place;
  }
  EXPECT_TRUE(model.empty());
  EXPECT_EQ(table.size(), 0U);
  EXPECT_LT(table.bytes(), 5000U);
}

}  // namespace
}  // namespace tandem
