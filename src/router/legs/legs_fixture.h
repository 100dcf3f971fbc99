// For tests of Legs: decisions as one line of words, and a pair or a single leg that was begun.
#pragma once

#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "router/legs/legs.h"

namespace tandem::router {

using namespace std::chrono_literals;
using Kind = Decision::Kind;

inline std::string show(const Decisions& decisions) {
  std::ostringstream out;
  for (const Decision& decision : decisions) {
    const char* const leg = decision.leg == Leg::kPrefill ? "prefill" : "answer";
    if (out.tellp() > 0) out << ", ";
    switch (decision.kind) {
      case Kind::kPlaceAll:
        out << "place";
        break;
      case Kind::kPlaceAnswer:
        out << "place answer";
        break;
      case Kind::kDispatch:
        out << leg << " to " << decision.worker << " #" << decision.serial << "/"
            << decision.attempt;
        break;
      case Kind::kCancel:
        out << "cancel " << leg << " #" << decision.serial;
        break;
      case Kind::kDetach:
        out << "detach " << leg << " #" << decision.serial;
        break;
      case Kind::kRelease:
        out << "release";
        break;
      case Kind::kCharge:
        out << "charge " << decision.worker;
        break;
      case Kind::kRelay:
        out << "relay " << leg;
        break;
      case Kind::kAnswer:
        out << "error " << decision.error.status << " " << decision.error.code;
        break;
      case Kind::kBreak:
        out << "break " << decision.error.code;
        break;
      case Kind::kFinish:
        out << "finish";
        break;
      case Kind::kAbandon:
        out << "abandon";
        break;
    }
  }
  return out.str();
}

inline const Error kWhy{500, "x", "why"};

class LegsTest : public testing::Test {
 protected:
  TimePoint at(std::chrono::milliseconds time) const { return TimePoint() + time; }
  std::string fail(uint32_t serial, LegFailure failure, std::chrono::milliseconds time = 0ms) {
    return show(legs.failed(serial, failure, kWhy, at(time)));
  }
  // A pair: prefill on 0 is #1, answer on 10 is #2.
  void pair() {
    EXPECT_EQ(show(legs.start()), "place");
    EXPECT_EQ(show(legs.placed({0, 10})), "prefill to 0 #1/1, answer to 10 #2/1");
  }
  void single() {
    legs.start();
    EXPECT_EQ(show(legs.placed({kNoWorker, 10})), "answer to 10 #1/1");
  }
  Legs legs;
};

}  // namespace tandem::router
