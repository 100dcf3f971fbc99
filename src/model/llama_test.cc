#include <cmath>

#include "model/model_test_support.h"
#include "model/sequence_runner.h"

namespace tandem::model {
namespace {

Result<std::unique_ptr<Model>> load_bytes(const std::vector<std::byte>& bytes,
                                          const ModelOptions& options = {}) {
  const TemporaryFile file(bytes);
  return load_model(file.path(), options);
}

// A writer with one tiny model's content that a test may add to.
weights::GgufWriter tiny_writer(const TinyLlama& spec = {}) {
  weights::GgufWriter writer;
  write_tiny_llama(spec, writer);
  return writer;
}

TEST(LoadLlama, ReadsTheConfiguration) {
  const auto model =
      load_bytes(make_tiny_llama({.tied = true}),
                 {.numerics = Numerics::kExact, .threads = 1, .max_rows = 8, .isa = "scalar"});
  ASSERT_TRUE(model) << model.error().message;
  const ModelConfig& config = (*model)->config();
  EXPECT_EQ(config.architecture, "llama");
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.vocab, 300);
  EXPECT_TRUE(config.tied_embedding);
  EXPECT_EQ((*model)->numeric_path(),
            "cpu-scalar-exact-" + std::to_string(ops::cpu::kKernelVersion));
  EXPECT_EQ((*model)->page_layout(16).dtype, ops::KvDtype::kF32);
  EXPECT_GT((*model)->memory().weights, 64U * 300 * 4);
}

TEST(LoadLlama, SaysWhatBf16NumericsNeed) {
  const auto model =
      load_bytes(make_tiny_llama({}),
                 {.numerics = Numerics::kBf16, .threads = 1, .max_rows = 8, .isa = "scalar"});
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, "unsupported_numerics");
  EXPECT_NE(model.error().message.find("AMX"), std::string::npos) << model.error().message;
}

TEST(LoadLlama, RefusesWhatItWouldRunWrongly) {
  const auto refused = [](const weights::GgufWriter& writer, const std::string& word) {
    const auto model = load_bytes(writer.finish());
    ASSERT_FALSE(model) << word;
    EXPECT_NE(model.error().message.find(word), std::string::npos) << model.error().message;
    EXPECT_EQ(model.error().status, 400);
  };
  auto experts = tiny_writer();
  experts.add_u32("llama.expert_count", 8);
  refused(experts, "mixture");
  auto scaling = tiny_writer();
  scaling.add_string("llama.rope.scaling.type", "dynamic");
  refused(scaling, "dynamic");
  auto bias = tiny_writer();
  bias.add_vector("blk.0.attn_q.bias", std::vector<float>(64));
  refused(bias, "blk.0.attn_k.bias");  // all of q, k and v have one, or none
  auto sinks = tiny_writer();
  sinks.add_vector("blk.0.attn_sinks.weight", std::vector<float>(4));
  refused(sinks, "blk.0.attn_sinks.weight");
  auto unknown = tiny_writer();
  unknown.add_f32("llama.attention.temperature_scale", 0.1F);
  refused(unknown, "llama.attention.temperature_scale");
  auto value_length = tiny_writer();
  value_length.add_u32("llama.attention.value_length", 8);
  refused(value_length, "different lengths");
  auto key_length = tiny_writer();
  key_length.add_u32("llama.attention.key_length", 32);
  key_length.add_u32("llama.attention.value_length", 32);
  refused(key_length, "attn_q.weight");
  weights::GgufWriter other;
  other.add_string("general.architecture", "mamba");
  refused(other, "mamba");
  weights::GgufWriter empty;
  empty.add_string("general.architecture", "llama");
  refused(empty, "block_count");
  refused(tiny_writer({.heads = 4, .kv_heads = 3}), "multiple");
  EXPECT_FALSE(load_model("/nonexistent.gguf", {}));
  EXPECT_EQ(load_bytes(make_tiny_llama({}), {.isa = "sse9"}).error().code, "unsupported_isa");
}

TEST(LoadLlama, RopeDivisorsSlowThePairsTheyName) {
  auto writer = tiny_writer();
  std::vector<float> divisors(8, 1.0F);
  writer.add_vector("rope_freqs.weight", divisors);
  divisors[0] = 4;
  auto slowed_writer = tiny_writer();
  slowed_writer.add_vector("rope_freqs.weight", divisors);
  const ModelOptions options = {
      .numerics = Numerics::kExact, .threads = 1, .max_rows = 8, .isa = ""};
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5};
  std::vector<std::vector<float>> logits;
  for (const auto& bytes : {make_tiny_llama({}), writer.finish(), slowed_writer.finish()}) {
    const auto model = load_bytes(bytes, options);
    ASSERT_TRUE(model) << model.error().message;
    logits.push_back(*SequenceRunner::create(**model, 1, 16)->append(0, tokens));
  }
  EXPECT_EQ(logits[0], logits[1]);
  EXPECT_NE(logits[0], logits[2]);
}

class ForwardChecks : public testing::Test {
 protected:
  void SetUp() override {
    model_ = load_tiny({.context = 20},
                       {.numerics = Numerics::kFast, .threads = 1, .max_rows = 8, .isa = ""});
    runner_.emplace(*SequenceRunner::create(*model_, 1, 64));
  }
  Status forward(std::vector<int32_t> tokens, ops::SequenceRows rows, std::vector<int32_t> wanted,
                 size_t logits = 8 * 300) {
    std::vector<float> out(logits);
    return model_->forward({.tokens = tokens,
                            .sequences = std::span(&rows, 1),
                            .logit_rows = wanted,
                            .layer_done = {}},
                           runner_->pages(), out);
  }
  std::unique_ptr<Model> model_;
  std::optional<SequenceRunner> runner_;
  std::vector<int32_t> pages_ = {0, 1};
};

TEST_F(ForwardChecks, RefusesBatchesThatWouldReadOrWriteOutside) {
  const ops::SequenceRows good = {
      .first_row = 0, .row_count = 2, .first_position = 0, .pages = pages_};
  EXPECT_TRUE(forward({1, 2}, good, {1}));
  EXPECT_FALSE(forward({1, 300}, good, {1}));
  EXPECT_FALSE(forward({1, -1}, good, {1}));
  EXPECT_FALSE(forward({1, 2}, good, {2}));
  EXPECT_FALSE(forward({1, 2}, good, {1, 0}));
  EXPECT_FALSE(forward({1, 2}, good, {0, 1}, 599));
  EXPECT_FALSE(forward({1, 2, 3}, good, {}));
  EXPECT_FALSE(forward(std::vector<int32_t>(9, 1),
                       {.first_row = 0, .row_count = 9, .first_position = 0, .pages = pages_}, {}));
  const std::vector<int32_t> outside = {99};
  EXPECT_FALSE(
      forward({1, 2}, {.first_row = 0, .row_count = 2, .first_position = 0, .pages = outside}, {}));
  EXPECT_FALSE(forward(
      {1, 2},
      {.first_row = 0, .row_count = 2, .first_position = 15, .pages = std::span(pages_).first(1)},
      {}));
  EXPECT_FALSE(
      forward({1, 2}, {.first_row = 0, .row_count = 2, .first_position = -1, .pages = pages_}, {}));
  EXPECT_FALSE(forward(
      {1, 2}, {.first_row = 0, .row_count = 2, .first_position = 0, .pages = pages_, .adapter = 0},
      {}));
  const Status too_long =
      forward({1, 2}, {.first_row = 0, .row_count = 2, .first_position = 19, .pages = pages_}, {});
  ASSERT_FALSE(too_long);
  EXPECT_EQ(too_long.error().code, "context_length_exceeded");
}

}  // namespace
}  // namespace tandem::model
