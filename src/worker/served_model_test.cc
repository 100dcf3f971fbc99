#include "worker/served_model.h"

#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "engine/tokenizer_source.h"
#include "model/tiny_checkpoint.h"
#include "weights/checkpoint.h"

namespace tandem::worker {
namespace {

constexpr size_t kPageBytes = size_t{2} * 2 * 2 * 16 * 16 * 2;  // layers, KV heads, K and V, BF16

// A checkpoint whose rotary positions have one table for contexts up to 64 and one beyond, with a
// tokenizer of three letters.
class ServedModelTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "tandem-served-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    folder_ = root_ / "tiny-1.5B";
    model::write_hf_directory(model::read_tiny_checkpoint(std::string(TANDEM_SOURCE_DIR) +
                                                          "/tests/golden/families/phi3-long.json"),
                              folder_);
    model::write_bytes(folder_ / "tokenizer.json",
                       R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"c":2},"merges":[]},
        "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},
        "decoder":{"type":"ByteLevel"}})");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  Result<ServedModel> load(const std::string& path, size_t kv_bytes) const {
    ServedModelOptions options;
    options.model = path;
    options.prefill_chunk = 16;
    options.max_sequences = 2;
    options.kv_bytes = kv_bytes;
    return load_served_model(options);
  }

  std::filesystem::path root_;
  std::filesystem::path folder_;
};

TEST_F(ServedModelTest, TheContextThatThePagesHoldChoosesTheRopeTable) {
  const auto small = load(folder_.string(), 4 * kPageBytes);  // 64 tokens
  ASSERT_TRUE(small) << small.error().message;
  ASSERT_EQ(small->model->page_layout(16).page_bytes(), kPageBytes);
  EXPECT_FALSE(small->model->numeric_path().ends_with("-long")) << small->model->numeric_path();
  for (const size_t pages : {5, 32, 1000, 0}) {
    const auto large = load(folder_.string(), pages * kPageBytes);
    ASSERT_TRUE(large) << large.error().message;
    EXPECT_EQ(large->model->numeric_path(), small->model->numeric_path() + "-long") << pages;
  }
  const auto none = load(folder_.string(), kPageBytes);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, "kv_memory_too_small");
}

// Whoever reads the same file knows the worker's text without asking it.
TEST_F(ServedModelTest, TheTextsIdentityIsThatOfTheFile) {
  const auto served = load(folder_.string(), 0);
  ASSERT_TRUE(served) << served.error().message;
  const auto spec = engine::tokenizer_spec_of(*weights::Checkpoint::open(folder_.string()));
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(served->tokenizer_identity, text::tokenizer_identity(*spec));
}

TEST_F(ServedModelTest, ADirectorysNameIsTheModelsDotsAndAll) {
  for (const std::string ending : {"", "/", "/."}) {
    const auto served = load(folder_.string() + ending, 0);
    ASSERT_TRUE(served) << served.error().message;
    EXPECT_EQ(served->name, "tiny-1.5B") << ending;
  }
}

}  // namespace
}  // namespace tandem::worker
