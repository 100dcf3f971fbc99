#include "engine/tokenizer_source.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "text/tokenizer.h"
#include "weights/gguf_writer.h"
#include "weights/safetensors_writer.h"

namespace tandem::engine {
namespace {

// A directory that goes away with the test.
class TokenizerSource : public ::testing::Test {
 protected:
  TokenizerSource() {
    path_ = std::filesystem::path(::testing::TempDir()) /
            (std::string("tokenizer_source_") +
             ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(path_);
  }
  ~TokenizerSource() override { std::filesystem::remove_all(path_); }

  void write(const std::string& name, std::string_view text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << text;
  }
  void write_model() const {
    write("config.json", R"({"model_type":"llama"})");
    weights::SafetensorsWriter writer;
    const float value = 1;
    writer.add("x", weights::Format::kF32, {1}, std::span(&value, 1));
    const auto bytes = writer.finish();
    write("model.safetensors",
          std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  Result<text::TokenizerSpec> read(const std::string& name = {}) const {
    auto checkpoint =
        weights::Checkpoint::open(name.empty() ? path_.string() : (path_ / name).string());
    if (!checkpoint) return tl::unexpected(checkpoint.error());
    return tokenizer_spec_of(*checkpoint);
  }

  std::filesystem::path path_;
};

TEST_F(TokenizerSource, AGgufWithSentencePieceScores) {
  weights::GgufWriter writer;
  writer.add_string("general.architecture", "llama");
  writer.add_string("tokenizer.ggml.model", "llama");
  const std::vector<std::string> tokens = {"<unk>", "<s>",     "</s>", "<0x21>",       "\u2581",
                                           "a",     "\u2581a", "  ",   "<end_of_turn>"};
  const std::vector<float> scores = {0, 0, 0, 0, -3, -2, -1, 0, 0};
  const std::vector<int32_t> types = {2, 3, 3, 6, 1, 1, 1, 4, 4};
  writer.add_strings("tokenizer.ggml.tokens", tokens);
  writer.add_f32s("tokenizer.ggml.scores", scores);
  writer.add_i32s("tokenizer.ggml.token_type", types);
  writer.add_u32("tokenizer.ggml.bos_token_id", 1);
  writer.add_u32("tokenizer.ggml.eos_token_id", 2);
  writer.add_u32("tokenizer.ggml.unknown_token_id", 0);
  writer.add_bool("tokenizer.ggml.add_space_prefix", false);
  const auto bytes = writer.finish();
  write("m.gguf", std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  const auto spec = read("m.gguf");
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->end_of_generation, (std::vector<int32_t>{2, 8}));
  EXPECT_EQ(spec->types[8], static_cast<int32_t>(text::TokenType::kControl));
  EXPECT_TRUE(spec->add_bos);
  const auto tokenizer = text::Tokenizer::create(*spec);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ((*tokenizer)->encode("a a  !"), (std::vector<int32_t>{5, 6, 7, 3}));
  EXPECT_EQ((*tokenizer)->decode(std::vector<int32_t>{6, 7, 3}), " a  !");
}

constexpr std::string_view kTokenizerJson =
    R"({"added_tokens":[{"id":0,"content":"<s>","special":true,"normalized":false},)"
    R"({"id":4,"content":"<|im_end|>","special":false,"normalized":false},)"
    R"({"id":5,"content":"<x>","special":true,"normalized":false}],)"
    R"("model":{"type":"BPE","vocab":{"<s>":0,"a":1,"b":2,"ab":3},"merges":["a b"]},)"
    R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true},)"
    R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},)"
    R"({"Sequence":{"id":"A"}}]}})";

TEST_F(TokenizerSource, ADirectoryWithItsConfigsAndTemplates) {
  write_model();
  write("tokenizer.json", kTokenizerJson);
  write("tokenizer_config.json",
        R"({"eos_token":{"content":"<x>"},"chat_template":[)"
        R"({"name":"default","template":"plain"},{"name":"tool_use","template":"tools"}]})");
  write("generation_config.json", R"({"eos_token_id":[5,3,99,"x"]})");
  const auto spec = read();
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->kind, "bpe");
  EXPECT_EQ(spec->bos, 0);
  EXPECT_TRUE(spec->add_bos);
  EXPECT_EQ(spec->eos, 5);
  EXPECT_EQ(spec->end_of_generation, (std::vector<int32_t>{3, 4, 5}));
  EXPECT_EQ(spec->chat_template, "plain");
  EXPECT_EQ(spec->tool_template, "tools");
  const auto tokenizer = text::Tokenizer::create(*spec);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ((*tokenizer)->encode("ab<x>a", {.parse_special = true, .add_bos = true}),
            (std::vector<int32_t>{0, 3, 5, 1}));
}

TEST_F(TokenizerSource, ATemplateInItsOwnFileWins) {
  write_model();
  write("tokenizer.json", kTokenizerJson);
  write("tokenizer_config.json", R"({"chat_template":"old","add_bos_token":false})");
  write("chat_template.jinja", "new");
  const auto spec = read();
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->chat_template, "new");
  EXPECT_FALSE(spec->add_bos);
}

TEST_F(TokenizerSource, NoTokenizerIsRefused) {
  write_model();
  const auto spec = read();
  ASSERT_FALSE(spec);
  EXPECT_EQ(spec.error().status, 400);
}

}  // namespace
}  // namespace tandem::engine
