// Batch invariance (DESIGN I13): the logits of a sequence are the same bits however it is fed.
#include <cstring>

#include "model/model_test_support.h"
#include "model/sequence_runner.h"

namespace tandem::model {
namespace {

using Logits = std::vector<float>;

ModelOptions options(Numerics numerics, const std::string& isa, int threads, int32_t max_rows) {
  return {.numerics = numerics, .threads = threads, .max_rows = max_rows, .isa = isa};
}

// Feeds `tokens` in chunks; every position's logits in order.
Logits run_chunks(Model& model, const std::vector<int32_t>& tokens, int32_t chunk,
                  int32_t block_tokens = 16) {
  auto runner = SequenceRunner::create(model, 1, static_cast<int32_t>(tokens.size()), block_tokens);
  Logits all;
  for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
    const size_t count = std::min(tokens.size() - begin, static_cast<size_t>(chunk));
    const auto logits = runner->append(0, std::span(tokens).subspan(begin, count));
    if (!logits) {
      ADD_FAILURE() << logits.error().message;
      return all;
    }
    all.insert(all.end(), logits->begin(), logits->end());
  }
  return all;
}

bool same_bits(const Logits& a, const Logits& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct Case {
  Numerics numerics;
  std::string isa;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::string& isa : machine_isas()) {
    all.push_back({Numerics::kExact, isa});
    all.push_back({Numerics::kFast, isa});
    if ((*ops::cpu::select_kernels(isa))->linear_bf16 != nullptr)
      all.push_back({Numerics::kBf16, isa});
  }
  return all;
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  return info.param.isa + (info.param.numerics == Numerics::kExact  ? "_exact"
                           : info.param.numerics == Numerics::kBf16 ? "_bf16"
                                                                    : "_fast");
}

class InvarianceTest : public testing::TestWithParam<Case> {};

TEST_P(InvarianceTest, ChunkSizesAndThreadsDoNotChangeABit) {
  const Case& c = GetParam();
  const int32_t length = c.isa == "scalar" ? 150 : 600;
  for (const TinyLlama& spec : golden_tiny_llamas()) {
    const auto tokens = random_tokens(length, spec.vocab, 9);
    const auto whole_model = load_tiny(spec, options(c.numerics, c.isa, 1, length));
    const Logits whole = run_chunks(*whole_model, tokens, length);
    const auto two_threads = load_tiny(spec, options(c.numerics, c.isa, 2, length));
    for (const int32_t chunk : {1, 7, 64, 256}) {
      ASSERT_TRUE(same_bits(run_chunks(*whole_model, tokens, chunk), whole))
          << spec.name << " chunk " << chunk;
    }
    for (const int32_t chunk : {16, length}) {
      ASSERT_TRUE(same_bits(run_chunks(*two_threads, tokens, chunk), whole))
          << spec.name << " chunk " << chunk << " with two threads";
    }
  }
}

TEST_P(InvarianceTest, ResultsDoNotDependOnTheRestOfTheBatch) {
  const Case& c = GetParam();
  const int32_t length = 90;
  for (const TinyLlama& spec : golden_tiny_llamas()) {
    const auto model = load_tiny(spec, options(c.numerics, c.isa, 2, 256));
    const auto vocab = static_cast<size_t>(spec.vocab);
    std::vector<std::vector<int32_t>> prompts;
    std::vector<Logits> alone;
    for (int32_t i = 0; i < 5; ++i) {
      prompts.push_back(random_tokens(length, spec.vocab, 50 + i));
      alone.push_back(run_chunks(*model, prompts.back(), 256));
    }
    // Sequences join late and move at different speeds: prefill chunks and single tokens share
    // passes.
    auto runner = SequenceRunner::create(*model, 5, length);
    for (int step = 0; step < 400; ++step) {
      std::vector<int32_t> indices;
      std::vector<std::vector<int32_t>> chunks;
      for (int32_t i = 4; i >= 0; --i) {
        const int32_t done = runner->length(i);
        const int32_t count = std::min(length - done, (step + i) % 3 == 0 ? 1 : 1 + 11 * i);
        if (step < 2 * i || count == 0) continue;
        indices.push_back(i);
        chunks.emplace_back(prompts[i].begin() + done, prompts[i].begin() + done + count);
      }
      if (indices.empty()) break;
      std::vector<int32_t> before(5);
      for (int32_t i = 0; i < 5; ++i) before[i] = runner->length(i);
      const auto logits = runner->append_batch(indices, chunks);
      ASSERT_TRUE(logits) << logits.error().message;
      const float* row = logits->data();
      for (size_t s = 0; s < indices.size(); ++s) {
        const size_t size = chunks[s].size() * vocab;
        const float* expected = alone[indices[s]].data() + before[indices[s]] * vocab;
        ASSERT_EQ(std::memcmp(row, expected, size * sizeof(float)), 0)
            << spec.name << " sequence " << indices[s];
        row += size;
      }
    }
    for (int32_t i = 0; i < 5; ++i) EXPECT_EQ(runner->length(i), length);
  }
}

TEST_P(InvarianceTest, ReusedPagesAndRolledBackSequencesEqualColdOnes) {
  const Case& c = GetParam();
  const TinyLlama spec = golden_tiny_llamas()[1];
  const auto model = load_tiny(spec, options(c.numerics, c.isa, 1, 128));
  const auto vocab = static_cast<size_t>(spec.vocab);
  const auto tokens = random_tokens(100, spec.vocab, 3);
  const Logits cold = run_chunks(*model, tokens, 100);
  auto runner = SequenceRunner::create(*model, 1, 128);
  ASSERT_TRUE(
      runner->append(0, random_tokens(120, spec.vocab, 4)));  // leaves other keys and values behind
  runner->truncate(0, 0);
  ASSERT_TRUE(runner->append(0, std::span(tokens).first(60)));
  ASSERT_TRUE(runner->append(0, random_tokens(20, spec.vocab, 5)));  // a rejected draft
  runner->truncate(0, 60);
  const auto rest = runner->append(0, std::span(tokens).subspan(60));
  ASSERT_TRUE(rest);
  EXPECT_EQ(std::memcmp(rest->data(), cold.data() + 60 * vocab, rest->size() * sizeof(float)), 0);
}

TEST_P(InvarianceTest, OnlyRequestedRowsAreComputedAndTheyAreTheSame) {
  const Case& c = GetParam();
  const TinyLlama spec = golden_tiny_llamas()[0];
  const auto model = load_tiny(spec, options(c.numerics, c.isa, 1, 64));
  const auto vocab = static_cast<size_t>(spec.vocab);
  const auto tokens = random_tokens(40, spec.vocab, 6);
  const Logits all = run_chunks(*model, tokens, 40);
  auto runner = SequenceRunner::create(*model, 1, 48);
  const std::vector<int32_t> pages = {0, 1, 2};
  const ops::SequenceRows rows[] = {
      {.first_row = 0, .row_count = 40, .first_position = 0, .pages = pages}};
  const int32_t wanted[] = {3, 17, 39};
  Logits logits(3 * vocab);
  std::vector<int32_t> layers;
  ASSERT_TRUE(model->forward({.tokens = tokens,
                              .sequences = rows,
                              .logit_rows = wanted,
                              .layer_done = [&](int32_t layer) { layers.push_back(layer); }},
                             runner->pages(), logits));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(std::memcmp(logits.data() + i * vocab, all.data() + wanted[i] * vocab,
                          vocab * sizeof(float)),
              0);
  }
  EXPECT_EQ(layers, (std::vector<int32_t>{0, 1, 2}));
}

INSTANTIATE_TEST_SUITE_P(Cases, InvarianceTest, testing::ValuesIn(cases()), case_name);

TEST(Invariance, SmolLm2ChunksAndThreadsDoNotChangeABit) {
  if (!std::filesystem::exists(smollm2_path())) {
    GTEST_SKIP() << "models/smollm2-135m-instruct.Q4_1.gguf is absent; run scripts/fetch-model.sh "
                    "smollm2-135m";
  }
  for (const Numerics numerics : {Numerics::kExact, Numerics::kFast, Numerics::kBf16}) {
    if (numerics == Numerics::kBf16 && (*ops::cpu::select_kernels())->linear_bf16 == nullptr)
      continue;
    const auto load = [&](int threads) {
      return std::move(*load_model(smollm2_path(), options(numerics, "", threads, 300)));
    };
    const auto one = load(1);
    const auto two = load(2);
    const auto tokens = random_tokens(200, 49152, 8);
    const Logits whole = run_chunks(*one, tokens, 200);
    EXPECT_TRUE(same_bits(run_chunks(*two, tokens, 200), whole));
    for (const int32_t chunk : {1, 7, 64}) {
      EXPECT_TRUE(same_bits(run_chunks(chunk % 2 == 0 ? *one : *two, tokens, chunk), whole))
          << chunk;
    }
    EXPECT_TRUE(same_bits(run_chunks(*one, tokens, 64, 64), whole)) << "pages of 64 tokens";
  }
}

}  // namespace
}  // namespace tandem::model
