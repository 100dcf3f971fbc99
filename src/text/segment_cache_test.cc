#include "text/segment_cache.h"

#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "text/testing.h"

namespace tandem::text {
namespace {

std::vector<int32_t> find(SegmentCache& cache, const std::string& text, const char* kind = "k") {
  std::vector<int32_t> ids;
  return cache.find(text, kind, ids) ? ids : std::vector<int32_t>{-1};
}

void keep(SegmentCache& cache, const std::string& text, std::vector<int32_t> ids,
          const char* kind = "k") {
  cache.keep(text, kind, ids.data(), ids.size());
}

TEST(SegmentCache, FindsWhatWasKeptAndNothingElse) {
  SegmentCache cache(1 << 20);
  keep(cache, "one text", {1, 2, 3});
  EXPECT_EQ(find(cache, "one text"), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(find(cache, "one texT"), (std::vector<int32_t>{-1}));
  EXPECT_EQ(find(cache, "one text", "other"), (std::vector<int32_t>{-1}));
  keep(cache, "one text", {4});
  EXPECT_EQ(find(cache, "one text"), (std::vector<int32_t>{4}));
  EXPECT_EQ(cache.counts().pieces, 1U);
}

TEST(SegmentCache, StaysWithinItsBytesAndDropsTheLeastRecentlyUsed) {
  SegmentCache cache(20000);
  keep(cache, "kept", {7});
  for (int i = 0; i < 500; ++i) {
    keep(cache, std::string(500, 'a') + std::to_string(i), {i});
    EXPECT_LE(cache.counts().bytes, 20000U);
    EXPECT_EQ(find(cache, "kept"), (std::vector<int32_t>{7}));
  }
  EXPECT_EQ(find(cache, std::string(500, 'a') + "0"), (std::vector<int32_t>{-1}));
  keep(cache, std::string(30000, 'b'), {1});
  EXPECT_EQ(find(cache, "kept"), (std::vector<int32_t>{7})) << "one huge text empties nothing";
}

// Pieces of random texts with special tokens, with and without a sentinel, by several threads: the
// ids are those of a tokenizer that keeps nothing.
TEST(SegmentCache, ATokenizerThatKeepsPiecesGivesTheSameIds) {
  for (const char* name : {"small_bpe_smollm.json", "small_bpe_gpt2.json"}) {
    const auto plain = testing::load_tokenizer(testing::testdata(name));
    const auto cached = *Tokenizer::create(plain->spec(), 200'000);
    const auto work = [&](unsigned seed) {
      std::mt19937 random(seed);
      std::vector<std::string> pieces;
      for (int i = 0; i < 30; ++i) {
        std::string piece;
        while (piece.size() < random() % 600) {
          piece += plain->token_bytes(static_cast<int32_t>(random() % plain->vocab_size()));
          if (random() % 3 == 0) piece += ' ';
        }
        if (i % 5 == 0) piece += "\xEF\xB7\x90";
        pieces.push_back(piece);
      }
      for (int step = 0; step < 300; ++step) {
        std::string text;
        for (unsigned i = random() % 6; i > 0; --i) {
          text += pieces[random() % pieces.size()];
          const auto& special = plain->special_tokens();
          if (!special.empty() && random() % 2 == 0)
            text += plain->token_bytes(special[random() % special.size()]);
        }
        EncodeOptions options;
        options.parse_special = random() % 2 == 0;
        if (random() % 2 == 0) options.sentinel = "\xEF\xB7\x90";
        ASSERT_EQ(cached->encode(text, options), plain->encode(text, options));
      }
    };
    std::vector<std::thread> threads;
    for (unsigned seed = 0; seed < 3; ++seed) threads.emplace_back(work, seed % 2);
    for (std::thread& thread : threads) thread.join();
    EXPECT_GT(cached->segment_cache()->counts().hit_bytes, 0U);
    EXPECT_LE(cached->segment_cache()->counts().bytes, 200'000U);
  }
}

}  // namespace
}  // namespace tandem::text
