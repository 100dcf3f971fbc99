// FP8 pages: scales from the checkpoint reach the pages, pages of every dtype stay near float32
// ones, and feeding a sequence differently changes no bit.
#include <cmath>
#include <cstring>

#include "model/model_test_support.h"
#include "model/sequence_runner.h"
#include "model/tiny_checkpoint.h"
#include "numerics/error.h"

namespace tandem::model {
namespace {

class KvScalesTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "tandem-scales-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    base_ = read_tiny_checkpoint(source_path("tests/golden/families/llama3.json"));
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Result<std::unique_ptr<Model>> load(const std::vector<TinyTensor>& more,
                                      std::optional<ops::KvDtype> dtype, int32_t max_rows = 64) {
    TinyCheckpoint checkpoint = base_;
    checkpoint.tensors.insert(checkpoint.tensors.end(), more.begin(), more.end());
    write_hf_directory(checkpoint, folder_);
    return load_model(folder_.string(), {.numerics = Numerics::kExact,
                                         .threads = 1,
                                         .max_rows = max_rows,
                                         .kv_dtype = dtype,
                                         .isa = ""});
  }

  static std::vector<float> run(Model& model, int32_t chunk) {
    const auto tokens = random_tokens(48, model.config().vocab, 4);
    auto runner = SequenceRunner::create(model, 1, 48);
    std::vector<float> all;
    for (size_t begin = 0; begin < tokens.size(); begin += static_cast<size_t>(chunk)) {
      const auto part = runner->append(
          0, std::span(tokens).subspan(
                 begin, std::min(tokens.size() - begin, static_cast<size_t>(chunk))));
      EXPECT_TRUE(part) << part.error().message;
      if (part) all.insert(all.end(), part->begin(), part->end());
    }
    return all;
  }

  std::filesystem::path folder_;
  TinyCheckpoint base_;
};

TEST_F(KvScalesTest, EveryDtypeIsNearFloat32AndBatchInvariant) {
  const auto exact = load({}, ops::KvDtype::kF32);
  ASSERT_TRUE(exact) << exact.error().message;
  const auto reference = run(**exact, 48);
  for (const ops::KvDtype dtype : ops::kAllKvDtypes) {
    const auto model = load({}, dtype);
    ASSERT_TRUE(model) << model.error().message;
    EXPECT_EQ((*model)->page_layout(16).dtype, dtype);
    const auto logits = run(**model, 48);
    const auto error = numerics::compare(logits, reference);
    EXPECT_EQ(error.non_finite, 0U);
    const bool narrow = ops::PageLayout{.dtype = dtype}.element_bytes() == 1;
    EXPECT_LT(error.rms / error.max_reference, narrow ? 4e-2 : 4e-3) << ops::kv_dtype_name(dtype);
    std::printf("  %s: rms %.1e of the largest logit\n",
                std::string(ops::kv_dtype_name(dtype)).c_str(), error.rms / error.max_reference);
    for (const int32_t chunk : {1, 7}) {
      const auto parts = run(**model, chunk);
      ASSERT_EQ(std::memcmp(parts.data(), logits.data(), logits.size() * sizeof(float)), 0)
          << ops::kv_dtype_name(dtype) << " chunk " << chunk;
    }
  }
}

TEST_F(KvScalesTest, TheCheckpointsScalesAreUsedByStaticFp8AndByNothingElse) {
  const auto heads = static_cast<size_t>(*base_.config().find("num_key_value_heads")->as_integer());
  const std::vector<TinyTensor> scales = {{"model.layers.0.self_attn.k_scale", {1}, {0.05F}},
                                          {"model.layers.0.self_attn.v_scale", {1}, {0.02F}},
                                          {"model.layers.1.self_attn.k_proj.k_scale",
                                           {static_cast<int64_t>(heads)},
                                           std::vector<float>(heads, 0.03F)}};
  const auto with = load(scales, ops::KvDtype::kFp8Static);
  ASSERT_TRUE(with) << with.error().message;
  EXPECT_EQ((*with)->kv_scales().of(0).k_of(1), 0.05F);
  EXPECT_EQ((*with)->kv_scales().of(0).v_of(0), 0.02F);
  EXPECT_EQ((*with)->kv_scales().of(1).k_of(0), 0.03F);
  EXPECT_EQ((*with)->kv_scales().of(1).v_of(0), 1.0F);
  EXPECT_EQ((*with)->kv_scales().digest().size(), 16U);
  const auto scaled = run(**with, 48);
  const auto plain_model = load({}, ops::KvDtype::kFp8Static);
  ASSERT_TRUE(plain_model);
  EXPECT_EQ((*plain_model)->kv_scales().digest(), "1");
  const auto plain = run(**plain_model, 48);
  EXPECT_NE(std::memcmp(scaled.data(), plain.data(), plain.size() * sizeof(float)), 0);
  // Only the rounding differs.
  const auto difference = numerics::compare(scaled, plain);
  EXPECT_LT(difference.rms / difference.max_reference, 6e-2);
  // One after the other: a model reads its file while it lives.
  const auto wide_with = load(scales, ops::KvDtype::kBF16);
  ASSERT_TRUE(wide_with);
  const auto a = run(**wide_with, 48);
  const auto wide = load({}, ops::KvDtype::kBF16);
  ASSERT_TRUE(wide);
  const auto b = run(**wide, 48);
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

TEST_F(KvScalesTest, ScalesThatMakeNoSenseAreRefusedByName) {
  for (const float value : {0.0F, -1.0F, std::nanf(""), HUGE_VALF}) {
    const auto model =
        load({{"model.layers.0.self_attn.k_scale", {1}, {value}}}, ops::KvDtype::kFp8Static);
    ASSERT_FALSE(model);
    EXPECT_NE(model.error().message.find("k_scale"), std::string::npos) << model.error().message;
  }
  EXPECT_FALSE(load({{"model.layers.0.self_attn.v_scale", {5}, std::vector<float>(5, 1.0F)}},
                    ops::KvDtype::kFp8Static));
}

// A quantizer that touched nothing but the KV cache leaves this behind.
TEST_F(KvScalesTest, AQuantizationOfTheCacheAloneIsServed) {
  JsonValue config = base_.config();
  config.set("quantization_config",
             *parse_json(R"({"quant_method":"compressed-tensors","config_groups":{},
                 "kv_cache_scheme":{"type":"float","num_bits":8,"strategy":"tensor"}})"));
  base_.document.set("config", config);
  EXPECT_TRUE(load({}, ops::KvDtype::kFp8Static));
  config.set("quantization_config",
             *parse_json(R"({"quant_method":"compressed-tensors","config_groups":{"group_0":{}},
                 "kv_cache_scheme":{"type":"float","num_bits":8}})"));
  base_.document.set("config", config);
  EXPECT_FALSE(load({}, ops::KvDtype::kFp8Static));
}

}  // namespace
}  // namespace tandem::model
