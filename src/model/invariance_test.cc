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

// Rows of prompts and generated ones in one pass, with numerics of their own: each has the bits
// that it has alone.
TEST(Invariance, PromptsMayHaveOtherNumericsThanWhatFollows) {
  constexpr int32_t kPrompt = 40;
  const TinyLlama spec = golden_tiny_llamas().front();
  const auto load = [&](Numerics numerics, std::optional<Numerics> prompts) {
    ModelOptions all = options(numerics, "", 2, 256);
    all.prompt_numerics = prompts;
    all.kv_dtype = ops::KvDtype::kF32;
    return load_tiny(spec, all);
  };
  const auto model = load(Numerics::kFast, Numerics::kExact);
  const auto exact = load(Numerics::kExact, {});
  const auto fast = load(Numerics::kFast, {});
  EXPECT_NE(model->numeric_path().find("-exact+fast-"), std::string::npos) << model->numeric_path();
  EXPECT_EQ(model->memory().weights, exact->memory().weights + fast->memory().weights);
  const auto vocab = static_cast<size_t>(spec.vocab);
  const auto tokens = random_tokens(kPrompt + 4, spec.vocab, 5);
  const auto prompt = std::span(tokens).first(kPrompt);
  const auto step = [&](int32_t i) { return std::vector<int32_t>{tokens[kPrompt + i]}; };
  const auto same = [&](const Logits& a, size_t row, const Logits& b, size_t other) {
    return std::memcmp(a.data() + row * vocab, b.data() + other * vocab, vocab * sizeof(float)) ==
           0;
  };

  auto alone = SequenceRunner::create(*model, 1, 64);
  alone->set_prompt(0, true);
  const Logits read = *alone->append(0, prompt);
  auto reference = SequenceRunner::create(*exact, 1, 64);
  EXPECT_TRUE(same_bits(read, *reference->append(0, prompt)));
  alone->set_prompt(0, false);
  std::vector<Logits> steps;
  for (int32_t i = 0; i < 4; ++i) steps.push_back(*alone->append(0, step(i)));
  EXPECT_FALSE(same_bits(steps[0], *reference->append(0, step(0)))) << "generated rows are fast";

  // Two that generate, and between them one whose prompt is read in pieces.
  auto mixed = SequenceRunner::create(*model, 3, 64);
  for (const int32_t i : {0, 2}) {
    mixed->set_prompt(i, true);
    ASSERT_TRUE(mixed->append(i, prompt));
    mixed->set_prompt(i, false);
  }
  mixed->set_prompt(1, true);
  const std::vector<int32_t> order = {0, 1, 2};
  for (int32_t i = 0; i < 4; ++i) {
    const auto piece = prompt.subspan(static_cast<size_t>(i) * 10, 10);
    const std::vector<std::vector<int32_t>> chunks = {
        step(i), {piece.begin(), piece.end()}, step(i)};
    const Logits all = *mixed->append_batch(order, chunks);
    EXPECT_TRUE(same(all, 0, steps[static_cast<size_t>(i)], 0)) << i;
    EXPECT_TRUE(same(all, 11, steps[static_cast<size_t>(i)], 0)) << i;
    for (size_t row = 0; row < 10; ++row)
      EXPECT_TRUE(same(all, 1 + row, read, static_cast<size_t>(i) * 10 + row)) << i << " " << row;
  }
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
