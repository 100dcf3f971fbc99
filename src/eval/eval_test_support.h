// A model whose next token depends on the last one only, so that likelihoods can be worked out by
// hand.
#pragma once

#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "engine/engine_test_support.h"
#include "eval/loaded_model.h"

namespace tandem::eval {

inline float bigram_logit(int32_t last, int32_t next) {
  return static_cast<float>((last * 7 + next * 13 + last * next % 5) % 11);
}
inline double bigram_logprob(int32_t last, int32_t next, int32_t vocab) {
  double sum = 0;
  for (int32_t v = 0; v < vocab; ++v) sum += std::exp(bigram_logit(last, v));
  return bigram_logit(last, next) - std::log(sum);
}

class BigramModel final : public model::Model {
 public:
  explicit BigramModel(int32_t vocab, float scale = 1) : scale_(scale) {
    config_.architecture = "bigram";
    config_.layers = config_.heads = config_.kv_heads = 1;
    config_.head_dim = config_.hidden = 8;
    config_.vocab = vocab;
    config_.context_length = 256;
  }
  const model::ModelConfig& config() const override { return config_; }
  ops::PageLayout page_layout(int32_t block_tokens) const override {
    return {ops::KvDtype::kF32, ops::kCpuLayoutId, 1, 1, 8, block_tokens};
  }
  model::ModelMemory memory() const override { return {}; }
  int32_t max_rows() const override { return 64; }
  std::string numeric_path() const override { return "bigram-1"; }
  Status forward(const ops::ForwardBatch& batch, const ops::PageArenaView&,
                 std::span<float> logits) override {
    rows += static_cast<int64_t>(batch.tokens.size());
    for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
      const int32_t last = batch.tokens[static_cast<size_t>(batch.logit_rows[i])];
      for (int32_t v = 0; v < config_.vocab; ++v)
        logits[i * static_cast<size_t>(config_.vocab) + static_cast<size_t>(v)] =
            scale_ * bigram_logit(last, v);
    }
    return {};
  }

  int64_t rows = 0;  // computed so far

 private:
  model::ModelConfig config_;
  float scale_;
};

// Every byte is a token.
inline LoadedModel bigram_model(float scale = 1) {
  LoadedModel out;
  out.tokenizer = engine::byte_tokenizer();
  out.model = std::make_unique<BigramModel>(out.tokenizer->vocab_size(), scale);
  out.name = "bigram";
  out.lineage = "bigram";
  return out;
}
inline BigramModel& bigram(LoadedModel& loaded) { return static_cast<BigramModel&>(*loaded.model); }

class EvalTest : public testing::Test {
 protected:
  EvalTest()
      : directory_(std::filesystem::temp_directory_path() /
                   ("eval-test-" + std::to_string(::getpid()) + "-" +
                    testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::create_directories(directory_);
  }
  ~EvalTest() override { std::filesystem::remove_all(directory_); }

  std::string path(const std::string& name) const { return (directory_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }
  std::string read(const std::string& name) const {
    std::ifstream in(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

 private:
  std::filesystem::path directory_;
};

}  // namespace tandem::eval
