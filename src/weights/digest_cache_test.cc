// DigestCache: finds what it stored for the same file, nothing for a changed one, and stays small.
#include "weights/digest_cache.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace tandem::weights {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kSecond = 1'000'000'000;

class DigestCacheTest : public testing::Test {
 protected:
  DigestCacheTest()
      : folder_(fs::path(testing::TempDir()) /
                ("digests-" +
                 std::string(testing::UnitTest::GetInstance()->current_test_info()->name()))) {
    fs::remove_all(folder_);
  }
  ~DigestCacheTest() override { fs::remove_all(folder_); }

  static FileIdentity identity(uint64_t inode) {
    return {.device = 3,
            .inode = inode,
            .size = 1000,
            .modified_ns = 100 * kSecond,
            .changed_ns = 100 * kSecond};
  }
  static numerics::Digest digest(uint8_t fill) {
    numerics::Digest out;
    out.fill(static_cast<std::byte>(fill));
    return out;
  }

  fs::path folder_;
};

TEST_F(DigestCacheTest, FindsTheDigestOfTheSameFileAndOfNoOther) {
  const DigestCache cache(folder_.string());
  const FileIdentity file = identity(7);
  EXPECT_FALSE(cache.find(file));
  cache.store(file, digest(0xA5), 200 * kSecond);
  EXPECT_EQ(cache.find(file), digest(0xA5));
  for (int64_t FileIdentity::* time : {&FileIdentity::modified_ns, &FileIdentity::changed_ns}) {
    FileIdentity changed = file;
    changed.*time += 1;
    EXPECT_FALSE(cache.find(changed));
  }
  FileIdentity longer = file;
  longer.size += 1;
  EXPECT_FALSE(cache.find(longer));
}

TEST_F(DigestCacheTest, FilesChangedJustNowAreNotRemembered) {
  const DigestCache cache(folder_.string());
  cache.store(identity(7), digest(1), 101 * kSecond);
  EXPECT_FALSE(cache.find(identity(7)));
}

TEST_F(DigestCacheTest, DamagedEntriesCountForNothing) {
  const DigestCache cache(folder_.string());
  cache.store(identity(7), digest(1), 200 * kSecond);
  for (const auto& entry : fs::directory_iterator(folder_))
    std::ofstream(entry.path(), std::ios::trunc) << "0123";
  EXPECT_FALSE(cache.find(identity(7)));
}

TEST_F(DigestCacheTest, KeepsNoMoreThanItMay) {
  const DigestCache cache(folder_.string(), 3);
  for (uint64_t inode = 1; inode <= 8; ++inode)
    cache.store(identity(inode), digest(1), 200 * kSecond);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 3);
}

TEST_F(DigestCacheTest, WithoutAFolderNothingIsRemembered) {
  const DigestCache cache("");
  cache.store(identity(7), digest(1), 200 * kSecond);
  EXPECT_FALSE(cache.find(identity(7)));
}

}  // namespace
}  // namespace tandem::weights
