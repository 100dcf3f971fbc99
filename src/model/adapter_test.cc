// LoRA: an adapter's rows equal a model whose weights had the products merged in; rows without one
// do not change by a bit; files that do not fit are refused.
#include <cmath>
#include <cstring>

#include "model/model_test_support.h"
#include "model/sequence_runner.h"
#include "model/tiny_checkpoint.h"

namespace tandem::model {
namespace {

constexpr int32_t kRank = 3;
constexpr float kAlpha = 6;

class AdapterTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "tandem-adapter-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    base_ = read_tiny_checkpoint(
        source_path("tests/golden/families/" + std::string(GetParam()) + ".json"));
    write_hf_directory(base_, folder_ / "base");
    const auto gguf = TinyGguf(base_).make();
    write_bytes(folder_ / "base.gguf", {reinterpret_cast<const char*>(gguf.data()), gguf.size()});
    const auto half = TinyGguf(base_, weights::Format::kBF16).make();
    write_bytes(folder_ / "half.gguf", {reinterpret_cast<const char*>(half.data()), half.size()});
    make_adapter();
    write_hf_directory(merged_, folder_ / "merged");
    write_adapter(config_, halves_, "adapter");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Halves for every projection of the model, and the model with them merged in.
  void make_adapter() {
    merged_ = base_;
    for (TinyTensor& tensor : merged_.tensors) {
      const size_t at = tensor.name.find("_proj.weight");
      if (at == std::string::npos) continue;
      const std::string module = "base_model.model." + tensor.name.substr(0, at) + "_proj";
      TinyTensor a = {module + ".lora_A.weight", {kRank, tensor.columns()}, {}};
      TinyTensor b = {module + ".lora_B.weight", {tensor.rows(), kRank}, {}};
      a.values = tiny_values(a.name, static_cast<size_t>(kRank * a.columns()), 0.2F, 0);
      b.values = tiny_values(b.name, static_cast<size_t>(kRank * b.rows()), 0.2F, 0);
      for (int64_t row = 0; row < tensor.rows(); ++row) {
        for (int64_t column = 0; column < tensor.columns(); ++column) {
          double sum = 0;
          for (int64_t r = 0; r < kRank; ++r)
            sum += static_cast<double>(b.values[row * kRank + r]) *
                   a.values[r * tensor.columns() + column];
          tensor.values[row * tensor.columns() + column] +=
              static_cast<float>(sum * kAlpha / kRank);
        }
      }
      halves_.push_back(std::move(a));
      halves_.push_back(std::move(b));
    }
    // Among them the keys that PEFT writes with values other than null, false or nothing.
    config_ = *parse_json(R"({"peft_type":"LORA","r":3,"lora_alpha":6,"bias":"none",
        "target_modules":["q_proj"],"task_type":"CAUSAL_LM","use_dora":false,"rank_pattern":{},
        "megatron_core":"megatron.core","qalora_group_size":16,"init_lora_weights":true,
        "peft_version":"0.21.2","layer_replication":null,"loftq_config":{},"lora_dropout":0.1})");
  }

  void write_adapter(const JsonValue& config, const std::vector<TinyTensor>& halves,
                     const std::string& name) {
    std::filesystem::create_directories(folder_ / name);
    write_bytes(folder_ / name / "adapter_config.json", config.dump());
    write_bytes(folder_ / name / "adapter_model.safetensors", make_safetensors(halves));
  }

  // The same adapter as a GGUF.
  void write_gguf_adapter(const std::string& name) {
    constexpr std::string_view kRoot = "base_model.model.";
    weights::GgufWriter writer;
    writer.add_string("general.type", "adapter");
    writer.add_string("general.architecture", "llama");
    writer.add_string("adapter.type", "lora");
    writer.add_f32("adapter.lora.alpha", kAlpha);
    for (const TinyTensor& half : halves_) {
      const size_t end = half.name.find(".lora_");
      const std::string module = half.name.substr(kRoot.size(), end - kRoot.size());
      const bool is_b = half.name.find(".lora_B.") != std::string::npos;
      const bool adjacent = base_.architecture() == "LlamaForCausalLM" &&
                            (module.ends_with("q_proj") || module.ends_with("k_proj"));
      const int64_t head_dim = *base_.config().find("hidden_size")->as_integer() /
                               *base_.config().find("num_attention_heads")->as_integer();
      writer.add_matrix(gguf_tensor_name(module, false) + ".weight.lora_" + (is_b ? "b" : "a"),
                        weights::Format::kF32, half.rows(), half.columns(),
                        is_b && adjacent ? adjacent_rows(half, head_dim) : half.values);
    }
    const auto bytes = writer.finish();
    write_bytes(folder_ / name, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }

  std::unique_ptr<Model> load(const std::string& name, const std::string& isa, Numerics numerics) {
    auto model = load_model((folder_ / name).string(),
                            {.numerics = numerics, .threads = 2, .max_rows = 64, .isa = isa});
    EXPECT_TRUE(model) << model.error().message;
    return model ? std::move(*model) : nullptr;
  }
  Result<int32_t> load_adapter(Model& model, const std::string& name) {
    return model.load_adapter(name, (folder_ / name).string());
  }

  std::filesystem::path folder_;
  TinyCheckpoint base_;
  TinyCheckpoint merged_;
  std::vector<TinyTensor> halves_;
  JsonValue config_;
};

std::vector<float> logits_of(Model& model, int32_t adapter, const std::vector<int32_t>& tokens) {
  auto runner = SequenceRunner::create(model, 1, 128);
  runner->set_adapter(0, adapter);
  const auto logits = runner->append(0, tokens);
  EXPECT_TRUE(logits);
  return logits ? *logits : std::vector<float>();
}

TEST_P(AdapterTest, EqualsMergedWeightsAndLeavesOtherRowsAlone) {
  const auto tokens = random_tokens(40, 131, 21);
  for (const std::string& isa : machine_isas()) {
    const auto merged = load("merged", isa, Numerics::kExact);
    const auto expected = logits_of(*merged, -1, tokens);
    for (const std::string file : {"base", "base.gguf"}) {
      const auto model = load(file, isa, Numerics::kExact);
      const auto plain = logits_of(*model, -1, tokens);
      const auto adapter = load_adapter(*model, "adapter");
      ASSERT_TRUE(adapter) << adapter.error().message;
      EXPECT_EQ(*adapter, 0);
      EXPECT_EQ(model->adapters()[0].rank, kRank);
      EXPECT_EQ(model->find_adapter("adapter"), 0);
      EXPECT_EQ(model->find_adapter("other"), std::nullopt);
      const auto adapted = logits_of(*model, 0, tokens);
      ASSERT_EQ(adapted.size(), expected.size());
      double worst = 0;
      double moved = 0;
      for (size_t i = 0; i < adapted.size(); ++i) {
        worst = std::max(worst, std::abs(static_cast<double>(adapted[i]) - expected[i]));
        moved = std::max(moved, std::abs(static_cast<double>(adapted[i]) - plain[i]));
      }
      EXPECT_LT(worst, 2e-4) << isa << " " << file;
      EXPECT_GT(moved, 0.1);
      const auto again = logits_of(*model, -1, tokens);
      EXPECT_EQ(std::memcmp(again.data(), plain.data(), plain.size() * sizeof(float)), 0);
    }
  }
}

TEST_P(AdapterTest, AGgufAdapterIsTheSameAdapterBitForBit) {
  write_gguf_adapter("adapter.gguf");
  const auto tokens = random_tokens(40, 131, 23);
  for (const std::string file : {"base", "base.gguf"}) {
    const auto model = load(file, "", Numerics::kExact);
    ASSERT_TRUE(load_adapter(*model, "adapter"));
    const auto second = load_adapter(*model, "adapter.gguf");
    ASSERT_TRUE(second) << second.error().message;
    const auto expected = logits_of(*model, 0, tokens);
    const auto logits = logits_of(*model, *second, tokens);
    ASSERT_EQ(logits.size(), expected.size());
    EXPECT_EQ(std::memcmp(logits.data(), expected.data(), expected.size() * sizeof(float)), 0)
        << file;
    EXPECT_EQ(model->adapters()[0].bytes, model->adapters()[1].bytes);
  }
}

TEST_P(AdapterTest, RowsWithAndWithoutOneShareAPassBitForBit) {
  const auto tokens = random_tokens(21, 131, 22);
  using Kind = std::pair<const char*, Numerics>;
  for (const std::string& isa : machine_isas()) {
    for (const auto& [file, numerics] :
         {Kind{"base", Numerics::kExact}, Kind{"base", Numerics::kFast},
          Kind{"half.gguf", Numerics::kFast}}) {
      const auto model = load(file, isa, numerics);
      const auto plain = logits_of(*model, -1, tokens);
      ASSERT_TRUE(load_adapter(*model, "adapter"));
      const auto adapted = logits_of(*model, 0, tokens);
      auto runner = SequenceRunner::create(*model, 3, 64);
      runner->set_adapter(0, 0);
      runner->set_adapter(2, 0);
      const std::vector<int32_t> indices = {0, 1, 2};
      const std::vector<std::vector<int32_t>> chunks(3, tokens);
      const auto logits = runner->append_batch(indices, chunks);
      ASSERT_TRUE(logits) << logits.error().message;
      for (size_t i = 0; i < 3; ++i) {
        const auto& expected = i == 1 ? plain : adapted;
        EXPECT_EQ(std::memcmp(logits->data() + i * plain.size(), expected.data(),
                              plain.size() * sizeof(float)),
                  0)
            << isa << " sequence " << i;
      }
    }
  }
}

TEST_P(AdapterTest, AdaptersThatDoNotFitAreRefusedByName) {
  const auto model = load("base", "scalar", Numerics::kExact);
  const auto refused = [&](const std::string& word, const std::string& code) {
    const auto loaded = load_adapter(*model, "broken");
    ASSERT_FALSE(loaded) << word;
    EXPECT_EQ(loaded.error().status, 400);
    EXPECT_EQ(loaded.error().code, code) << loaded.error().message;
    EXPECT_NE(loaded.error().message.find(word), std::string::npos) << loaded.error().message;
  };
  JsonValue config = config_;
  config.set("use_dora", JsonValue::boolean(true));
  write_adapter(config, halves_, "broken");
  refused("use_dora", "unsupported_adapter");
  config = config_;
  config.set("init_lora_weights", JsonValue::string("pissa"));
  write_adapter(config, halves_, "broken");
  refused("pissa", "unsupported_adapter");
  auto halves = halves_;
  halves.pop_back();
  write_adapter(config_, halves, "broken");
  refused("half", "invalid_adapter");
  halves = halves_;
  halves[0].shape = {halves[0].columns(), kRank};
  write_adapter(config_, halves, "broken");
  refused("does not fit", "invalid_adapter");
  halves = halves_;
  halves[0].name = "base_model.model.model.embed_tokens.lora_embedding_A";
  write_adapter(config_, halves, "broken");
  refused("embed_tokens", "unsupported_adapter");
  EXPECT_TRUE(model->adapters().empty());
  ASSERT_TRUE(load_adapter(*model, "adapter"));
  const auto twice = load_adapter(*model, "adapter");
  ASSERT_FALSE(twice);
  EXPECT_EQ(twice.error().code, "adapter_exists");
}

INSTANTIATE_TEST_SUITE_P(Families, AdapterTest, testing::Values("llama2", "qwen3", "phi3"));

}  // namespace
}  // namespace tandem::model
