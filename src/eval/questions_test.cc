// Data sets scored by a scripted backend and by a model whose likelihoods are known.
#include "eval/questions.h"

#include <atomic>
#include <cmath>
#include <map>

#include "eval/eval_test_support.h"

namespace tandem::eval {
namespace {

using QaTest = EvalTest;
using ChoiceTest = EvalTest;

double number(const JsonValue& json, std::string_view key) {
  const JsonValue* value = json.find(key);
  return value == nullptr ? std::nan("") : value->as_double().value_or(std::nan(""));
}

// Answers by what the prompt ends with.
class ScriptedGenerator final : public Generator {
 public:
  explicit ScriptedGenerator(std::map<std::string, std::string> answers)
      : answers_(std::move(answers)) {}
  Result<Generated> generate(const Prompt& prompt, const Generation&) override {
    ++asked;
    last = prompt;
    const std::string text =
        prompt.messages.is_array() ? prompt.messages.items().back().dump() : prompt.text;
    for (const auto& [when, reply] : answers_) {
      if (text.find(when) != std::string::npos) return Generated{reply, reply.empty()};
    }
    return make_error(500, "no_script", "nothing to say");
  }
  int asked = 0;
  Prompt last;

 private:
  std::map<std::string, std::string> answers_;
};

constexpr const char* kQuestions =
    "{\"question\":\"Q-one\",\"answer\":\"1+1=2 #### 2\"}\n"
    "{\"question\":\"Q-two\",\"answer\":\"#### 1,000\"}\n"
    "{\"question\":\"Q-three\",\"answer\":7}\n"
    "{\"question\":\"Q-four\",\"answer\":\"#### 4\"}\n";

TEST_F(QaTest, CountsExactMatches) {
  ScriptedGenerator generator({{"Q-one", "it is 2"},
                               {"Q-two", "#### 1000.0 and then 5"},
                               {"Q-three", "8"},
                               {"Q-four", ""}});
  QaOptions options;
  options.parallel = 1;
  options.data.data = write("q", kQuestions);
  const auto summary = run_qa(generator, options);
  ASSERT_TRUE(summary) << summary.error().message;
  EXPECT_EQ(number(*summary, "items"), 4);
  EXPECT_EQ(number(*summary, "right"), 2);
  EXPECT_EQ(number(*summary, "accuracy"), 0.5);
  EXPECT_EQ(number(*summary, "without_answer"), 1);
  EXPECT_EQ(number(*summary, "cut"), 1);
  EXPECT_NEAR(*summary->find("accuracy_interval_95")->items()[0].as_double(), 0.150039, 1e-6);
}

TEST_F(QaTest, ExamplesComeFirst) {
  ScriptedGenerator generator({{"Q-four", "4"}});
  QaOptions options;
  options.data.data = write("q", "{\"question\":\"Q-four\",\"answer\":\"#### 4\"}");
  options.data.few_shot = write("f", kQuestions);
  options.data.shots = 2;
  ASSERT_TRUE(run_qa(generator, options));
  EXPECT_EQ(generator.last.text,
            "Question: Q-one\nAnswer: 1+1=2 #### 2\n\nQuestion: Q-two\nAnswer: #### 1,000\n\n"
            "Question: Q-four\nAnswer:");
  options.chat = true;
  options.system = "Be brief.";
  ASSERT_TRUE(run_qa(generator, options));
  ASSERT_EQ(generator.last.messages.items().size(), 6U);
  EXPECT_EQ(generator.last.messages.items()[0].find("content")->as_string(), "Be brief.");
  EXPECT_EQ(generator.last.messages.items()[2].find("role")->as_string(), "assistant");
}

TEST_F(QaTest, ARunThatFailedGoesOnWhereItWas) {
  QaOptions options;
  options.parallel = 1;
  options.data.data = write("q", kQuestions);
  options.data.journal = path("j");
  ScriptedGenerator broken({{"Q-one", "2"}, {"Q-two", "1000"}});
  const auto failed = run_qa(broken, options);
  ASSERT_FALSE(failed);
  EXPECT_NE(failed.error().message.find("q line 3: nothing to say"), std::string::npos);
  ScriptedGenerator mended({{"Q-three", "7"}, {"Q-four", "4"}});
  const auto resumed = run_qa(mended, options);
  ASSERT_TRUE(resumed) << resumed.error().message;
  EXPECT_EQ(mended.asked, 2);
  options.data.journal = "";
  ScriptedGenerator all({{"Q-one", "2"}, {"Q-two", "1000"}, {"Q-three", "7"}, {"Q-four", "4"}});
  EXPECT_EQ(run_qa(all, options)->dump(), resumed->dump());
}

TEST_F(QaTest, AModelInThisProcessAnswers) {
  LoadedModel loaded = bigram_model();
  const auto tokenizer = loaded.tokenizer;
  const int32_t vocab = tokenizer->vocab_size();
  std::vector<int32_t> expected;
  for (int32_t last = tokenizer->encode(":").front(); expected.size() < 12;) {
    int32_t best = 0;
    for (int32_t v = 1; v < vocab; ++v) {
      if (bigram_logit(last, v) > bigram_logit(last, best)) best = v;
    }
    if (tokenizer->is_end_of_generation(best)) break;
    expected.push_back(last = best);
  }
  auto generator = make_local_generator(std::move(loaded), 1 << 20, 64, 4);
  ASSERT_TRUE(generator) << generator.error().message;
  Generation how;
  how.max_tokens = 12;
  const auto generated = (*generator)->generate({"Question:", {}}, how);
  ASSERT_TRUE(generated) << generated.error().message;
  EXPECT_EQ(generated->text, tokenizer->decode(expected));
  const auto chat = (*generator)->generate({"", JsonValue::array()}, how);
  ASSERT_FALSE(chat);
  EXPECT_EQ(chat.error().code, "no_chat_template");
}

TEST_F(ChoiceTest, ScoresAreTheLikelihoodsOfTheContinuation) {
  LoadedModel loaded = bigram_model();
  auto scorer = make_local_scorer(loaded);
  ASSERT_TRUE(scorer);
  const std::string context = "Which is it? Answer:";
  const std::vector<std::string> choices = {" red", " green", " a much longer one"};
  const int64_t before = bigram(loaded).rows;
  const auto scores = (*scorer)->score(context, choices);
  ASSERT_TRUE(scores);
  for (size_t i = 0; i < choices.size(); ++i) {
    const auto ids = loaded.tokenizer->encode(":" + choices[i]);
    double expected = 0;
    for (size_t k = 1; k < ids.size(); ++k)
      expected += bigram_logprob(ids[k - 1], ids[k], loaded.tokenizer->vocab_size());
    EXPECT_NEAR((*scores)[i].logprob, expected, 1e-4) << choices[i];
    EXPECT_EQ((*scores)[i].tokens, static_cast<int32_t>(choices[i].size()));
  }
  // The context is computed once.
  EXPECT_LT(bigram(loaded).rows - before, 60);
  // The same again after another text: nothing is left over.
  ASSERT_TRUE((*scorer)->score("Something else:", choices));
  EXPECT_EQ((*scorer)->score(context, choices)->at(1).logprob, (*scores)[1].logprob);
  const auto beyond = (*scorer)->score(std::string(300, 'x'), choices);
  ASSERT_FALSE(beyond);
  EXPECT_NE(beyond.error().message.find("maximum context length is 256 tokens"), std::string::npos);
}

TEST_F(ChoiceTest, ATextBeyondTheRoomMadeForItIsRefusedThoughTheModelCouldReadIt) {
  LoadedModel loaded = bigram_model();
  auto scorer = make_local_scorer(loaded, 32);
  ASSERT_TRUE(scorer);
  const std::vector<std::string> choices = {"yes"};
  const std::string fits(29, 'x');
  ASSERT_TRUE((*scorer)->score(fits, choices));
  const auto beyond = (*scorer)->score(fits + "x", choices);
  ASSERT_FALSE(beyond);
  EXPECT_EQ(beyond.error().code, "context_length_exceeded");
  EXPECT_NE(beyond.error().message.find("within 32 tokens"), std::string::npos);
  EXPECT_NE(beyond.error().message.find("have 33"), std::string::npos);
}

class TableScorer final : public Scorer {
 public:
  int32_t parallel() const override { return 3; }
  Result<std::vector<Score>> score(const std::string& context,
                                   std::span<const std::string> continuations) override {
    std::vector<Score> out;
    for (const std::string& continuation : continuations) {
      // "-12 long text" scores -12.
      out.push_back({std::stod(continuation), 1});
    }
    ++asked;
    if (context.find("fail") != std::string::npos) return internal_error("no luck");
    return out;
  }
  std::atomic<int> asked{0};
};

TEST_F(ChoiceTest, ComparesRawAndPerByte) {
  TableScorer scorer;
  DataOptions options;
  options.data =
      write("c",
            "{\"question\":\"a\",\"choices\":[\"-3\",\"-4 but very long indeed\"],\"answer\":0}\n"
            "{\"question\":\"b\",\"choices\":[\"-3\",\"-4 but very long indeed\"],\"answer\":1}\n"
            "{\"question\":\"c\",\"choices\":[\"-5\",\"-2\"],\"answer\":1}\n");
  const auto summary = run_choice(scorer, options);
  ASSERT_TRUE(summary) << summary.error().message;
  EXPECT_NEAR(number(*summary, "accuracy"), 2.0 / 3, 1e-12);
  EXPECT_NEAR(number(*summary, "accuracy_normalized"), 2.0 / 3, 1e-12);
  options.limit = 2;
  EXPECT_EQ(number(*run_choice(scorer, options), "accuracy"), 0.5);
  options.format = "no place";
  EXPECT_FALSE(run_choice(scorer, options));
}

TEST_F(ChoiceTest, AnErrorNamesTheLine) {
  TableScorer scorer;
  DataOptions options;
  options.data = write("c", "\n{\"question\":\"fail\",\"choices\":[\"-3\",\"-4\"],\"answer\":0}\n");
  const auto summary = run_choice(scorer, options);
  ASSERT_FALSE(summary);
  EXPECT_NE(summary.error().message.find("c line 2: no luck"), std::string::npos);
}

TEST(FirstTokenBeyond, TakesTheTokenThatStraddlesTheBorder) {
  const std::vector<int64_t> offsets = {0, 3, 7, 9};
  EXPECT_EQ(first_token_beyond(offsets, 7), 2U);
  EXPECT_EQ(first_token_beyond(offsets, 6), 1U);
  EXPECT_EQ(first_token_beyond(offsets, 20), 3U);
  EXPECT_EQ(first_token_beyond(offsets, 0), 0U);
  EXPECT_EQ(count_characters("h\xC3\xA9\xF0\x9F\x98\x80"), 3);
}

}  // namespace
}  // namespace tandem::eval
