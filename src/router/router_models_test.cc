// Several models behind one router, and adapters as models.
#include <gtest/gtest.h>

#include "router/router_fixture.h"

namespace tandem::router {
namespace {

std::string ask_for(const std::string& model) {
  return R"({"model":")" + model + R"(","messages":[{"role":"user","content":"hi"}]})";
}

// A pair of "one" and a unified worker of "two", which has adapters.
class ModelsTest : public RouterTest {
 protected:
  ModelsTest() {
    before_start = [this] {
      p[0]->model = d[0]->model = "one";
      u[0]->model = "two";
      u[0]->lineage = "lineage-2";
      u[0]->block_tokens = 32;
      u[0]->adapters = R"(["tuned","chatty"])";
    };
  }

  awaitable<std::vector<std::string>> listed() {
    std::vector<std::string> found;
    const auto answered = co_await get("/v1/models");
    const JsonValue body = json(answered.body);
    for (const JsonValue& entry : body.find("data")->items())
      found.push_back(entry.find("id")->as_string());
    std::sort(found.begin(), found.end());
    co_return found;
  }
};

TEST_F(ModelsTest, ARequestGoesToTheWorkersOfTheModelItNames) {
  run(1, 1, 1, [this]() -> awaitable<void> {
    EXPECT_EQ(co_await listed(), (std::vector<std::string>{"chatty", "one", "tuned", "two"}));
    for (int i = 0; i < 3; ++i) EXPECT_EQ((co_await ask(ask_for("one"))).status, 200);
    EXPECT_EQ(p[0]->seen.size(), 3U);
    EXPECT_EQ(d[0]->seen.size(), 3U);
    EXPECT_EQ(u[0]->seen.size(), 0U);
    for (const char* const name : {"two", "tuned", "chatty"})
      EXPECT_EQ((co_await ask(ask_for(name))).status, 200);
    EXPECT_EQ(d[0]->seen.size(), 3U);
    EXPECT_EQ(u[0]->seen.size(), 3U);
    EXPECT_NE(u[0]->seen[1].body.find("\"model\":\"tuned\""), std::string::npos);
    const std::string metrics = (co_await get("/metrics")).body;
    EXPECT_NE(metrics.find("tandem_router_model_requests_total{model_name=\"one\"} 3"),
              std::string::npos);
    EXPECT_NE(metrics.find("tandem_router_model_requests_total{model_name=\"two\"} 3"),
              std::string::npos);
  });
}

TEST_F(ModelsTest, AdaptersAreListedUnderTheirParent) {
  run(1, 1, 1, [this]() -> awaitable<void> {
    const auto answered = co_await get("/v1/models");
    EXPECT_NE(answered.body.find(R"("id":"tuned")"), std::string::npos);
    EXPECT_EQ(frames(answered.body, R"("parent":"two")"), 2U);
  });
}

TEST_F(ModelsTest, UnknownAndMissingNamesAreToldTheOnesThereAre) {
  run(1, 1, 1, [this]() -> awaitable<void> {
    const auto unknown = co_await ask(ask_for("three"));
    EXPECT_EQ(unknown.status, 404);
    EXPECT_EQ(error_code(unknown), "model_not_found");
    for (const auto& text : {unknown.body, (co_await ask(chat("hi"))).body}) {
      for (const char* const name : {"'one'", "'two'", "'tuned'"})
        EXPECT_NE(text.find(name), std::string::npos) << text;
    }
    EXPECT_EQ(error_code(co_await ask(chat("hi"))), "model_required");
    EXPECT_EQ(error_code(co_await ask(R"({"prompt":"x"})", {}, "/tokenize")), "model_required");
    EXPECT_EQ((co_await ask(R"({"model":"two","prompt":"x"})", {}, "/tokenize")).status, 200);
  });
}

TEST_F(ModelsTest, OneModelsDeathIsNotTheOthers) {
  run(1, 1, 1, [this]() -> awaitable<void> {
    d[0]->kill();
    co_await until([&] { return !router->complete(); });
    EXPECT_EQ((co_await ask(ask_for("one"))).status, 503);
    EXPECT_EQ((co_await ask(ask_for("two"))).status, 200);
    EXPECT_EQ((co_await get("/ready")).status, 200) << "some model can be served";
    EXPECT_EQ((co_await listed()).size(), 4U) << "a model without workers is still known";
  });
}

TEST_F(ModelsTest, ANameCannotBeTakenTwice) {
  run(1, 1, 1, [this]() -> awaitable<void> {
    FakeWorker& worker = *p[0];  // now it would be an adapter's name
    worker.model = "tuned";
    worker.lineage = "lineage-3";
    worker.epoch = "2";
    co_await until([&] { return !router->complete(); });
    co_await reactor.sleep(100ms);
    EXPECT_EQ((co_await listed()).size(), 4U);
    EXPECT_EQ((co_await ask(ask_for("tuned"))).status, 200);
    EXPECT_EQ(u[0]->seen.size(), 1U);
  });
}

TEST_F(ModelsTest, AModelThatItsWorkersStoppedServingIsForgotten) {
  run(1, 1, 1, [this]() -> awaitable<void> {
    u[0]->model = "three";
    u[0]->lineage = "lineage-3";
    u[0]->adapters = "[]";
    u[0]->epoch = "2";
    for (int i = 0; i < 100 && (co_await listed()).size() != 2; ++i) co_await reactor.sleep(10ms);
    EXPECT_EQ(co_await listed(), (std::vector<std::string>{"one", "three"}));
  });
}

// Workers that tell the identity of a text that the router has are not asked for it; a worker with
// any other identity, or with none, is.
TEST_F(ModelsTest, ATextAtHandServesOnlyWorkersOfItsIdentity) {
  text::TokenizerSpec other = text::byte_tokenizer_spec();
  other.chat_template = "{{ messages[0].content }}!";
  const std::string same = text::tokenizer_identity(text::byte_tokenizer_spec());
  ASSERT_NE(text::tokenizer_identity(other), same);
  options.texts = {*make_served_text(other), *make_served_text(text::byte_tokenizer_spec())};
  before_start = [&] {
    const char* const names[] = {"known", "unknown", "silent"};
    const std::string identities[] = {same, std::string(64, 'a'), ""};
    for (size_t i = 0; i < u.size(); ++i) {
      u[i]->model = names[i];
      u[i]->tokenizer = identities[i];
    }
  };
  run(0, 0, 3, [this]() -> awaitable<void> {
    EXPECT_EQ(u[0]->tokenizers_given, 0);
    EXPECT_EQ(u[1]->tokenizers_given, 1);
    EXPECT_EQ(u[2]->tokenizers_given, 1);
    for (const char* const name : {"known", "unknown", "silent"}) {
      const auto counted = co_await ask(
          R"({"model":")" + std::string(name) + R"(","prompt":"abc"})", {}, "/tokenize");
      EXPECT_EQ(counted.status, 200) << name;
      EXPECT_NE(counted.body.find("\"count\":3"), std::string::npos) << counted.body;
    }
  });
}

}  // namespace
}  // namespace tandem::router
