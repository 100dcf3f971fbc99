// Exact mode against transformers: committed goldens made by scripts/reference/logits.py.
#include <cmath>
#include <cstring>

#include "model/model_test_support.h"
#include "model/sequence_runner.h"
#include "numerics/digest.h"
#include "numerics/error.h"

namespace tandem::model {
namespace {

constexpr double kTolerance = 1e-4;  // of the position's largest |logit|

struct Sample {
  int32_t index;
  float value;
};

struct Golden {
  int32_t vocab = 0;
  int32_t samples = 0;
  std::vector<int32_t> tokens;
  std::vector<float> peaks;  // largest |logit| by position
  std::vector<float> log_sum_exps;
  std::vector<Sample> values;  // [position][samples]
};

template <typename T>
bool read(std::ifstream& file, T* out, size_t count) {
  return static_cast<bool>(
      file.read(reinterpret_cast<char*>(out), static_cast<std::streamsize>(count * sizeof(T))));
}

Golden read_golden(const std::string& name) {
  Golden golden;
  std::ifstream file(source_path("tests/golden/logits/" + name + ".golden"), std::ios::binary);
  char magic[4] = {};
  int32_t positions = 0;
  if (!read(file, magic, 4) || std::memcmp(magic, "TGL1", 4) != 0 || !read(file, &positions, 1) ||
      !read(file, &golden.vocab, 1) || !read(file, &golden.samples, 1)) {
    ADD_FAILURE() << "cannot read the golden of " << name;
    return golden;
  }
  golden.tokens.resize(positions);
  golden.peaks.resize(positions);
  golden.log_sum_exps.resize(positions);
  golden.values.resize(static_cast<size_t>(positions) * golden.samples);
  bool ok = read(file, golden.tokens.data(), golden.tokens.size());
  for (int32_t i = 0; i < positions; ++i) {
    ok = ok && read(file, &golden.peaks[i], 1) && read(file, &golden.log_sum_exps[i], 1) &&
         read(file, golden.values.data() + static_cast<size_t>(i) * golden.samples, golden.samples);
  }
  EXPECT_TRUE(ok) << "the golden of " << name << " is cut short";
  return golden;
}

std::string recorded_sha256(const std::string& name) {
  std::ifstream file(source_path("tests/golden/logits/" + name + ".json"));
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::string key = "\"model_sha256\": \"";
  const size_t at = text.find(key);
  return at == std::string::npos ? "" : text.substr(at + key.size(), 64);
}

// Feeds the golden's tokens in chunks of `chunk` and compares every position.
void check(const std::string& path, const Golden& golden, const std::string& isa, int32_t chunk) {
  auto model =
      load_model(path, {.numerics = Numerics::kExact, .threads = 1, .max_rows = chunk, .isa = isa});
  ASSERT_TRUE(model) << model.error().message;
  ASSERT_EQ((*model)->config().vocab, golden.vocab);
  const auto positions = static_cast<int32_t>(golden.tokens.size());
  auto runner = SequenceRunner::create(**model, 1, positions);
  ASSERT_TRUE(runner);
  const auto vocab = static_cast<size_t>(golden.vocab);
  double worst = 0;
  for (int32_t begin = 0; begin < positions; begin += chunk) {
    const int32_t count = std::min(chunk, positions - begin);
    const auto logits = runner->append(0, std::span(golden.tokens).subspan(begin, count));
    ASSERT_TRUE(logits) << logits.error().message;
    for (int32_t i = 0; i < count; ++i) {
      const int32_t position = begin + i;
      const std::span<const float> row = std::span(*logits).subspan(i * vocab, vocab);
      const double peak = golden.peaks[position];
      double difference = std::abs(numerics::log_sum_exp(row) - golden.log_sum_exps[position]);
      float largest = 0;
      for (const float value : row) largest = std::max(largest, std::abs(value));
      difference = std::max(difference, std::abs(static_cast<double>(largest) - peak));
      for (int32_t s = 0; s < golden.samples; ++s) {
        const Sample& sample = golden.values[static_cast<size_t>(position) * golden.samples + s];
        difference =
            std::max(difference, std::abs(static_cast<double>(row[sample.index]) - sample.value));
      }
      ASSERT_LE(difference, kTolerance * peak) << isa << " position " << position;
      worst = std::max(worst, difference / peak);
    }
  }
  testing::Test::RecordProperty("worst_" + isa, std::to_string(worst));
  std::printf("  %s: largest difference %.2e of the largest logit\n", isa.c_str(), worst);
}

TEST(GoldenLogits, TinyModelsMatchTransformersAtEveryPositionAndInstructionSet) {
  for (const TinyLlama& spec : golden_tiny_llamas()) {
    const Golden golden = read_golden(spec.name);
    ASSERT_EQ(golden.tokens.size(), 600U);
    const auto bytes = make_tiny_llama(spec);
    ASSERT_EQ(numerics::to_hex(numerics::sha256(bytes)), recorded_sha256(spec.name))
        << spec.name
        << ": the generator's bytes changed; run `make reference` and commit the new goldens";
    const TemporaryFile file(bytes);
    for (const std::string& isa : machine_isas()) check(file.path(), golden, isa, 128);
  }
}

TEST(GoldenLogits, SmolLm2MatchesTransformersAtEveryPositionAndInstructionSet) {
  if (!std::filesystem::exists(smollm2_path())) {
    GTEST_SKIP() << "models/smollm2-135m-instruct.Q4_1.gguf is absent; run scripts/fetch-model.sh "
                    "smollm2-135m";
  }
  const Golden golden = read_golden("smollm2-135m");
  ASSERT_EQ(golden.tokens.size(), 600U);
  for (const std::string& isa : machine_isas()) check(smollm2_path(), golden, isa, 128);
}

// 1200 positions: more than two windows of 512.
TEST(GoldenLogits, Gemma3MatchesTransformersBeyondItsWindows) {
  if (!std::filesystem::exists(gemma3_path())) {
    GTEST_SKIP() << "models/gemma-3-270m.Q4_K_M.gguf is absent; run scripts/fetch-model.sh "
                    "gemma3-270m";
  }
  const Golden golden = read_golden("gemma3-270m");
  ASSERT_EQ(golden.tokens.size(), 1200U);
  check(gemma3_path(), golden, machine_isas().back(), 128);
}

// Not a check: writes the models and tokens that scripts/reference/make_goldens.sh feeds to
// transformers.
TEST(GoldenLogits, WritesTinyModelsWhenAsked) {
  const char* folder = std::getenv("TANDEM_TINY_MODEL_DIR");
  if (folder == nullptr) GTEST_SKIP() << "TANDEM_TINY_MODEL_DIR is not set";
  for (const TinyLlama& spec : golden_tiny_llamas()) {
    const auto bytes = make_tiny_llama(spec);
    const auto tokens = random_tokens(600, spec.vocab, spec.seed + 100);
    const std::string base = std::string(folder) + "/" + spec.name;
    std::ofstream(base + ".gguf", std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    std::ofstream(base + ".i32", std::ios::binary)
        .write(reinterpret_cast<const char*>(tokens.data()),
               static_cast<std::streamsize>(tokens.size() * 4));
  }
}

}  // namespace
}  // namespace tandem::model
