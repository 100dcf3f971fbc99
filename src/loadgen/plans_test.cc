// Arrivals, lengths, datasets, text: the same seed gives the same plan, and plans have the shape
// they promise.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "loadgen/arrivals.h"
#include "loadgen/dataset.h"
#include "loadgen/prompt_text.h"

namespace tandem::loadgen {
namespace {

std::vector<double> gaps_of(const ArrivalOptions& options, int count) {
  Arrivals arrivals(options);
  std::vector<double> gaps;
  double before = 0;
  for (int i = 0; i < count; ++i) {
    const double at = arrivals.next();
    gaps.push_back(at - before);
    before = at;
  }
  return gaps;
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// Deviation over mean: 1 for exponential gaps, 1 / sqrt(shape) for gamma ones.
double variation(const std::vector<double>& values) {
  double squares = 0;
  for (const double value : values) squares += (value - mean(values)) * (value - mean(values));
  return std::sqrt(squares / static_cast<double>(values.size())) / mean(values);
}

TEST(Arrivals, EachProcessHasItsRateAndItsVariation) {
  constexpr int kCount = 4000;
  struct Row {
    ArrivalProcess process;
    double burstiness;
    double variation;
  };
  for (const Row& row : {Row{ArrivalProcess::kConstant, 1, 0}, Row{ArrivalProcess::kPoisson, 1, 1},
                         Row{ArrivalProcess::kGamma, 0.25, 2}, Row{ArrivalProcess::kGamma, 4, 0.5},
                         Row{ArrivalProcess::kBurst, 1, std::sqrt(2 * 8.0 - 1)}}) {
    const auto gaps = gaps_of({row.process, 5, row.burstiness, 8, 11}, kCount);
    EXPECT_TRUE(std::ranges::all_of(gaps, [](double gap) { return gap >= 0; }));
    EXPECT_NEAR(mean(gaps), 0.2, 0.2 * 0.15) << static_cast<int>(row.process);
    EXPECT_NEAR(variation(gaps), row.variation, row.variation * 0.15 + 1e-9) << row.burstiness;
  }
}

TEST(Arrivals, TheSameSeedGivesTheSameTimes) {
  const ArrivalOptions options = {ArrivalProcess::kPoisson, 3, 1, 8, 5};
  ArrivalOptions other = options;
  other.seed = 6;
  EXPECT_EQ(gaps_of(options, 100), gaps_of(options, 100));
  EXPECT_NE(gaps_of(options, 100), gaps_of(other, 100));
}

TEST(Arrivals, ABurstComesAtOnce) {
  const auto gaps = gaps_of({ArrivalProcess::kBurst, 10, 1, 4, 1}, 12);
  for (size_t i = 0; i < gaps.size(); ++i) EXPECT_EQ(gaps[i] > 0, i % 4 == 0) << i;
}

TEST(Lengths, AreReadAndDrawnAsSaid) {
  Random random(1);
  const auto fixed = parse_lengths("512");
  ASSERT_TRUE(fixed);
  EXPECT_EQ(fixed->draw(random), 512);
  const auto uniform = parse_lengths("100-103");
  ASSERT_TRUE(uniform);
  std::set<int32_t> seen;
  for (int i = 0; i < 200; ++i) seen.insert(uniform->draw(random));
  EXPECT_EQ(seen, (std::set<int32_t>{100, 101, 102, 103}));
  const auto log_normal = parse_lengths("lognormal:200,0.5");
  ASSERT_TRUE(log_normal);
  std::vector<int32_t> drawn;
  drawn.reserve(2001);
  for (int i = 0; i < 2001; ++i) drawn.push_back(log_normal->draw(random));
  std::ranges::sort(drawn);
  EXPECT_NEAR(drawn[1000], 200, 12);
  EXPECT_GE(parse_lengths("normal:2,50")->draw(random), 1);
  for (const char* bad : {"", "0", "-5", "9-3", "normal:5", "lognormal:5,99", "12x", "1e99", "nan"})
    EXPECT_FALSE(parse_lengths(bad)) << bad;
}

std::string said(Dataset& dataset, int sessions) {
  std::string out;
  for (int i = 0; i < sessions; ++i) {
    const auto session = dataset.next();
    if (!session) break;
    out += "#" + std::to_string(session->id);
    for (const Turn& turn : session->turns) {
      out += '/' + std::to_string(turn.output_tokens) + ':' + std::to_string(turn.think);
      for (const Segment& segment : turn.append) {
        out += ' ' + std::to_string(segment.seed) + '*' + std::to_string(segment.tokens);
      }
    }
  }
  return out;
}

TEST(Datasets, TheSameSeedGivesTheSamePlan) {
  for (const uint64_t seed : {1, 2}) {
    const uint64_t other = seed + 1;
    const auto of = [](std::unique_ptr<Dataset> dataset) { return said(*dataset, 30); };
    EXPECT_EQ(of(random_dataset({.seed = seed})), of(random_dataset({.seed = seed})));
    EXPECT_NE(of(random_dataset({.seed = seed})), of(random_dataset({.seed = other})));
    EXPECT_EQ(of(shared_prefix_dataset({.seed = seed})), of(shared_prefix_dataset({.seed = seed})));
    EXPECT_NE(of(shared_prefix_dataset({.seed = seed})),
              of(shared_prefix_dataset({.seed = other})));
    EXPECT_EQ(of(agent_dataset({.seed = seed})), of(agent_dataset({.seed = seed})));
    EXPECT_NE(of(agent_dataset({.seed = seed})), of(agent_dataset({.seed = other})));
  }
}

TEST(Datasets, EachSharedPrefixGetsItsQuestionsAndNoTwoQuestionsAreAlike) {
  const auto dataset = shared_prefix_dataset({.prefixes = 3, .questions = 4});
  std::map<uint64_t, int> prefixes;
  std::set<uint64_t> questions;
  while (const auto session = dataset->next()) {
    ASSERT_EQ(session->turns.size(), 1U);
    ASSERT_EQ(session->turns[0].append.size(), 2U);
    ++prefixes[session->turns[0].append[0].seed];
    questions.insert(session->turns[0].append[1].seed);
  }
  EXPECT_EQ(prefixes.size(), 3U);
  for (const auto& [seed, count] : prefixes) EXPECT_EQ(count, 4);
  EXPECT_EQ(questions.size(), 12U);
}

TEST(Datasets, AgentsShareASystemPromptAndGrowTurnByTurn) {
  const auto dataset = agent_dataset({});
  std::set<uint64_t> systems;
  std::set<uint64_t> others;
  size_t appended = 0;
  size_t turns = 0;
  for (int i = 0; i < 50; ++i) {
    const auto session = dataset->next();
    ASSERT_TRUE(session);
    ASSERT_FALSE(session->turns.empty());
    systems.insert(session->turns[0].append[0].seed);
    others.insert(session->turns[0].append[1].seed);
    for (size_t turn = 1; turn < session->turns.size(); ++turn) {
      EXPECT_TRUE(session->turns[turn].keep_answer);
      ASSERT_EQ(session->turns[turn].append.size(), 1U);
      EXPECT_EQ(session->turns[turn].append[0].role, Role::kTool);
      others.insert(session->turns[turn].append[0].seed);
    }
    appended += session->turns.size();
    turns = std::max(turns, session->turns.size());
  }
  EXPECT_EQ(systems.size(), 1U);
  EXPECT_EQ(others.size(), appended);
  EXPECT_GT(turns, 5U);
}

TEST(Datasets, AListedOneRepeatsWithOtherText) {
  Session one;
  one.turns.push_back({.append = {{Role::kUser, 7, 10}}, .output_tokens = 1});
  const auto once = listed_dataset({one}, false, false);
  EXPECT_TRUE(once->next());
  EXPECT_FALSE(once->next());
  const auto again = listed_dataset({one}, true, false);
  EXPECT_EQ(again->next()->turns[0].append[0].seed, 7U);
  EXPECT_NE(again->next()->turns[0].append[0].seed, 7U);
}

TEST(Datasets, ReadsAUsersPromptsAndNamesTheBadLine) {
  const auto sessions = read_prompts(
      "{\"prompt\":\"hello\",\"max_tokens\":7}\n\r\n"
      "{\"messages\":[{\"role\":\"system\",\"content\":\"be\"},{\"role\":\"user\",\"content\":"
      "\"x\"}],\"at\":2.5}\n",
      9);
  ASSERT_TRUE(sessions);
  ASSERT_EQ(sessions->size(), 2U);
  EXPECT_EQ((*sessions)[0].turns[0].append[0].text, "hello");
  EXPECT_EQ((*sessions)[0].turns[0].output_tokens, 7);
  EXPECT_EQ((*sessions)[1].turns[0].append[0].role, Role::kSystem);
  EXPECT_EQ((*sessions)[1].turns[0].output_tokens, 9);
  EXPECT_EQ((*sessions)[1].at, 2.5);
  for (const char* bad : {"", "{}\n", "{\"prompt\":\"x\"}\n[1]\n", "{\"prompt\":\"\"}",
                          "{\"prompt\":\"x\",\"max_tokens\":0}",
                          "{\"messages\":[{\"role\":\"cook\",\"content\":\"x\"}]}"})
    EXPECT_FALSE(read_prompts(bad, 9)) << bad;
  EXPECT_NE(read_prompts("{\"prompt\":\"x\"}\n{}\n", 9).error().message.find("line 2"),
            std::string::npos);
}

TEST(PromptText, AShorterPartIsTheBeginningOfALongerOne) {
  std::string few;
  std::string many;
  append_words(few, 5, 10);
  append_words(many, 5, 20);
  EXPECT_EQ(std::ranges::count(few, ' '), 10);
  EXPECT_TRUE(many.starts_with(few));
  std::string other;
  append_words(other, 6, 10);
  EXPECT_NE(few, other);
  std::vector<uint32_t> ids;
  append_token_ids(ids, 5, 500, 100, 7);
  EXPECT_EQ(ids.size(), 500U);
  EXPECT_TRUE(std::ranges::all_of(ids, [](uint32_t id) { return id >= 100 && id < 107; }));
  EXPECT_EQ(words_for(100, 2), 50U);
  EXPECT_EQ(words_for(0, 1), 1U);
}

}  // namespace
}  // namespace tandem::loadgen
