// The engine over a real architecture: what is read off prompt rows is what generating reads.
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "engine/engine_fixture.h"
#include "model/registry.h"
#include "model/tiny_llama.h"

namespace tandem::engine {
namespace {

class EngineLlama : public EngineTest {
 protected:
  std::unique_ptr<model::Model> wrap(std::unique_ptr<model::Model> /*scripted*/) override {
    model::TinyLlama spec = model::golden_tiny_llamas().front();
    spec.vocab = 257;
    spec.context = 256;
    weights::GgufWriter writer;
    model::write_tiny_llama(spec, writer);
    const std::string path =
        ::testing::TempDir() + "engine-llama-" + std::to_string(getpid()) + ".gguf";
    const auto bytes = writer.finish();
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<long>(bytes.size()));
    model::ModelOptions options;
    options.max_rows = 64;
    auto loaded = model::load_model(path, options);
    EXPECT_TRUE(loaded) << (loaded ? "" : loaded.error().message);
    std::filesystem::remove(path);
    return loaded ? std::move(*loaded) : nullptr;
  }
  protocol::GenerateRequest sampled(const std::string& prompt) const {
    auto asked = request(prompt);
    asked.sampling.temperature = 1;
    asked.sampling.seed = 3;
    asked.sampling.logprobs = 3;
    asked.sampling.ignore_eos = true;
    asked.sampling.max_tokens = 20;
    return asked;
  }
};

TEST_F(EngineLlama, ScoresAndEmbeddingsDoNotDependOnPassesOrCaches) {
  std::string first_scores;
  std::vector<float> first_embedding;
  for (const int32_t chunk : {48, 5, 1}) {
    start(32, EngineOptions{.prefill_chunk = chunk});
    const auto asked = sampled("the beginning of a text");
    const Collected said = run(asked).get();
    ASSERT_FALSE(said.error) << said.error->message;
    auto scored = asked;
    scored.sampling.prompt_logprobs = 3;
    scored.sampling.score_only = true;
    const auto& tokens = said.choices.at(0).tokens;
    scored.prompt.insert(scored.prompt.end(), tokens.begin(), tokens.end());
    const Collected got = run(scored).get();
    ASSERT_TRUE(got.prompt);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto& here = *got.prompt->logprobs[asked.prompt.size() + i];
      const auto& there = said.choices.at(0).logprobs[i];
      EXPECT_EQ(here.chosen.logprob, there.chosen.logprob);
      for (size_t k = 0; k < 3; ++k) EXPECT_EQ(here.top[k].logprob, there.top[k].logprob);
    }
    protocol::EmbedRequest embed;
    embed.prompt = scored.prompt;
    std::promise<Result<Embedding>> promise;
    ASSERT_TRUE(
        engine_->embed(embed, [&](Result<Embedding> e) { promise.set_value(std::move(e)); }));
    const auto embedding = promise.get_future().get();
    ASSERT_TRUE(embedding);
    EXPECT_EQ(embedding->values.size(), static_cast<size_t>(engine_->model().config().hidden));
    if (first_scores.empty()) {
      first_scores = describe(got);
      first_embedding = embedding->values;
    }
    EXPECT_EQ(describe(got), first_scores);
    EXPECT_EQ(embedding->values, first_embedding);
    wait_for_used(0);
  }
}

TEST_F(EngineLlama, ChoicesAreTheSameAloneAndTogether) {
  start(64);
  auto asked = sampled("once upon a time there was");
  asked.sampling.n = asked.sampling.best_of = 4;
  const std::string alone = describe(run(asked).get());
  std::vector<std::future<Collected>> others;
  others.reserve(6);
  for (int i = 0; i < 6; ++i) others.push_back(run(sampled("other " + std::to_string(i))));
  EXPECT_EQ(describe(run(asked).get()), alone);
  for (auto& other : others) (void)other.get();
  wait_for_used(0);
}

}  // namespace
}  // namespace tandem::engine
