#include "loadgen/summary.h"

#include <gtest/gtest.h>

#include "loadgen/report.h"
#include "loadgen/svg.h"

namespace tandem::loadgen {
namespace {

// An answer of `tokens` tokens: the first after `ttft`, then one each `gap`.
void answer(Summary& summary, double sent, double ttft, double gap, int64_t tokens) {
  RequestRecord record;
  record.planned = record.sent = sent;
  record.first = sent + ttft;
  record.last = record.ended = record.first + gap * static_cast<double>(tokens - 1);
  record.pieces = record.output_tokens = tokens;
  record.input_tokens = 10;
  record.counted_by_server = true;
  summary.sent(sent);
  for (int64_t i = 0; i < tokens; ++i) summary.piece(record.first + gap * static_cast<double>(i));
  summary.ended(record, std::vector<double>(static_cast<size_t>(tokens - 1), gap));
}

void failure(Summary& summary, double sent, double ended, ErrorKind kind, int status = 0) {
  RequestRecord record;
  record.planned = record.sent = sent;
  record.first = sent + 100;  // must not matter
  record.ended = ended;
  record.error = kind;
  record.status = status;
  record.output_tokens = 1000;
  summary.sent(sent);
  summary.ended(record, {50, 50});
}

std::vector<Objective> objectives(std::initializer_list<const char*> words) {
  std::vector<Objective> out;
  for (const char* word : words) out.push_back(*parse_objective(word));
  return out;
}

TEST(Summary, GoodputCountsRequestsThatKeepEveryObjective) {
  Summary summary(objectives({"ttft:500ms", "tpot:50"}));
  answer(summary, 0, 0.4, 0.04, 11);  // good
  answer(summary, 0, 0.6, 0.04, 11);  // late
  answer(summary, 0, 0.4, 0.06, 11);  // slow
  answer(summary, 0, 0.5, 9.00, 1);   // one token has no time between tokens
  failure(summary, 0, 1, ErrorKind::kStatus, 503);
  EXPECT_EQ(summary.good(), 2);
  EXPECT_EQ(summary.completed(), 4);
  EXPECT_DOUBLE_EQ(summary.rate(static_cast<double>(summary.good())), 2 / summary.seconds());
  Summary longest_gap(objectives({"itl:50ms", "e2e:1s"}));
  answer(longest_gap, 0, 0.1, 0.05, 3);
  answer(longest_gap, 0, 0.1, 0.06, 3);
  answer(longest_gap, 0, 0.1, 0.05, 30);
  EXPECT_EQ(longest_gap.good(), 1);
}

TEST(Summary, ObjectivesAreReadWithTheirUnits) {
  EXPECT_DOUBLE_EQ(parse_objective("ttft:500ms")->seconds, 0.5);
  EXPECT_DOUBLE_EQ(parse_objective("e2e:10s")->seconds, 10);
  EXPECT_DOUBLE_EQ(parse_objective("tpot:50")->seconds, 0.05);
  for (const char* bad : {"", "ttft", "ttft:", "what:5ms", "ttft:x", "500ms"})
    EXPECT_FALSE(parse_objective(bad)) << bad;
}

TEST(Summary, FailuresAreCountedByKindAndEnterNoLatencyAndNoTokens) {
  Summary summary;
  answer(summary, 0, 0.1, 0.01, 5);
  failure(summary, 0, 1, ErrorKind::kStatus, 503);
  failure(summary, 0, 1, ErrorKind::kStatus, 429);
  failure(summary, 0, 2, ErrorKind::kBroken);
  failure(summary, 0, 3, ErrorKind::kUnfinished);
  EXPECT_EQ(summary.sent_count(), 5);
  EXPECT_EQ(summary.completed(), 1);
  EXPECT_EQ(summary.failed(), 3);
  EXPECT_EQ(summary.errors(ErrorKind::kStatus), 2);
  EXPECT_EQ(summary.statuses().at(503), 1);
  EXPECT_EQ(summary.errors(ErrorKind::kUnfinished), 1);
  EXPECT_EQ(summary.output_tokens(), 5);
  EXPECT_NEAR(summary.of(Measure::kTtft).most(), 0.1, 1e-9);
  EXPECT_EQ(summary.of(Measure::kItl).count(), 4U);
  EXPECT_NEAR(summary.of(Measure::kTpot).mean(), 0.01, 1e-9);
  EXPECT_EQ(summary.open(), 0);
}

TEST(Summary, ThroughputIsOverTheTimeFromTheFirstRequestToTheLastEnd) {
  Summary summary;
  answer(summary, 1, 0.5, 0.1, 11);  // ends at 2.5
  answer(summary, 2, 0.5, 0.1, 26);  // ends at 5
  EXPECT_NEAR(summary.seconds(), 4, 1e-9);
  EXPECT_NEAR(summary.rate(static_cast<double>(summary.output_tokens())), 37 / 4.0, 1e-9);
  EXPECT_NEAR(summary.concurrency(), (1.5 + 3) / 4, 1e-9);
}

TEST(Timeline, GrowsCoarserInsteadOfLongerAndLosesNothing) {
  Timeline timeline;
  for (int i = 0; i < 10000; ++i) ++timeline.at(i * 0.5).tokens;
  EXPECT_LE(timeline.bins().size(), Timeline::kMostBins);
  int64_t all = 0;
  for (const TimelineBin& bin : timeline.bins()) all += bin.tokens;
  EXPECT_EQ(all, 10000);
  timeline.busy(10, 110);
  double busy = 0;
  for (const TimelineBin& bin : timeline.bins()) busy += bin.busy;
  EXPECT_NEAR(busy, 100, 1e-6);
}

TEST(Report, AllFormsTellTheSameFigures) {
  Summary summary(objectives({"ttft:150ms"}));
  answer(summary, 0, 0.1, 0.01, 5);
  answer(summary, 0, 0.2, 0.01, 5);
  failure(summary, 0, 1, ErrorKind::kStatus, 503);
  summary.explain(ErrorKind::kStatus, "<no> room");
  RunFacts facts;
  facts.url = "http://host";
  const std::string text = text_report(summary, facts);
  EXPECT_NE(text.find("3 sent"), std::string::npos);
  EXPECT_NE(text.find("(503: 1)"), std::string::npos);
  EXPECT_NE(text.find("150.0"), std::string::npos);  // p50 of 100 and 200 ms
  const JsonValue json = json_report(summary, facts);
  EXPECT_NEAR(*json.find("latency_ms")->find("ttft")->find("p50")->as_double(), 150, 1e-6);
  EXPECT_EQ(json.find("goodput")->find("good")->as_integer(), 1);
  EXPECT_TRUE(parse_json(json.dump()));
  const std::string html = html_report(summary, facts);
  EXPECT_EQ(html.find("<no>"), std::string::npos);
  EXPECT_NE(html.find("&lt;no&gt; room"), std::string::npos);
  EXPECT_NE(html.find("<svg"), std::string::npos);
  EXPECT_EQ(html.find("src="), std::string::npos);  // needs nothing else
}

TEST(Report, OfNothingIsAReportToo) {
  Summary summary;
  EXPECT_NE(text_report(summary, {}).find("0 sent"), std::string::npos);
  EXPECT_TRUE(parse_json(json_report(summary, {}).dump()));
  EXPECT_NE(html_report(summary, {}).find("</html>"), std::string::npos);
  EXPECT_NE(progress_line(summary, 0, 10).find("0/10"), std::string::npos);
}

TEST(Svg, TicksAreRoundAndReachTheGreatestValue) {
  for (const double most : {0.003, 0.7, 1.0, 7.3, 99.0, 12345.0}) {
    const auto ticks = ticks_to(most);
    EXPECT_GE(ticks.back(), most * 0.999);
    EXPECT_LE(ticks.size(), 8U) << most;
    EXPECT_GE(ticks.size(), 3U) << most;
  }
  EXPECT_FALSE(ticks_to(0).empty());
}

}  // namespace
}  // namespace tandem::loadgen
