#include "router/fleet_file.h"

#include <gtest/gtest.h>

namespace tandem::router {
namespace {

using Kind = FleetChange::Kind;

std::vector<ListedWorker> list(const std::string& workers) {
  auto parsed =
      parse_fleet(R"({"workers":[)" + workers + "]}", {.connector = "plain", .model = "m"});
  EXPECT_TRUE(parsed) << (parsed ? "" : parsed.error().message);
  return parsed ? *parsed : std::vector<ListedWorker>();
}

std::string told(const std::vector<FleetChange>& changes) {
  constexpr const char* kNames[] = {"+", "-", "drain ", "undrain "};
  std::string text;
  for (const FleetChange& change : changes)
    text += kNames[static_cast<size_t>(change.kind)] + change.worker.address.url + " ";
  return text;
}

TEST(FleetFileTest, AListIsReadWithTheCommandLinesDefaults) {
  const auto listed = list(
      R"({"url":"http://a:1","role":"prefill","connector":"vllm-nixl","bootstrap_port":7,"dp_size":2},)"
      R"({"url":"http://b:1","ready":false,"group":"g"})");
  ASSERT_EQ(listed.size(), 2U);
  EXPECT_EQ(listed[0].address.role, WorkerRole::kPrefill);
  EXPECT_EQ(listed[0].address.connector, "vllm-nixl");
  EXPECT_EQ(listed[0].address.bootstrap_port, 7);
  EXPECT_EQ(listed[0].address.dp_size, 2);
  EXPECT_TRUE(listed[0].ready);
  EXPECT_EQ(listed[1].address.connector, "plain");
  EXPECT_EQ(listed[1].address.model, "m");
  EXPECT_EQ(listed[1].address.group, "g");
  EXPECT_FALSE(listed[1].ready);
}

TEST(FleetFileTest, WhatIsWrongIsNamedWithItsPlace) {
  const std::pair<const char*, const char*> cases[] = {
      {"", ""},
      {"[]", "/workers"},
      {R"({"workers":{}})", "/workers"},
      {R"({"workers":[7]})", "/workers/0"},
      {R"({"workers":[{"role":"decode"}]})", "/workers/0/url"},
      {R"({"workers":[{"url":"http://a:1"},{"url":"http://a:1"}]})", "/workers/1"},
      {R"({"workers":[{"url":"http://a:1","ready":"yes"}]})", "/workers/0/ready"},
      {R"({"workers":[{"url":["http://a:1"]}]})", "/workers/0/url"},
  };
  for (const auto& [text, pointer] : cases) {
    const auto parsed = parse_fleet(text, {});
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().pointer.value_or(""), pointer) << text;
  }
}

TEST(FleetFileTest, NumbersMayBeWrittenAsNumbersOrAsText) {
  for (const char* text : {R"({"url":"http://a:1","dp_size":2,"bootstrap_port":7})",
                           R"({"url":"http://a:1","dp_size":"2","bootstrap_port":"7"})"}) {
    const auto worker = read_worker(*parse_json(text), {.model = "m"}, "");
    ASSERT_TRUE(worker) << text;
    EXPECT_EQ(worker->address.dp_size, 2);
    EXPECT_EQ(worker->address.bootstrap_port, 7);
    EXPECT_EQ(worker->address.model, "m");
  }
  const std::pair<const char*, const char*> wrong[] = {
      {R"({"url":"http://a:1","dp_size":2.5})", "/dp_size"},
      {R"({"url":"http://a:1","dp_size":0})", "/dp_size"},
      {R"({"url":"http://a:1","dp_size":true})", "/dp_size"},
      {R"({"url":"http://a:1","bootstrap_port":65536})", "/bootstrap_port"},
      {R"({"url":"http://a:1","role":"king"})", "/role"},
      {R"({"url":"http://a:1","rôle/x":"a"})", "/rôle~1x"},
      {R"({"url":""})", "/url"},
      {R"(["http://a:1"])", ""},
  };
  for (const auto& [text, pointer] : wrong) {
    const auto worker = read_worker(*parse_json(text), {}, "");
    ASSERT_FALSE(worker) << text;
    EXPECT_EQ(worker.error().code, "bad_worker") << text;
    EXPECT_EQ(worker.error().pointer.value_or(""), pointer) << text;
  }
}

TEST(FleetFileTest, TheFleetFollowsTheList) {
  FleetPlan plan;
  EXPECT_EQ(told(plan.follow(list(R"({"url":"a"},{"url":"b","ready":false})"))), "+a +b drain b ");
  EXPECT_EQ(told(plan.follow(list(R"({"url":"b","ready":false},{"url":"a"})"))), "");
  EXPECT_EQ(told(plan.follow(list(R"({"url":"a","ready":false},{"url":"b"})"))),
            "drain a undrain b ");
  EXPECT_EQ(told(plan.follow(list(R"({"url":"c"},{"url":"b"})"))), "-a +c ");
  EXPECT_EQ(told(plan.follow({})), "-b -c ");
}

TEST(FleetFileTest, AWorkerThatIsAnotherNowIsMetAnew) {
  FleetPlan plan;
  plan.follow(list(R"({"url":"a","role":"prefill"},{"url":"b"})"));
  EXPECT_EQ(told(plan.follow(list(R"({"url":"a","role":"decode"},{"url":"b"})"))), "-a +a ");
}

TEST(FleetFileTest, AnAdditionThatFailedIsTriedAgain) {
  FleetPlan plan;
  plan.follow(list(R"({"url":"a"})"));
  plan.failed("a");
  EXPECT_EQ(told(plan.follow(list(R"({"url":"a"})"))), "+a ");
}

}  // namespace
}  // namespace tandem::router
