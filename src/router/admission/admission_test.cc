#include "router/admission/admission.h"

#include <algorithm>
#include <deque>
#include <map>
#include <random>

#include <gtest/gtest.h>

namespace tandem::router {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A pool that takes 1 s per request of 1000 tokens on each of its slots.
class Pool {
 public:
  explicit Pool(int64_t slots, AdmissionOptions options = {}) : admission(options) {
    take(admission.set_capacity({.requests = slots, .tokens = 0}, now));
  }

  AdmissionId offer(uint64_t tenant, PriorityClass priority = PriorityClass::kNormal,
                    int64_t tokens = 1000, TimePoint deadline = TimePoint::max()) {
    const AdmissionId id = ++last_id;
    tenant_of[id] = tenant;
    tokens_of[id] = tokens;
    take(admission.offer(id, {tenant, priority, tokens, 10, deadline}, now));
    return id;
  }
  void cancel(AdmissionId id) {
    take(admission.cancel(id, now));
    cancelled.push_back(id);
  }

  void run(Duration length) {
    const TimePoint until = now + length;
    while (true) {
      const TimePoint done = ends.empty() ? TimePoint::max() : ends.begin()->first;
      const TimePoint at = std::min(done, admission.wakes_at());
      if (at > until) break;
      now = std::max(now, at);
      if (done <= at) {
        const AdmissionId id = ends.begin()->second;
        ends.erase(ends.begin());
        ++served[tenant_of[id]];
        take(admission.release(id, now));
      } else {
        take(admission.tick(now));
      }
    }
    now = until;
  }

  void take(const AdmissionEvents& events) {
    for (const AdmissionEvent& event : events) {
      if (event.kind == AdmissionEvent::Kind::kStart) {
        started.push_back(event.id);
        start_time[event.id] = now;
        ends.emplace(now + milliseconds(tokens_of[event.id]), event.id);
      } else {
        refused[event.id] = event.retry_after;
      }
    }
  }
  bool has_started(AdmissionId id) const {
    return std::find(started.begin(), started.end(), id) != started.end();
  }

  Admission admission;
  TimePoint now{seconds(1000)};
  AdmissionId last_id = 0;
  std::map<AdmissionId, uint64_t> tenant_of;
  std::map<AdmissionId, int64_t> tokens_of;
  std::map<AdmissionId, TimePoint> start_time;
  std::multimap<TimePoint, AdmissionId> ends;
  std::vector<AdmissionId> started;
  std::vector<AdmissionId> cancelled;
  std::map<AdmissionId, int32_t> refused;
  std::map<uint64_t, int> served;
};

TEST(Admission, WithoutLimitsEverythingStartsAtOnce) {
  Pool pool(0);
  for (int i = 0; i < 5000; ++i) pool.offer(1);
  EXPECT_EQ(pool.started.size(), 5000U);
  EXPECT_EQ(pool.admission.queued(), 0U);
}

TEST(Admission, WaitsForRoomInOrderOfArrival) {
  Pool pool(2);
  for (int i = 0; i < 6; ++i) pool.offer(1);
  EXPECT_EQ(pool.started, (std::vector<AdmissionId>{1, 2}));
  EXPECT_EQ(pool.admission.queued(), 4U);
  pool.run(seconds(10));
  EXPECT_EQ(pool.started, (std::vector<AdmissionId>{1, 2, 3, 4, 5, 6}));
  EXPECT_TRUE(pool.admission.idle());
}

TEST(Admission, TokensAreALimitOfTheirOwnAndALargeRequestRunsAlone) {
  Pool pool(0);
  pool.take(pool.admission.set_capacity({.requests = 0, .tokens = 1500}, pool.now));
  pool.offer(1);
  const AdmissionId large = pool.offer(1, PriorityClass::kNormal, 9000);
  const AdmissionId small = pool.offer(1, PriorityClass::kNormal, 100);
  EXPECT_FALSE(pool.has_started(small)) << "it would fit, but would starve the large one";
  pool.run(milliseconds(1500));
  EXPECT_TRUE(pool.has_started(large));
  EXPECT_FALSE(pool.has_started(small));
  pool.run(seconds(10));
  EXPECT_TRUE(pool.has_started(small));
  EXPECT_TRUE(pool.admission.idle());
}

TEST(Admission, UrgentGoesBeforeNormalBeforeBatch) {
  Pool pool(1);
  pool.offer(1);
  const AdmissionId batch = pool.offer(1, PriorityClass::kBatch);
  const AdmissionId normal = pool.offer(1);
  const AdmissionId urgent = pool.offer(1, PriorityClass::kUrgent);
  pool.run(seconds(5));
  EXPECT_EQ(pool.started, (std::vector<AdmissionId>{1, urgent, normal, batch}));
}

TEST(Admission, NoClassStarvesUnderAFloodOfUrgentOnes) {
  Pool pool(1);
  pool.offer(1);
  const AdmissionId batch = pool.offer(9, PriorityClass::kBatch);
  const AdmissionId normal = pool.offer(8);
  for (int i = 0; i < 40; ++i) {
    pool.offer(1, PriorityClass::kUrgent);
    pool.offer(1, PriorityClass::kUrgent);
    pool.run(seconds(1));
  }
  ASSERT_TRUE(pool.has_started(batch));
  ASSERT_TRUE(pool.has_started(normal));
  EXPECT_LT(pool.start_time[batch] - TimePoint(seconds(1000)), seconds(25));
  int urgent = 0;
  for (const AdmissionId id : pool.started) urgent += pool.tenant_of[id] == 1 ? 1 : 0;
  EXPECT_GE(urgent, 35) << "and the urgent ones still go first";
}

TEST(Admission, AFloodingTenantDoesNoHarmToAnother) {
  AdmissionOptions options;
  options.max_queued = 50;
  options.max_wait = seconds(1000);
  Pool pool(1, options);
  std::vector<AdmissionId> polite;
  for (int i = 0; i < 100; ++i) {
    for (int k = 0; k < 20; ++k) pool.offer(666);
    if (i % 4 == 0) polite.push_back(pool.offer(1));
    pool.run(seconds(1));
  }
  pool.run(seconds(4));
  for (const AdmissionId id : polite) {
    EXPECT_FALSE(pool.refused.contains(id)) << id;
    ASSERT_TRUE(pool.has_started(id)) << id;
  }
  EXPECT_GT(pool.refused.size(), 1500U);
  EXPECT_GE(pool.served[1], 24);
  EXPECT_GE(pool.served[666], 70) << "what the polite one leaves is the flood's";
}

TEST(Admission, SharesAreOfTokensNotOfRequests) {
  AdmissionOptions options;
  options.max_wait = seconds(10000);
  Pool pool(1, options);
  for (int i = 0; i < 100; ++i) pool.offer(1, PriorityClass::kNormal, 4000);
  for (int i = 0; i < 400; ++i) pool.offer(2, PriorityClass::kNormal, 1000);
  pool.run(seconds(200));
  EXPECT_NEAR(pool.served[1] * 4000, 100000, 6000);
  EXPECT_NEAR(pool.served[2] * 1000, 100000, 6000);
}

TEST(Admission, ATenantThatComesBackIsNotPaidForItsAbsence) {
  AdmissionOptions options;
  options.max_wait = seconds(10000);
  Pool pool(1, options);
  for (int i = 0; i < 200; ++i) pool.offer(1);
  pool.run(seconds(100));
  for (int i = 0; i < 100; ++i) pool.offer(2);
  pool.run(seconds(40));
  EXPECT_NEAR(pool.served[2], 20, 2);
}

TEST(Admission, WhatCannotMeetItsDeadlineIsRefusedAtOnceWithTheTimeToComeBack) {
  Pool pool(1);
  for (int i = 0; i < 10; ++i) {
    pool.offer(1);
    pool.run(seconds(1));
  }
  EXPECT_NEAR(pool.admission.tokens_per_second(), 1000, 50);
  for (int i = 0; i < 10; ++i) pool.offer(1);
  const AdmissionId late = pool.offer(1, PriorityClass::kNormal, 1000, pool.now + seconds(5));
  ASSERT_TRUE(pool.refused.contains(late));
  EXPECT_NEAR(pool.refused[late], 10, 1);
  const AdmissionId patient = pool.offer(1, PriorityClass::kNormal, 1000, pool.now + seconds(15));
  EXPECT_FALSE(pool.refused.contains(patient));
  const AdmissionId other = pool.offer(2, PriorityClass::kNormal, 1000, pool.now + seconds(3));
  EXPECT_FALSE(pool.refused.contains(other)) << "fair queueing puts it in front";
  pool.run(seconds(20));
  EXPECT_TRUE(pool.has_started(patient));
  EXPECT_LE(pool.start_time[other] - pool.start_time[1], seconds(13));
  EXPECT_TRUE(pool.admission.idle());
}

TEST(Admission, WaitingPastItsDeadlineEndsInARefusal) {
  Pool pool(1);
  pool.offer(1, PriorityClass::kNormal, 60000);
  const AdmissionId id = pool.offer(1, PriorityClass::kNormal, 1000, pool.now + seconds(3));
  EXPECT_TRUE(pool.refused.empty()) << "nothing is measured yet, so nothing is foretold";
  pool.run(seconds(4));
  EXPECT_TRUE(pool.refused.contains(id));
  EXPECT_GE(pool.refused[id], 1);
  EXPECT_EQ(pool.admission.queued(), 0U);
}

TEST(Admission, AFullQueueTakesTheUrgentInsteadOfTheLastBatch) {
  AdmissionOptions options;
  options.max_queued = 3;
  Pool pool(1, options);
  pool.offer(1);
  const AdmissionId first = pool.offer(1, PriorityClass::kBatch);
  pool.offer(1, PriorityClass::kBatch);
  const AdmissionId last = pool.offer(1, PriorityClass::kBatch);
  const AdmissionId urgent = pool.offer(1, PriorityClass::kUrgent);
  EXPECT_TRUE(pool.refused.contains(last));
  EXPECT_FALSE(pool.refused.contains(urgent));
  const AdmissionId batch = pool.offer(1, PriorityClass::kBatch);
  EXPECT_TRUE(pool.refused.contains(batch));
  pool.run(seconds(10));
  EXPECT_TRUE(pool.has_started(first));
}

TEST(Admission, TheQueueIsBoundedInBytes) {
  AdmissionOptions options;
  options.max_queued_bytes = 35;  // each holds 10
  Pool pool(1, options);
  for (int i = 0; i < 8; ++i) pool.offer(1);
  EXPECT_EQ(pool.admission.queued(), 3U);
  EXPECT_EQ(pool.admission.queued_bytes(), 30U);
  EXPECT_EQ(pool.refused.size(), 4U);
}

TEST(Admission, ACancelledHeadLetsTheNextOneIn) {
  Pool pool(0);
  pool.take(pool.admission.set_capacity({.requests = 0, .tokens = 1500}, pool.now));
  pool.offer(1);
  const AdmissionId large = pool.offer(1, PriorityClass::kNormal, 9000);
  const AdmissionId small = pool.offer(1, PriorityClass::kNormal, 100);
  pool.cancel(large);
  EXPECT_TRUE(pool.has_started(small));
  pool.run(seconds(2));
  EXPECT_TRUE(pool.admission.idle());
}

TEST(Admission, MoreCapacityStartsWhatWaits) {
  Pool pool(1);
  for (int i = 0; i < 5; ++i) pool.offer(1);
  pool.take(pool.admission.set_capacity({.requests = 3, .tokens = 0}, pool.now));
  EXPECT_EQ(pool.started.size(), 3U);
  pool.take(pool.admission.set_capacity({}, pool.now));
  EXPECT_EQ(pool.started.size(), 5U);
}

TEST(Admission, EveryOfferEndsOnceAndCountsReturnToZero) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    AdmissionOptions options;
    options.max_queued = 20;
    options.max_wait = seconds(30);
    Pool pool(3, options);
    for (int i = 0; i < 2000; ++i) {
      const auto chance = random() % 10;
      if (chance < 6) {
        const auto priority = static_cast<PriorityClass>(random() % 3);
        pool.offer(random() % 5, priority, 1 + static_cast<int64_t>(random() % 3000),
                   random() % 3 == 0 ? pool.now + milliseconds(random() % 4000) : TimePoint::max());
      } else if (chance < 7 && pool.last_id > 0) {
        const AdmissionId id = 1 + random() % pool.last_id;
        if (!pool.has_started(id) && !pool.refused.contains(id) &&
            std::find(pool.cancelled.begin(), pool.cancelled.end(), id) == pool.cancelled.end())
          pool.cancel(id);
      } else {
        pool.run(milliseconds(random() % 1500));
      }
      ASSERT_LE(pool.admission.running(), 3);
      ASSERT_LE(pool.admission.queued(), 20U);
    }
    pool.run(seconds(200));
    EXPECT_TRUE(pool.admission.idle()) << seed;
    EXPECT_EQ(pool.started.size() + pool.refused.size() + pool.cancelled.size(), pool.last_id);
  }
}

}  // namespace
}  // namespace tandem::router
