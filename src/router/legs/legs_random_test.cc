#include <iterator>
#include <map>
#include <random>
#include <set>

#include "router/legs/legs_fixture.h"

namespace tandem::router {
namespace {

// Whatever happens in whatever order: one last decision, no leg left running, no dispatch after the
// first byte, nothing charged that did not fail.
TEST(LegsRandom, InvariantsHoldForAnyOrderOfEvents) {
  std::mt19937 random(11);
  for (int round = 0; round < 20000; ++round) {
    RetryBudget budget({.share = 0, .floor = 0.3});
    Legs legs({.redials = random() % 2 == 0,
               .keeps = random() % 2 == 0,
               .cut_in_flight = random() % 2 == 0,
               .releases = random() % 2 == 0,
               .budget = random() % 2 == 0 ? &budget : nullptr});
    const Order order = random() % 2 == 0 ? Order::kTogether : Order::kPrefillFirst;
    std::map<uint32_t, WorkerId> live;  // dispatched, neither ended by an event nor cancelled
    std::set<WorkerId> failed;
    std::set<WorkerId> dispatched;
    int last = 0;
    int dispatches = 0;
    bool began = false;
    TimePoint now;
    const auto any = [&](uint32_t base) { return base + static_cast<WorkerId>(random() % 4); };
    const auto handle = [&](const Decisions& first) {
      std::vector<Decisions> queue{first};
      while (!queue.empty()) {
        const Decisions decisions = queue.back();
        queue.pop_back();
        for (const Decision& decision : decisions) {
          ASSERT_EQ(last, 0) << "nothing follows the last decision";
          switch (decision.kind) {
            case Kind::kPlaceAll:
              ASSERT_TRUE(live.empty());
              if (random() % 8 == 0) {
                queue.push_back(legs.not_placed());
              } else if (random() % 3 == 0) {
                queue.push_back(legs.placed({kNoWorker, any(10)}, order));
              } else {
                queue.push_back(legs.placed({any(0), any(10)}, order));
              }
              break;
            case Kind::kPlaceAnswer:
              queue.push_back(random() % 4 == 0 ? legs.not_placed() : legs.placed_answer(any(10)));
              break;
            case Kind::kDispatch:
              ASSERT_FALSE(began);
              ASSERT_LE(live.size(), 1U);
              ++dispatches;
              live[decision.serial] = decision.worker;
              dispatched.insert(decision.worker);
              break;
            case Kind::kRelease:
              break;
            case Kind::kDetach:
              ASSERT_FALSE(began);
              ASSERT_EQ(live.erase(decision.serial), 1U);
              break;
            case Kind::kCancel:
              ASSERT_EQ(live.erase(decision.serial), 1U);
              break;
            case Kind::kCharge:
              ASSERT_TRUE(failed.contains(decision.worker));
              break;
            case Kind::kBreak:
              ASSERT_TRUE(began);
              ++last;
              break;
            case Kind::kAnswer:
            case Kind::kRelay:
              ASSERT_FALSE(began);
              ++last;
              break;
            default:
              ++last;
          }
        }
      }
    };
    handle(legs.start());
    for (int step = 0; step < 60 && !legs.over(); ++step) {
      now += std::chrono::milliseconds(random() % 100);
      const uint32_t serial = live.empty() || random() % 10 == 0
                                  ? random() % 9
                                  : std::next(live.begin(), random() % live.size())->first;
      const bool known = live.contains(serial);
      switch (random() % 8) {
        case 0:
          if (known && live[serial] < 10) {
            live.erase(serial);
            handle(random() % 8 == 0 && !began ? legs.prefill_changed(serial, now)
                                               : legs.prefill_done(serial, random() % 8 == 0));
          }
          break;
        case 1:
          if (known && live[serial] >= 10) {
            began = true;
            handle(legs.answer_byte(serial));
          }
          break;
        case 2:
          if (known && live[serial] >= 10 && began) {
            live.erase(serial);
            handle(legs.answer_done(serial));
          }
          break;
        case 3:
          if (random() % 10 == 0) handle(legs.client_gone());
          break;
        case 4:
          handle(legs.tick(now));
          break;
        case 5: {
          const WorkerId worker = known ? live[serial] : random() % 14;
          failed.insert(worker);
          handle(legs.worker_down(worker, now));
          break;
        }
        default:
          if (known) {
            failed.insert(live[serial]);
            live.erase(serial);
            failed.insert(dispatched.begin(), dispatched.end());  // it may name its peer
          }
          handle(legs.failed(serial, static_cast<LegFailure>(random() % 6), kWhy, now));
      }
      if (HasFatalFailure()) FAIL() << "round " << round;
    }
    handle(legs.deadline_passed());
    ASSERT_EQ(last, 1);
    ASSERT_TRUE(live.empty()) << "a leg was left running";
    ASSERT_LE(dispatches, 8);
    ASSERT_EQ(legs.wakes_at(), TimePoint::max());
  }
}

}  // namespace
}  // namespace tandem::router
