#include "router/admission_gate.h"

#include <gtest/gtest.h>

#include "net/reactor.h"

namespace tandem::router {
namespace {

using net::asio::awaitable;

class QuietResponder final : public net::HttpResponder {
 public:
  awaitable<Status> send(int, net::Headers, std::string) override { co_return Status(); }
  awaitable<Status> begin_stream(int, net::Headers, std::string_view) override {
    co_return Status();
  }
  awaitable<Status> whole_stream(int, net::Headers, std::string_view) override {
    co_return Status();
  }
  awaitable<Status> write(std::string_view) override { co_return Status(); }
  awaitable<Status> finish(std::string_view) override { co_return Status(); }
  void abort() override {}
  void on_disconnect(std::function<void()> action) override { leave = std::move(action); }
  bool client_gone() const override { return false; }
  bool started() const override { return false; }
  std::function<void()> leave = [] {};
};

struct Fixture {
  net::Reactor reactor;
  observe::Metrics metrics;
  AdmissionOptions options;
  AdmissionLimits limits{1, 0};
  std::unique_ptr<AdmissionGate> gate;
  std::vector<std::string> log;

  void make() { gate = std::make_unique<AdmissionGate>(reactor, options, limits, metrics); }

  // Enters, stays for `stay`, leaves.
  awaitable<void> visit(std::string name, QuietResponder& responder, Duration stay) {
    auto entered = co_await gate->enter("m", {.tenant = 1, .tokens = 10}, 1, responder);
    if (!entered) {
      log.push_back(name + " " + entered.error().error.code);
      co_return;
    }
    log.push_back(name + " in");
    co_await reactor.sleep(stay);
    log.push_back(name + " out");
  }
  void run_for(Duration length) {
    net::Deadline end(reactor, [this] { reactor.stop(); });
    end.arm(length);
    reactor.run();
  }
};

TEST(AdmissionGate, WaitsForRoomAndIsIdleAfterwards) {
  Fixture f;
  f.make();
  QuietResponder a, b;
  f.reactor.spawn(f.visit("a", a, std::chrono::milliseconds(30)));
  f.reactor.spawn(f.visit("b", b, std::chrono::milliseconds(1)));
  f.run_for(std::chrono::milliseconds(200));
  EXPECT_EQ(f.log, (std::vector<std::string>{"a in", "a out", "b in", "b out"}));
  EXPECT_TRUE(f.gate->idle());
}

TEST(AdmissionGate, AClientThatLeavesWhileItWaitsIsTakenOut) {
  Fixture f;
  f.make();
  QuietResponder a, b, c;
  f.reactor.spawn(f.visit("a", a, std::chrono::milliseconds(60)));
  f.reactor.spawn(f.visit("b", b, std::chrono::milliseconds(1)));
  f.reactor.spawn(f.visit("c", c, std::chrono::milliseconds(1)));
  net::Deadline leaves(f.reactor, [&] { b.leave(); });
  leaves.arm(std::chrono::milliseconds(20));
  f.run_for(std::chrono::milliseconds(250));
  EXPECT_EQ(f.log, (std::vector<std::string>{"a in", "b client_gone", "a out", "c in", "c out"}));
  EXPECT_TRUE(f.gate->idle());
}

TEST(AdmissionGate, RefusesWhatWaitedTooLongAndEverybodyWhenClosed) {
  Fixture f;
  f.options.max_wait = std::chrono::milliseconds(40);
  f.make();
  QuietResponder a, b, c, d;
  f.reactor.spawn(f.visit("a", a, std::chrono::milliseconds(150)));
  f.reactor.spawn(f.visit("b", b, std::chrono::milliseconds(1)));
  net::Deadline waits(f.reactor,
                      [&] { f.reactor.spawn(f.visit("c", c, std::chrono::milliseconds(1))); });
  waits.arm(std::chrono::milliseconds(70));
  net::Deadline closes(f.reactor, [&] {
    f.gate->close();
    f.reactor.spawn(f.visit("d", d, std::chrono::milliseconds(1)));
  });
  closes.arm(std::chrono::milliseconds(90));
  f.run_for(std::chrono::milliseconds(300));
  EXPECT_EQ(f.log, (std::vector<std::string>{"a in", "b overloaded", "d shutting_down",
                                             "c shutting_down", "a out"}));
  EXPECT_TRUE(f.gate->idle());
}

TEST(AdmissionGate, WithoutLimitsNobodyWaits) {
  Fixture f;
  f.limits = {};
  f.make();
  QuietResponder a, b;
  f.reactor.spawn(f.visit("a", a, std::chrono::milliseconds(30)));
  f.reactor.spawn(f.visit("b", b, std::chrono::milliseconds(30)));
  f.run_for(std::chrono::milliseconds(150));
  EXPECT_EQ(f.log[1], "b in");
}

TEST(AdmissionGate, ReadsPrioritiesAndDeadlinesOfClients) {
  EXPECT_EQ(parse_priority("urgent"), PriorityClass::kUrgent);
  EXPECT_EQ(parse_priority("-3"), PriorityClass::kUrgent);
  EXPECT_EQ(parse_priority(""), PriorityClass::kNormal);
  EXPECT_EQ(parse_priority("12nonsense"), PriorityClass::kNormal);
  EXPECT_EQ(parse_priority("7"), PriorityClass::kBatch);
  EXPECT_EQ(parse_priority("batch"), PriorityClass::kBatch);
  const TimePoint now{std::chrono::seconds(5)};
  EXPECT_EQ(start_deadline({{"x-slo-ttft-ms", "1500"}}, now),
            now + std::chrono::milliseconds(1500));
  EXPECT_EQ(start_deadline({{"x-sgl-ttft-slo-ms", "20"}}, now),
            now + std::chrono::milliseconds(20));
  EXPECT_EQ(start_deadline({{"x-slo-ttft-ms", "-1"}}, now), TimePoint::max());
  EXPECT_EQ(start_deadline({}, now), TimePoint::max());
}

}  // namespace
}  // namespace tandem::router
