#include "api/response_store.h"

#include <gtest/gtest.h>

namespace tandem::api {
namespace {

StoredResponse response_of(size_t bytes) { return {std::string(bytes, 'x'), "[]", "[]"}; }

TEST(ResponseStore, ForgetsTheLeastRecentlyUsedWithinItsBytes) {
  ResponseStore store(8'000);
  store.put("a", 1, response_of(3000));
  store.put("b", 1, response_of(3000));
  ASSERT_NE(store.find("a", 1), nullptr) << "used: younger than b";
  store.put("c", 1, response_of(3000));
  EXPECT_EQ(store.find("b", 1), nullptr);
  EXPECT_NE(store.find("a", 1), nullptr);
  EXPECT_NE(store.find("c", 1), nullptr);
  EXPECT_LE(store.bytes(), 8'000U);
  store.put("d", 1, response_of(20'000));
  EXPECT_EQ(store.find("d", 1), nullptr) << "larger than all the room";
  EXPECT_NE(store.find("c", 1), nullptr);
  store.put("c", 1, response_of(10));
  EXPECT_TRUE(store.erase("c", 1));
  EXPECT_TRUE(store.erase("a", 1));
  EXPECT_EQ(store.bytes(), 0U);
}

TEST(ResponseStore, KnowsOnlyItsOwnersResponses) {
  ResponseStore store(10'000);
  store.put("a", 1, response_of(10));
  EXPECT_EQ(store.find("a", 2), nullptr);
  EXPECT_FALSE(store.erase("a", 2));
  EXPECT_NE(store.find("a", 1), nullptr);
}

}  // namespace
}  // namespace tandem::api
