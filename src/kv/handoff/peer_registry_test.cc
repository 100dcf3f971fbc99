#include "kv/handoff/peer_registry.h"

#include <gtest/gtest.h>

namespace tandem::kv {
namespace {

TEST(PeerRegistry, ANewerStartFencesTheOlderOnesAndAnOlderOneIsRefused) {
  PeerRegistry registry;
  EXPECT_TRUE(registry.on_hello(1, "a", 10).accepted);
  EXPECT_TRUE(registry.on_hello(2, "a", 10).fence.empty()) << "a second connection of one start";
  EXPECT_TRUE(registry.on_hello(3, "b", 5).fence.empty()) << "another worker";
  EXPECT_TRUE(registry.on_hello(4, "", 1).accepted);
  EXPECT_TRUE(registry.on_hello(5, "", 2).fence.empty()) << "workers without a name";
  EXPECT_EQ(registry.on_hello(6, "a", 11).fence, (std::vector<PeerId>{1, 2}));
  EXPECT_FALSE(registry.on_hello(7, "a", 10).accepted);
  registry.on_closed(6);
  EXPECT_TRUE(registry.on_hello(8, "a", 9).accepted)
      << "a clock that was set back locks nobody out for ever";
  for (const PeerId peer : {3U, 4U, 5U, 8U}) registry.on_closed(peer);
  EXPECT_EQ(registry.size(), 0U);
}

}  // namespace
}  // namespace tandem::kv
