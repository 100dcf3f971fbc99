#include "module_support.h"

#include <gtest/gtest.h>

namespace tandem::modules {
namespace {

TEST(ModuleSettings, WhatIsNotTakenIsNamed) {
  Settings good("bind_host=127.0.0.1\nmax_bytes_in_flight=12\nucx.TLS=a=b,c\n");
  EXPECT_EQ(good.take("bind_host"), "127.0.0.1");
  EXPECT_EQ(good.take_number("max_bytes_in_flight", 5), 12U);
  EXPECT_EQ(good.take_number("absent", 5), 5U);
  EXPECT_EQ(good.take_prefix("ucx."), (std::map<std::string, std::string>{{"TLS", "a=b,c"}}));
  EXPECT_EQ(good.complaint(), "");
  EXPECT_EQ(Settings("speed=fast\n").complaint(), "the setting speed is not known");
  EXPECT_EQ(Settings("nonsense").complaint(), "the setting \"nonsense\" is not key=value");
  Settings number("port=12x");
  number.take_number("port", 1);
  EXPECT_EQ(number.complaint(), "the setting port needs a number, not \"12x\"");
  EXPECT_EQ(Settings(nullptr).complaint(), "");
}

TEST(ModuleDescriptor, OnlyTheWholeOneIsRead) {
  ExposedMemory memory;
  memory.base = 0x7f0000001000;
  memory.bytes = 1 << 20;
  memory.token_at = 77;
  memory.token.fill(9);
  memory.parts = {"address", "", std::string("k\0y", 3)};
  const std::string text = encode_descriptor("kind-1\n", memory);
  const auto read = decode_descriptor("kind-1\n", text, 3);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->base, memory.base);
  EXPECT_EQ(read->bytes, memory.bytes);
  EXPECT_EQ(read->token_at, memory.token_at);
  EXPECT_EQ(read->token, memory.token);
  EXPECT_EQ(read->parts, memory.parts);
  EXPECT_FALSE(decode_descriptor("kind-2\n", text, 3));
  EXPECT_FALSE(decode_descriptor("kind-1\n", text, 2));
  EXPECT_FALSE(decode_descriptor("kind-1\n", text + "x", 3));
  for (size_t i = 0; i < text.size(); ++i) {
    EXPECT_FALSE(decode_descriptor("kind-1\n", text.substr(0, i), 3)) << i;
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 0x20);
    EXPECT_FALSE(decode_descriptor("kind-1\n", changed, 3)) << i;
  }
  memory.base = UINT64_MAX - 5;  // whole, but impossible
  EXPECT_FALSE(decode_descriptor("kind-1\n", encode_descriptor("kind-1\n", memory), 3));
}

TEST(ModuleReads, MustLieInBothMemories) {
  std::vector<std::byte> memory(100);
  LocalMemory<int> local;
  local.add(memory.data(), memory.size(), 1);
  uint64_t total = 0;
  const auto inside = [&](uint64_t offset, size_t at, uint64_t bytes) {
    const tandem_transport_read read{offset, memory.data() + at, bytes};
    return reads_are_inside(&read, 1, 50, local, total);
  };
  EXPECT_TRUE(inside(0, 0, 50));
  EXPECT_EQ(total, 50U);
  EXPECT_TRUE(inside(49, 99, 1));
  EXPECT_FALSE(inside(49, 0, 2));
  EXPECT_FALSE(inside(UINT64_MAX, 0, 2));
  EXPECT_FALSE(inside(0, 99, 2));
  EXPECT_FALSE(inside(0, 0, 0));
  EXPECT_FALSE(reads_are_inside(static_cast<tandem_transport_read*>(nullptr), 0, 50, local, total));
}

}  // namespace
}  // namespace tandem::modules
