#include "weights/gguf.h"

#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "weights/gguf_writer.h"

namespace tandem::weights {
namespace {

std::vector<std::byte> sample_file() {
  GgufWriter writer;
  writer.add_string("general.architecture", "llama");
  writer.add_u32("count", 7);
  writer.add_u64("big", 1ULL << 40);
  writer.add_f32("epsilon", 0.5F);
  writer.add_bool("flag", true);
  const std::vector<std::string> words = {"a", "", "ccc"};
  writer.add_strings("words", words);
  const std::vector<int32_t> numbers = {-1, 2};
  writer.add_i32s("numbers", numbers);
  const std::vector<float> reals = {0.25F};
  writer.add_f32s("reals", reals);
  std::vector<float> values(64);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) - 32;
  writer.add_matrix("w", Format::kQ80, 2, 32, values);
  writer.add_vector("norm", reals);
  return writer.finish();
}

TEST(Gguf, ReadsBackWhatWasWritten) {
  const std::vector<std::byte> bytes = sample_file();
  const auto file = GgufFile::parse(bytes);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->string("general.architecture").value(), "llama");
  EXPECT_EQ(file->integer("count").value(), 7);
  EXPECT_EQ(file->integer("big").value(), int64_t{1} << 40);
  EXPECT_EQ(file->real("epsilon").value(), 0.5);
  EXPECT_TRUE(file->boolean("flag").value());
  EXPECT_EQ(file->strings("words").value(), (std::vector<std::string_view>{"a", "", "ccc"}));
  EXPECT_EQ(file->integers("numbers").value(), (std::vector<int64_t>{-1, 2}));
  EXPECT_EQ(file->reals("reals").value(), std::vector<float>{0.25F});
  const Tensor* w = file->find_tensor("w");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(w->rows(), 2);
  EXPECT_EQ(w->columns(), 32);
  std::vector<float> row(32);
  dequantize_row(w->format, w->row(1), row);
  EXPECT_NEAR(row[31], 31, 0.2);
  EXPECT_EQ(file->find_tensor("absent"), nullptr);
}

TEST(Gguf, TypedAccessNamesTheKeyThatIsMissingOrWrong) {
  const std::vector<std::byte> bytes = sample_file();
  const auto file = GgufFile::parse(bytes);
  ASSERT_TRUE(file);
  EXPECT_NE(file->integer("nothing").error().message.find("nothing"), std::string::npos);
  EXPECT_NE(file->integer("epsilon").error().message.find("epsilon"), std::string::npos);
  EXPECT_FALSE(file->string("count"));
  EXPECT_FALSE(file->strings("numbers"));
  EXPECT_FALSE(file->integers("words"));
  EXPECT_FALSE(file->reals("numbers"));
}

TEST(Gguf, EveryTruncationIsAnErrorNotACrash) {
  const std::vector<std::byte> bytes = sample_file();
  for (size_t size = 0; size < bytes.size(); ++size) {
    // The last tensor's padding may be cut without harm; everything before it is needed.
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
    const auto file = GgufFile::parse(cut);
    if (size < bytes.size() - 28) EXPECT_FALSE(file) << size;
  }
}

TEST(Gguf, RandomDamageNeverCrashesAndTensorsStayInside) {
  const std::vector<std::byte> clean = sample_file();
  std::mt19937 random(3);
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bytes = clean;
    for (int i = 0; i < 1 + round % 4; ++i)
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    const auto file = GgufFile::parse(bytes);
    if (!file) continue;
    for (const Tensor& tensor : file->tensors()) {
      ASSERT_GE(tensor.bytes.data(), bytes.data());
      ASSERT_LE(tensor.bytes.data() + tensor.bytes.size(), bytes.data() + bytes.size());
    }
  }
}

// Builds a header by hand around one tensor entry, to say exactly what a hostile file says.
std::vector<std::byte> hostile(uint64_t tensors, uint64_t dimension, uint32_t type,
                               uint64_t offset) {
  std::vector<std::byte> out;
  const auto put = [&](const auto& value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    out.insert(out.end(), bytes.begin(), bytes.end());
  };
  put(uint32_t{0x46554747});
  put(uint32_t{3});
  put(tensors);
  put(uint64_t{0});
  put(uint64_t{1});
  put('w');
  put(uint32_t{2});
  put(dimension);
  put(dimension);
  put(type);
  put(offset);
  out.resize(256);
  return out;
}

TEST(Gguf, RefusesSizesThatOverflowOrLeaveTheFile) {
  EXPECT_TRUE(GgufFile::parse(hostile(1, 4, 0, 0)));
  EXPECT_FALSE(GgufFile::parse(hostile(~0ULL, 4, 0, 0)));
  EXPECT_FALSE(GgufFile::parse(hostile(1, 0, 0, 0)));
  EXPECT_FALSE(GgufFile::parse(hostile(1, 1ULL << 63, 0, 0)));
  EXPECT_FALSE(GgufFile::parse(hostile(1, 1ULL << 33, 0, 0)));  // the product wraps
  EXPECT_FALSE(GgufFile::parse(hostile(1, 1ULL << 20, 0, 0)));  // too large for the file
  EXPECT_FALSE(GgufFile::parse(hostile(1, 4, 0, ~0ULL - 31)));  // offset + size wraps
  EXPECT_FALSE(GgufFile::parse(hostile(1, 4, 0, 8)));           // misaligned
  EXPECT_FALSE(GgufFile::parse(hostile(1, 4, 8, 0)));           // not whole blocks
  EXPECT_FALSE(GgufFile::parse(hostile(1, 4, 77, 0)));          // unknown type
  EXPECT_FALSE(GgufFile::open("/nonexistent/model.gguf"));
}

TEST(Gguf, RefusesDuplicates) {
  GgufWriter keys;
  keys.add_u32("k", 1);
  keys.add_u32("k", 2);
  EXPECT_FALSE(GgufFile::parse(keys.finish()));
  GgufWriter tensors;
  const std::vector<float> values = {1};
  tensors.add_vector("t", values);
  tensors.add_vector("t", values);
  EXPECT_FALSE(GgufFile::parse(tensors.finish()));
}

}  // namespace
}  // namespace tandem::weights
