// The table of DESIGN I5: what may stand in for what.
#include "protocol/representation.h"

#include <gtest/gtest.h>

namespace tandem::protocol {
namespace {

enum Dtype : uint32_t { kF32, kF16, kBF16, kFp8, kFp8Inline, kInt8 };
constexpr uint32_t kDtypes = 6;

Representation stored_as(uint32_t dtype) {
  return {.kv_dtype = dtype,
          .layout_id = 1,
          .numeric_path = "cpu-avx2-fast-2",
          .kv_scales = "1",
          .weights = "Q8_0"};
}

TEST(Representation, TheTableOfDtypes) {
  // Rows: stored; columns: reader. '=' as it is, '>' converted, 'o' only when coarser is accepted.
  const char* const table[kDtypes] = {
      "=>>>>>",  // f32
      "o=o>>>",  // f16
      "oo=>>>",  // bf16
      "ooo=oo",  // fp8
      "oooo=o",  // fp8-inline
      "ooooo=",  // int8
  };
  for (uint32_t stored = 0; stored < kDtypes; ++stored) {
    for (uint32_t reader = 0; reader < kDtypes; ++reader) {
      const auto strict = decide_reading(stored_as(stored), stored_as(reader), 0);
      const auto lax = decide_reading(stored_as(stored), stored_as(reader), kAcceptCoarser);
      const char cell = table[stored][reader];
      const std::string what = std::string(stored_dtype_name(stored)) + " read as " +
                               std::string(stored_dtype_name(reader));
      EXPECT_EQ(strict.reading, cell == '='   ? Reading::kAsIs
                                : cell == '>' ? Reading::kConverted
                                              : Reading::kRefused)
          << what;
      EXPECT_EQ(lax.reading, cell == '=' ? Reading::kAsIs : Reading::kConverted) << what;
      EXPECT_EQ(strict.reason.empty(), cell != 'o') << what;
    }
  }
}

TEST(Representation, TheSenderConvertsWhatGetsSmallerWithScalesThatItHas) {
  for (uint32_t stored = 0; stored < kDtypes; ++stored) {
    for (uint32_t reader = 0; reader < kDtypes; ++reader) {
      const auto bytes = [](uint32_t dtype) { return dtype == kF32 ? 4 : dtype <= kBF16 ? 2 : 1; };
      const bool smaller = bytes(reader) < bytes(stored);
      EXPECT_EQ(sender_can_convert(stored_as(stored), stored_as(reader)), smaller);
      Representation scaled = stored_as(reader);
      scaled.kv_scales = "0123456789abcdef";
      EXPECT_EQ(sender_can_convert(stored_as(stored), scaled), smaller && reader != kFp8);
      Representation other = stored_as(reader);
      other.layout_id = 2;
      EXPECT_FALSE(sender_can_convert(stored_as(stored), other));
    }
  }
  Representation unknown = stored_as(kBF16);
  unknown.kv_dtype = 99;
  EXPECT_FALSE(sender_can_convert(stored_as(kF32), unknown));
}

TEST(Representation, Fp8IsReadAsBf16OnlyByChoiceAndTheRefusalSaysHow) {
  const auto verdict = decide_reading(stored_as(kFp8), stored_as(kBF16), 0);
  EXPECT_EQ(verdict.reading, Reading::kRefused);
  EXPECT_NE(verdict.reason.find("stored as fp8"), std::string::npos) << verdict.reason;
  EXPECT_NE(verdict.reason.find("read as bf16"), std::string::npos) << verdict.reason;
  EXPECT_NE(verdict.reason.find("--kv-accept coarser"), std::string::npos) << verdict.reason;
}

TEST(Representation, OtherWeightsAndOtherPathsNeedTheirOwnWord) {
  Representation other = stored_as(kBF16);
  other.weights = "Q4_0";
  EXPECT_EQ(decide_reading(stored_as(kBF16), other, kAcceptCoarser | kAcceptPath).reading,
            Reading::kRefused);
  EXPECT_EQ(decide_reading(stored_as(kBF16), other, kAcceptWeights).reading, Reading::kAsIs);
  other.kv_dtype = kFp8;
  EXPECT_EQ(decide_reading(stored_as(kBF16), other, kAcceptWeights).reading, Reading::kConverted);
  other = stored_as(kBF16);
  other.numeric_path = "cpu-avx512-fast-2";
  EXPECT_EQ(decide_reading(other, stored_as(kBF16), kAcceptCoarser | kAcceptWeights).reading,
            Reading::kRefused);
  EXPECT_EQ(decide_reading(other, stored_as(kBF16), kAcceptPath).reading, Reading::kAsIs);
}

TEST(Representation, CodesAreNeverReadWithOtherScales) {
  Representation other = stored_as(kFp8);
  other.kv_scales = "0123456789abcdef";
  const uint32_t all = kAcceptCoarser | kAcceptWeights | kAcceptPath;
  EXPECT_EQ(decide_reading(stored_as(kFp8), other, all).reading, Reading::kRefused);
  EXPECT_EQ(decide_reading(other, stored_as(kBF16), all).reading, Reading::kRefused);
  // BF16 pages have no scales: the reader's own are used.
  Representation plain = other;
  plain.kv_dtype = kBF16;
  EXPECT_EQ(decide_reading(stored_as(kBF16), other, 0).reading, Reading::kConverted);
  EXPECT_EQ(decide_reading(stored_as(kBF16), plain, 0).reading, Reading::kAsIs);
}

TEST(Representation, UnknownFormatsAndOtherLayoutsAreRefused) {
  Representation other = stored_as(kBF16);
  other.layout_id = 2;
  const uint32_t all = kAcceptCoarser | kAcceptWeights | kAcceptPath;
  EXPECT_EQ(decide_reading(other, stored_as(kBF16), all).reading, Reading::kRefused);
  EXPECT_EQ(decide_reading(stored_as(77), stored_as(kBF16), all).reading, Reading::kRefused);
  EXPECT_EQ(decide_reading(stored_as(kBF16), stored_as(77), all).reading, Reading::kRefused);
}

TEST(Representation, AcceptWordsAreReadAndUnknownOnesNamed) {
  const std::vector<std::string> words = {"coarser", "path"};
  EXPECT_EQ(parse_kv_accepts(words).value(), kAcceptCoarser | kAcceptPath);
  EXPECT_EQ(parse_kv_accepts({}).value(), 0U);
  const std::vector<std::string> wrong = {"everything"};
  const auto refused = parse_kv_accepts(wrong);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("everything"), std::string::npos);
}

}  // namespace
}  // namespace tandem::protocol
