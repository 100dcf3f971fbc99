// Every architecture, from both kinds of files: logits against transformers at every position, and
// the same bits however a sequence is fed, beyond every window.
#include <cmath>
#include <cstring>

#include "model/model_test_support.h"
#include "model/page_groups.h"
#include "model/sequence_runner.h"
#include "model/tiny_checkpoint.h"
#include "numerics/error.h"

namespace tandem::model {
namespace {

constexpr double kTolerance = 2e-5;  // of the position's largest |logit|

constexpr const char* kCases[] = {
    "llama2", "llama3",        "mistral", "qwen2",      "qwen2-window", "qwen3",   "gemma2",
    "gemma3", "gemma3-linear", "phi3",    "phi3-short", "phi3-long",    "smollm3", "olmo2"};

TinyCheckpoint read_case(const std::string& name) {
  TinyCheckpoint checkpoint =
      read_tiny_checkpoint(source_path("tests/golden/families/" + name + ".json"));
  EXPECT_FALSE(checkpoint.tensors.empty()) << name;
  return checkpoint;
}

int32_t served_context(const TinyCheckpoint& checkpoint) {
  return static_cast<int32_t>(*checkpoint.document.find("served_context")->as_integer());
}

std::vector<int32_t> prompt_of(const TinyCheckpoint& checkpoint) {
  std::vector<int32_t> tokens;
  for (const JsonValue& id : checkpoint.document.find("prompt")->items())
    tokens.push_back(static_cast<int32_t>(*id.as_integer()));
  return tokens;
}

// A directory that disappears with the object.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "tandem-families-XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// The case as files of one kind.
class Files {
 public:
  Files(const TinyCheckpoint& checkpoint, bool gguf) {
    if (gguf) {
      const auto bytes = TinyGguf(checkpoint).make();
      write_bytes(folder_.path() / "model.gguf",
                  {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
      path_ = (folder_.path() / "model.gguf").string();
    } else {
      write_hf_directory(checkpoint, folder_.path());
      path_ = folder_.path().string();
    }
  }
  const std::string& path() const { return path_; }

 private:
  TemporaryDirectory folder_;
  std::string path_;
};

std::vector<bool> kinds_of(const std::string& name) {
  // GGUF has no words for windows in a Qwen2.
  return name == "qwen2-window" ? std::vector<bool>{false} : std::vector<bool>{false, true};
}

// All logits of `tokens`, fed in chunks.
std::vector<float> run(Model& model, std::span<const int32_t> tokens, int32_t chunk) {
  auto runner = SequenceRunner::create(model, 1, static_cast<int32_t>(tokens.size()));
  std::vector<float> all;
  for (size_t begin = 0; begin < tokens.size(); begin += static_cast<size_t>(chunk)) {
    const size_t count = std::min(tokens.size() - begin, static_cast<size_t>(chunk));
    const auto logits = runner->append(0, tokens.subspan(begin, count));
    if (!logits) {
      ADD_FAILURE() << logits.error().message;
      return all;
    }
    all.insert(all.end(), logits->begin(), logits->end());
  }
  return all;
}

double worst_difference(const TinyCheckpoint& checkpoint, const std::vector<float>& logits,
                        size_t vocab) {
  double worst = 0;
  const auto& rows = checkpoint.document.find("logits")->items();
  for (size_t position = 0; position < rows.size(); ++position) {
    const std::span<const float> row = std::span(logits).subspan(position * vocab, vocab);
    const double peak = *rows[position].items()[0].as_double();
    const auto compare = [&](double actual, double expected) {
      const double difference = std::abs(actual - expected) / peak;
      worst = difference <= worst ? worst : difference;  // keeps NaN
    };
    float largest = 0;
    for (const float value : row) largest = std::max(largest, std::abs(value));
    compare(largest, peak);
    compare(numerics::log_sum_exp(row), *rows[position].items()[1].as_double());
    for (const auto& [index, value] : rows[position].items()[2].members())
      compare(row[static_cast<size_t>(std::stoi(index))], *value.as_double());
  }
  return worst;
}

class FamiliesTest : public testing::TestWithParam<const char*> {};

TEST_P(FamiliesTest, MatchesTransformersAtEveryPositionAndInstructionSet) {
  const TinyCheckpoint checkpoint = read_case(GetParam());
  const auto tokens = prompt_of(checkpoint);
  for (const bool gguf : kinds_of(GetParam())) {
    const Files files(checkpoint, gguf);
    for (const std::string& isa : machine_isas()) {
      const auto model = load_model(files.path(), {.numerics = Numerics::kExact,
                                                   .threads = 1,
                                                   .max_rows = 32,
                                                   .served_context = served_context(checkpoint),
                                                   .isa = isa});
      ASSERT_TRUE(model) << model.error().message;
      const auto vocab = static_cast<size_t>((*model)->config().vocab);
      const auto logits = run(**model, tokens, 32);
      ASSERT_EQ(logits.size(), tokens.size() * vocab);
      const double worst = worst_difference(checkpoint, logits, vocab);
      EXPECT_LE(worst, kTolerance) << isa << (gguf ? " from GGUF" : " from safetensors");
      std::printf("  %s %s: largest difference %.2e of the largest logit\n", isa.c_str(),
                  gguf ? "gguf" : "safetensors", worst);
    }
  }
}

TEST_P(FamiliesTest, FeedingASequenceDifferentlyDoesNotChangeABit) {
  const TinyCheckpoint checkpoint = read_case(GetParam());
  const auto tokens = prompt_of(checkpoint);
  const auto count = static_cast<int32_t>(tokens.size());
  const Files files(checkpoint, kinds_of(GetParam()).back());
  for (const std::string& isa : machine_isas()) {
    for (const Numerics numerics : {Numerics::kExact, Numerics::kFast}) {
      const auto model = load_model(
          files.path(), {.numerics = numerics, .threads = 2, .max_rows = 3 * count, .isa = isa});
      ASSERT_TRUE(model) << model.error().message;
      const auto alone = load_model(
          files.path(), {.numerics = numerics, .threads = 1, .max_rows = count, .isa = isa});
      ASSERT_TRUE(alone) << alone.error().message;
      const auto whole = run(**alone, tokens, count);  // with one thread; the others with two
      for (const int32_t chunk : {1, 7, 40}) {
        const auto parts = run(**model, tokens, chunk);
        ASSERT_EQ(parts.size(), whole.size());
        EXPECT_EQ(std::memcmp(parts.data(), whole.data(), whole.size() * sizeof(float)), 0)
            << isa << " chunk " << chunk;
      }
      // Three sequences side by side, at different places, one rolled back and fed again.
      auto runner = SequenceRunner::create(**model, 3, count);
      const auto vocab = whole.size() / tokens.size();
      for (int32_t i = 0; i < 3; ++i)
        ASSERT_TRUE(runner->append(i, std::span(tokens).first(static_cast<size_t>(20 + 5 * i))));
      runner->truncate(1, 13);
      const std::vector<int32_t> indices = {2, 0, 1};
      std::vector<std::vector<int32_t>> rest;
      for (const int32_t i : indices)
        rest.emplace_back(tokens.begin() + runner->length(i), tokens.end());
      const std::vector<int32_t> begins = {runner->length(2), runner->length(0), runner->length(1)};
      const auto logits = runner->append_batch(indices, rest);
      ASSERT_TRUE(logits) << logits.error().message;
      const float* at = logits->data();
      for (size_t i = 0; i < 3; ++i) {
        const size_t size = rest[i].size() * vocab;
        EXPECT_EQ(std::memcmp(at, whole.data() + static_cast<size_t>(begins[i]) * vocab,
                              size * sizeof(float)),
                  0)
            << isa << " sequence " << indices[i];
        at += size;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, FamiliesTest, testing::ValuesIn(kCases), [](const auto& info) {
  std::string name = info.param;
  std::ranges::replace(name, '-', '_');
  return name;
});

TEST(Families, PageGroupsAreOfOneSizeAndHoldEveryLayerOnce) {
  const std::vector<int32_t> gemma = {512, 512, 512, 512, 512, 0,   512, 512, 512,
                                      512, 512, 0,   512, 512, 512, 512, 512, 0};
  const PageGroups dealt = deal_page_groups(gemma);
  ASSERT_EQ(dealt.groups.size(), 6U);
  EXPECT_EQ(dealt.layers_per_group, 3);
  EXPECT_EQ(dealt.groups[0].window, 0);
  EXPECT_EQ(dealt.groups[0].layers, (std::vector<int32_t>{5, 11, 17}));
  std::vector<int32_t> seen(gemma.size());
  for (size_t g = 0; g < dealt.groups.size(); ++g) {
    ASSERT_EQ(dealt.groups[g].layers.size(), 3U);
    for (size_t slot = 0; slot < 3; ++slot) {
      const int32_t layer = dealt.groups[g].layers[slot];
      ++seen[layer];
      EXPECT_EQ(gemma[layer], dealt.groups[g].window);
      EXPECT_EQ(dealt.places[layer].group, static_cast<int32_t>(g));
      EXPECT_EQ(dealt.places[layer].slot, static_cast<int32_t>(slot));
    }
  }
  EXPECT_EQ(seen, std::vector<int32_t>(gemma.size(), 1));
  EXPECT_EQ(deal_page_groups(std::vector<int32_t>{0, 0, 0}).groups.size(), 1U);
  EXPECT_EQ(deal_page_groups(std::vector<int32_t>{0, 7, 7}).groups.size(), 3U);
}

TEST_P(FamiliesTest, PagesAreKnownBeforeTheModelIsLoaded) {
  const Files files(read_case(GetParam()), false);
  const auto checkpoint = weights::Checkpoint::open(files.path());
  ASSERT_TRUE(checkpoint);
  for (const Numerics numerics : {Numerics::kExact, Numerics::kFast}) {
    const auto model = load_model(files.path(), {.numerics = numerics, .max_rows = 8, .isa = ""});
    const auto pages = read_model_pages(*checkpoint, default_kv_dtype(numerics), 16);
    ASSERT_TRUE(model && pages);
    EXPECT_EQ(pages->layout, (*model)->page_layout(16));
    const auto groups = (*model)->page_groups();
    ASSERT_EQ(pages->groups.size(), groups.size());
    for (size_t i = 0; i < groups.size(); ++i) {
      EXPECT_EQ(pages->groups[i].window, groups[i].window);
      EXPECT_EQ(pages->groups[i].layers, groups[i].layers);
    }
  }
}

TEST(Families, LongRopeTakesItsTableByTheServedContextAndTheNumericPathNamesIt) {
  const TinyCheckpoint checkpoint = read_case("phi3-long");
  const auto tokens = prompt_of(checkpoint);
  for (const bool gguf : {false, true}) {
    const Files files(checkpoint, gguf);
    std::vector<std::vector<float>> logits;
    std::vector<std::string> paths;
    const int32_t original = static_cast<int32_t>(*checkpoint.config()
                                                       .find("rope_parameters")
                                                       ->find("original_max_position_embeddings")
                                                       ->as_integer());
    for (const int32_t served : {original, original + 1, 0}) {
      const auto model = load_model(
          files.path(),
          {.numerics = Numerics::kExact, .max_rows = 16, .served_context = served, .isa = ""});
      ASSERT_TRUE(model) << model.error().message;
      logits.push_back(run(**model, std::span(tokens).first(16), 16));
      paths.push_back((*model)->numeric_path());
    }
    EXPECT_NE(logits[0], logits[1]);
    EXPECT_EQ(logits[1], logits[2]);
    EXPECT_EQ(paths[0] + "-long", paths[1]);
    EXPECT_EQ(paths[1], paths[2]);
  }
}

TEST(Families, KeysThatAConfigurationLeavesOutHaveTheFamilysOwnValues) {
  const auto config_of = [](const std::string& name, const JsonValue& changes) {
    TinyCheckpoint checkpoint = read_case(name);
    JsonValue config = JsonValue::object();
    for (const auto& [key, value] : checkpoint.config().members()) {
      if (changes.find(key) == nullptr) config.set(key, value);
    }
    for (const auto& [key, value] : changes.members()) {
      if (!value.is_string() || value.as_string() != "absent") config.set(key, value);
    }
    checkpoint.document.set("config", config);
    const Files files(checkpoint, false);
    const auto opened = weights::Checkpoint::open(files.path());
    const auto read = read_model_config(*opened);
    EXPECT_TRUE(read) << read.error().message;
    return read ? *read : ModelConfig();
  };
  const JsonValue absent = JsonValue::string("absent");
  const JsonValue context = JsonValue::integer(8192);
  EXPECT_EQ(config_of("mistral", JsonValue::object({{"sliding_window", absent},
                                                    {"layer_types", absent},
                                                    {"max_position_embeddings", context}}))
                .window,
            4096);
  EXPECT_EQ(config_of("mistral", JsonValue::object({{"sliding_window", JsonValue()},
                                                    {"layer_types", absent},
                                                    {"max_position_embeddings", context}}))
                .window,
            0);
  EXPECT_EQ(config_of("qwen2-window",
                      JsonValue::object({{"layer_types", absent}, {"use_sliding_window", absent}}))
                .window,
            0);
  EXPECT_EQ(
      config_of("qwen2-window", JsonValue::object({{"layer_types", absent},
                                                   {"sliding_window", absent},
                                                   {"max_window_layers", JsonValue::integer(1)},
                                                   {"max_position_embeddings", context}}))
          .window,
      4096);
  EXPECT_EQ(config_of("smollm3", JsonValue::object({{"rope_parameters", absent}})).rope_theta,
            2e6F);
}

TEST(Families, APassThatLacksAPageOfItsWindowIsRefused) {
  const Files files(read_case("mistral"), false);
  const auto model = load_model(
      files.path(), {.numerics = Numerics::kExact, .threads = 1, .max_rows = 64, .isa = ""});
  ASSERT_TRUE(model) << model.error().message;
  const auto runner = SequenceRunner::create(**model, 1, 128);
  const std::vector<int32_t> tokens = {5};
  std::vector<int32_t> pages = {0, 1, 2, 3, 4, 5};
  const auto forward = [&] {
    const ops::SequenceRows rows = {
        .first_row = 0, .row_count = 1, .first_position = 87, .pages = pages};
    std::vector<float> logits(static_cast<size_t>((*model)->config().vocab));
    return (*model)->forward(
        {.tokens = tokens, .sequences = std::span(&rows, 1), .logit_rows = {}, .layer_done = {}},
        runner->pages(), logits);
  };
  EXPECT_TRUE(forward());
  pages[0] = pages[1] = pages[2] = -1;  // positions 0 .. 47; the row at 87 sees 48 .. 87
  EXPECT_TRUE(forward());
  pages[3] = -1;
  EXPECT_FALSE(forward());
}

TEST(Families, ConfigurationsThatSayMoreThanIsKnownAreRefusedByName) {
  const auto refused = [](const std::string& name, const std::string& key, JsonValue value,
                          const std::string& word) {
    TinyCheckpoint checkpoint = read_case(name);
    checkpoint.document.find("config")->set(key, std::move(value));
    const Files files(checkpoint, false);
    const auto model = load_model(files.path(), {.isa = "scalar"});
    ASSERT_FALSE(model) << key;
    EXPECT_EQ(model.error().status, 400);
    EXPECT_NE(model.error().message.find(word), std::string::npos) << model.error().message;
  };
  refused("llama2", "num_experts", JsonValue::integer(8), "num_experts");
  refused("llama2", "hidden_act", JsonValue::string("relu2"), "hidden_act");
  refused("llama2", "rms_norm_eps", JsonValue::string("small"), "rms_norm_eps");
  refused("llama2", "num_key_value_heads", JsonValue::integer(3), "num_key_value_heads");
  refused("llama2", "quantization_config", JsonValue::object({{"bits", JsonValue::integer(4)}}),
          "quantization_config");
  refused("llama2", "architectures", JsonValue::array({JsonValue::string("MambaForCausalLM")}),
          "MambaForCausalLM");
  refused("llama3", "rope_parameters",
          JsonValue::object(
              {{"rope_type", JsonValue::string("dynamic")}, {"factor", JsonValue::integer(2)}}),
          "dynamic");
  refused("qwen2", "rope_parameters",
          JsonValue::object({{"rope_type", JsonValue::string("default")},
                             {"mrope_section", JsonValue::array({JsonValue::integer(2)})}}),
          "mrope_section");
  refused("phi3-long", "rope_parameters",
          JsonValue::object({{"rope_type", JsonValue::string("longrope")},
                             {"long_factor", JsonValue::array({JsonValue::integer(2)})},
                             {"short_factor", JsonValue::array({JsonValue::integer(2)})},
                             {"original_max_position_embeddings", JsonValue::integer(64)}}),
          "pairs");
  refused("gemma3", "layer_types",
          JsonValue::array(std::vector<JsonValue>(6, JsonValue::string("chunked_attention"))),
          "chunked_attention");
  refused("gemma2", "intermediate_size", JsonValue::integer(96), "gate_proj");
  // The text part of a model with images, quantized.
  TinyCheckpoint images = read_case("gemma3");
  images.document.set(
      "config",
      JsonValue::object({{"architectures",
                          JsonValue::array({JsonValue::string("Gemma3ForConditionalGeneration")})},
                         {"text_config", images.config()},
                         {"quantization_config",
                          JsonValue::object({{"quant_method", JsonValue::string("int8")}})}}));
  const Files quantized(images, false);
  const auto refusal = load_model(quantized.path(), {.isa = "scalar"});
  ASSERT_FALSE(refusal);
  EXPECT_NE(refusal.error().message.find("quantization_config"), std::string::npos);
  // A window that GGUF's Qwen2 does not have.
  const Files files(read_case("qwen2-window"), true);
  const auto model = load_model(files.path(), {.isa = "scalar"});
  ASSERT_FALSE(model);
  EXPECT_NE(model.error().message.find("qwen2.attention.sliding_window"), std::string::npos);
}

}  // namespace
}  // namespace tandem::model
