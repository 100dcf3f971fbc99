#include "numerics/digest.h"

#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace tandem::numerics {
namespace {

std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(Sha256, MatchesPublishedVectors) {
  EXPECT_EQ(to_hex(sha256(bytes(""))),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(to_hex(sha256(bytes("abc"))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256, PiecesEqualWholeAndFinishStartsANewMessage) {
  Sha256 hash;
  hash.update(bytes("a"));
  hash.update(bytes(""));
  hash.update(bytes("bc"));
  EXPECT_EQ(hash.finish(), sha256(bytes("abc")));
  hash.update(bytes("abc"));
  EXPECT_EQ(hash.finish(), sha256(bytes("abc")));
}

TEST(Xxh3, MatchesPublishedVectorsAndSeesEveryBit) {
  EXPECT_EQ(xxh3({}), 0x2D06800538D394C2ULL);
  std::vector<std::byte> data(300);
  const uint64_t clean = xxh3(data);
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] ^= std::byte{1};
    EXPECT_NE(xxh3(data), clean);
    data[i] ^= std::byte{1};
  }
}

}  // namespace
}  // namespace tandem::numerics
