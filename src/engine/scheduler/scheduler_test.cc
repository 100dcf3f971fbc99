#include "engine/scheduler/scheduler.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "engine/scheduler/scheduler_test_support.h"

namespace tandem::engine {
namespace {

using protocol::StepOutcome;
using protocol::StepPlan;

// A trace: commands, and after each the lines it must produce, marked "> ".
class TraceRunner {
 public:
  std::vector<std::string> run(const std::string& line) {
    std::istringstream in(line);
    std::string command;
    in >> command;
    std::map<std::string, std::string> args;
    std::vector<std::string> words;
    for (std::string word; in >> word;) {
      const auto equals = word.find('=');
      if (equals == std::string::npos) {
        words.push_back(word);
      } else {
        args[word.substr(0, equals)] = word.substr(equals + 1);
      }
    }
    const auto number = [&](const std::string& key, int fallback) {
      return args.contains(key) ? std::stoi(args[key]) : fallback;
    };
    std::vector<std::string> out;
    if (command == "options") {
      SchedulerOptions options;
      options.max_batch_rows = number("rows", 64);
      options.prefill_chunk = number("chunk", 16);
      options.max_sequences = number("sequences", 8);
      options.max_in_flight = number("in_flight", 1);
      options.context_length = number("context", 1000);
      kv_ = std::make_unique<CountingKv>(number("pages", 100), number("block", 4));
      scheduler_ = std::make_unique<Scheduler>(options, *kv_);
    } else if (command == "add" || command == "resident") {
      SequenceSpec spec;
      spec.id = std::stoull(words.at(0));
      spec.prompt.assign(static_cast<size_t>(number("prompt", 1)), 1);
      spec.max_tokens = number("max", 0);
      spec.priority = number("priority", 0);
      spec.tenant = args["tenant"];
      spec.stop_tokens = {2};
      spec.hold_after_first = number("hold", 0) != 0;
      if (args.contains("deadline"))
        spec.deadline = TimePoint{} + std::chrono::seconds(number("deadline", 0));
      if (args.contains("cached")) kv_->cached[spec.id] = number("cached", 0);
      if (command == "resident") {
        kv_->reside(spec.id, static_cast<int32_t>(spec.prompt.size()));
        scheduler_->add_resident(std::move(spec), {.token = number("first", 5)});
      } else {
        (void)scheduler_->add(std::move(spec));
      }
    } else if (command == "step") {
      const auto plan = scheduler_->next(now_);
      if (plan) out_.push_back(*plan);
      out.push_back(plan ? describe(*plan) : "idle");
    } else if (command == "done" && out_.empty()) {
      out.push_back("no pass is out");
    } else if (command == "done") {
      StepOutcome outcome{out_.front().step, {}, args["error"]};
      for (const auto& sequence : out_.front().sequences) {
        if (!sequence.sample) continue;
        const std::string key = std::to_string(sequence.sequence);
        const bool failed = args.contains(key) && args[key] == "nan";
        outcome.sampled.push_back({sequence.sequence, failed ? 0 : number(key, 7), 0, failed});
      }
      out_.erase(out_.begin());
      scheduler_->complete(outcome);
    } else if (command == "finish") {
      scheduler_->finish(std::stoull(words.at(0)));
    } else if (command == "release") {
      scheduler_->release_held(std::stoull(words.at(0)));
    } else if (command == "roll_back") {
      out.push_back(scheduler_->roll_back(std::stoull(words.at(0)), std::stoi(words.at(1)))
                        ? "ok"
                        : "refused");
    } else if (command == "time") {
      now_ = TimePoint{} + std::chrono::seconds(std::stoi(words.at(0)));
    } else if (command == "free") {
      out.push_back(kv_->all_free() ? "all pages free" : "pages in use");
    } else {
      out.push_back("unknown command " + command);
    }
    if (scheduler_) {
      for (const auto& update : scheduler_->take_updates()) out.push_back(describe(update));
    }
    return out;
  }

 private:
  static std::string describe(const StepPlan& plan) {
    std::ostringstream out;
    out << "plan " << plan.step << ":";
    for (const auto& s : plan.sequences) {
      out << " " << s.sequence << "@" << s.first_position << "+" << s.tokens.size();
      if (s.tokens.back() == protocol::kPendingToken) out << "?";
      if (s.sample) out << "*";
    }
    return out.str();
  }
  static std::string describe(const SequenceUpdate& update) {
    std::ostringstream out;
    out << update.id << ":";
    if (update.admitted_cached) out << " admitted cached=" << *update.admitted_cached;
    if (update.token) out << " token " << update.token->token;
    if (update.finish)
      out << (*update.finish == protocol::FinishReason::kStop ? " stop" : " length");
    if (update.error) out << " error " << update.error->code;
    return out.str();
  }
  TimePoint now_{};
  std::unique_ptr<CountingKv> kv_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<StepPlan> out_;
};

TEST(Scheduler, GoldenTraces) {
  const std::filesystem::path folder =
      std::filesystem::path(TANDEM_SOURCE_DIR) / "tests/golden/scheduler";
  int traces = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".trace") continue;
    ++traces;
    std::ifstream in(entry.path());
    std::string got;
    std::string want;
    TraceRunner runner;
    for (std::string line; std::getline(in, line);) {
      want += line + "\n";
      if (line.starts_with("> ")) continue;
      got += line + "\n";
      if (line.empty() || line.starts_with("#")) continue;
      for (const auto& out : runner.run(line)) got += "> " + out + "\n";
    }
    if (std::getenv("TANDEM_UPDATE_GOLDEN") != nullptr) {
      std::ofstream(entry.path()) << got;
    } else {
      EXPECT_EQ(got, want) << entry.path();
    }
  }
  EXPECT_GE(traces, 5);
}

// Handoffs bring sequences whatever runs here already: a pass must still fit the model.
TEST(Scheduler, MoreReceivedSequencesThanMayDecodeAtOnceTakeTurns) {
  CountingKv kv(200, 4);
  Scheduler scheduler({.max_batch_rows = 4, .prefill_chunk = 2, .max_sequences = 2}, kv);
  std::map<SequenceId, int> tokens;
  for (SequenceId id = 1; id <= 10; ++id) {
    kv.reside(id, 3);
    scheduler.add_resident(spec_of(id, 3), {.token = 5});
  }
  for (int round = 0; round < 50; ++round) {
    const auto plan = scheduler.next(TimePoint{});
    ASSERT_TRUE(plan);
    ASSERT_LE(plan->rows(), 2) << "max_sequences";
    for (const auto& s : plan->sequences) ++tokens[s.sequence];
    scheduler.complete(outcome_of(*plan));
  }
  for (SequenceId id = 1; id <= 10; ++id) EXPECT_EQ(tokens[id], 10) << id;
}

// However many handoffs arrive, what waits here (a preempted sequence, say) comes in and is
// computed.
TEST(Scheduler, ReceivedSequencesDoNotKeepTheQueueOut) {
  CountingKv kv(400, 4);
  Scheduler scheduler({.max_batch_rows = 6, .prefill_chunk = 4, .max_sequences = 2}, kv);
  for (SequenceId id = 1; id <= 9; ++id) {
    kv.reside(id, 3);
    scheduler.add_resident(spec_of(id, 3), {.token = 5});
  }
  for (SequenceId id = 10; id <= 12; ++id) {
    SequenceSpec spec = spec_of(id, 8);
    spec.max_tokens = 2;
    ASSERT_TRUE(scheduler.add(spec));
  }
  int finished = 0;
  for (int round = 0; round < 60; ++round) {
    const auto plan = scheduler.next(TimePoint{});
    ASSERT_TRUE(plan);
    ASSERT_LE(plan->rows(), 6);
    scheduler.complete(outcome_of(*plan));
    for (const auto& update : scheduler.take_updates()) finished += update.finish ? 1 : 0;
  }
  EXPECT_EQ(finished, 3);
}

// Its pages are promised to a peer by their tags: computed again elsewhere, the peer would copy
// pages that nobody fills.
TEST(Scheduler, APrefillLegKeepsThePagesItAnnounced) {
  CountingKv kv(8, 4);
  Scheduler scheduler({.max_batch_rows = 8, .prefill_chunk = 1, .max_sequences = 4}, kv);
  kv.reside(1, 4);
  scheduler.add_resident(spec_of(1, 4), {.token = 5});
  SequenceSpec leg = spec_of(2, 16);
  leg.hold_after_first = true;
  leg.priority = -1;
  ASSERT_TRUE(scheduler.add(leg));
  int admissions = 0;
  bool held = false;
  for (int round = 0; round < 40 && !held; ++round) {
    const auto plan = scheduler.next(TimePoint{});
    if (!plan) break;
    scheduler.complete(outcome_of(*plan));
    for (const auto& s : plan->sequences) {
      admissions += s.sequence == 2 && s.first_position == 0 ? 1 : 0;
    }
    for (const auto& update : scheduler.take_updates()) {
      held = held || (update.id == 2 && update.token);
    }
  }
  EXPECT_EQ(scheduler.preemptions(), 1U) << "memory ran out";
  EXPECT_EQ(admissions, 1);
  EXPECT_TRUE(held);
}

// Its window has passed, say: it is computed again, and no token is lost or repeated.
TEST(Scheduler, ASequenceThatCannotGoOnInItsPagesIsComputedAgain) {
  CountingKv kv(20, 4);
  kv.cannot_rewrite_before = 7;
  Scheduler scheduler({.max_batch_rows = 16, .prefill_chunk = 16, .max_sequences = 2}, kv);
  SequenceSpec spec = spec_of(1, 4);
  spec.max_tokens = 8;
  ASSERT_TRUE(scheduler.add(spec));
  int tokens = 0;
  std::vector<std::pair<int32_t, size_t>> rows;
  const auto step = [&] {
    const auto plan = scheduler.next(TimePoint{});
    ASSERT_TRUE(plan);
    rows.emplace_back(plan->sequences[0].first_position, plan->sequences[0].tokens.size());
    scheduler.complete(outcome_of(*plan));
    for (const auto& update : scheduler.take_updates()) tokens += update.token ? 1 : 0;
  };
  for (int i = 0; i < 6; ++i) step();
  ASSERT_EQ(tokens, 6);
  ASSERT_TRUE(scheduler.roll_back(1, 2));  // 8 tokens stay, the last is computed again: in place
  step();
  EXPECT_EQ(rows.back(), (std::pair<int32_t, size_t>{7, 1}));
  ASSERT_TRUE(scheduler.roll_back(1, 3));
  EXPECT_EQ(scheduler.preemptions(), 1U);
  step();
  EXPECT_EQ(rows.back(), (std::pair<int32_t, size_t>{0, 4})) << "from the start";
  step();
  EXPECT_EQ(rows.back(), (std::pair<int32_t, size_t>{4, 2})) << "what was generated, apart";
  while (!kv.all_free()) step();
  EXPECT_EQ(tokens, 8 + 5) << "eight in the end, and the five that were taken back";
}

TEST(Scheduler, WhatCannotFitAnyMoreIsRefusedAndHoldsNobodyUp) {
  CountingKv kv(8, 4);
  (void)kv.extend(99, 16);  // four pages are gone for good
  kv.lost = 4;
  Scheduler scheduler({}, kv);
  SequenceSpec spec;
  spec.id = 1;
  spec.prompt.assign(20, 7);
  spec.priority = 1;
  ASSERT_TRUE(scheduler.add(spec));
  spec.id = 2;
  spec.priority = 0;
  spec.prompt.assign(8, 7);
  ASSERT_TRUE(scheduler.add(spec));
  const auto plan = scheduler.next(TimePoint{});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->sequences.front().sequence, 2U);
  const auto updates = scheduler.take_updates();
  ASSERT_FALSE(updates.empty());
  EXPECT_EQ(updates.front().id, 1U);
  ASSERT_TRUE(updates.front().error);
  EXPECT_EQ(updates.front().error->code, "kv_memory_lost");
}

TEST(Scheduler, APassThatFailedPublishesNothing) {
  CountingKv kv(20, 4);
  Scheduler scheduler({.max_batch_rows = 16, .prefill_chunk = 16, .max_sequences = 2}, kv);
  ASSERT_TRUE(scheduler.add(spec_of(1, 8)));
  const auto plan = scheduler.next(TimePoint{});
  ASSERT_TRUE(plan);
  scheduler.complete(outcome_of(*plan, /*failed=*/true));
  EXPECT_FALSE(kv.final.contains(1)) << "KV of rows whose logits are not numbers is no good either";
  EXPECT_TRUE(kv.all_free());
}

TEST(Scheduler, ATenantThatArrivesByHandoffIsLevelWithTheOthers) {
  CountingKv kv(400, 4);
  Scheduler scheduler({.max_batch_rows = 64, .prefill_chunk = 40, .max_sequences = 8}, kv);
  const auto step = [&] {
    const auto plan = scheduler.next(TimePoint{});
    ASSERT_TRUE(plan);
    scheduler.complete(outcome_of(*plan));
  };
  for (SequenceId id = 1; id <= 5; ++id) ASSERT_TRUE(scheduler.add(spec_of(id, 40, "old")));
  for (int i = 0; i < 5; ++i) step();
  kv.reside(6, 4);
  scheduler.add_resident(spec_of(6, 4, "new"), {.token = 5});
  ASSERT_TRUE(scheduler.add(spec_of(7, 40, "new")));
  ASSERT_TRUE(scheduler.add(spec_of(8, 40, "new")));
  ASSERT_TRUE(scheduler.add(spec_of(9, 40, "old")));
  std::vector<SequenceId> order;
  for (int i = 0; i < 40 && order.size() < 2; ++i) {
    const auto plan = scheduler.next(TimePoint{});
    ASSERT_TRUE(plan);
    for (const auto& s : plan->sequences) {
      if (s.sequence >= 7 && s.first_position == 0) order.push_back(s.sequence);
    }
    scheduler.complete(outcome_of(*plan));
  }
  EXPECT_EQ(order, (std::vector<SequenceId>{7, 9})) << "one each, in turn";
}

// Whatever happens, every sequence ends once, no token is lost or repeated, positions are
// consecutive, and pages return.
TEST(Scheduler, RandomLoadKeepsItsPromises) {
  for (unsigned seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    CountingKv kv(12 + static_cast<int32_t>(random() % 30), 4);
    SchedulerOptions options;
    options.max_batch_rows = 24;
    options.prefill_chunk = 1 + static_cast<int32_t>(random() % 20);
    options.max_sequences = 1 + static_cast<int32_t>(random() % 6);
    options.max_in_flight = 1 + static_cast<int32_t>(random() % 3);
    options.context_length = 40;
    Scheduler scheduler(options, kv);
    std::map<SequenceId, int> tokens;
    std::map<SequenceId, int> wanted;
    std::set<SequenceId> ended;
    std::set<SequenceId> held;
    std::set<SequenceId> finished;
    std::deque<StepPlan> out;
    SequenceId next_id = 1;
    const auto drain = [&] {
      for (const auto& update : scheduler.take_updates()) {
        if (finished.contains(update.id))
          continue;  // it was taken off the queue after the call that ended it
        ASSERT_FALSE(ended.contains(update.id)) << "an update after the end";
        if (update.token) ++tokens[update.id];
        if (update.token && wanted[update.id] == -1) held.insert(update.id);
        if (update.finish || update.error) ended.insert(update.id);
        if (update.finish) {
          ASSERT_EQ(tokens[update.id], wanted[update.id]) << seed;
        }
      }
    };
    for (int round = 0; round < 400; ++round) {
      if (next_id <= 25 && random() % 3 == 0) {
        SequenceSpec spec;
        spec.id = next_id++;
        spec.prompt.assign(1 + random() % 20, 1);
        spec.max_tokens = 1 + static_cast<int32_t>(random() % 15);
        spec.priority = static_cast<int32_t>(random() % 3);
        spec.tenant = random() % 2 ? "a" : "b";
        spec.hold_after_first = random() % 5 == 0;
        wanted[spec.id] = spec.hold_after_first ? -1 : spec.max_tokens;
        ASSERT_TRUE(scheduler.add(spec));
      }
      if (auto plan = scheduler.next(TimePoint{})) {
        ASSERT_LE(plan->rows(), 24);
        std::set<SequenceId> seen;
        for (const auto& s : plan->sequences) {
          ASSERT_TRUE(seen.insert(s.sequence).second);
          ASSERT_GE(static_cast<int32_t>(s.pages.size()) * 4,
                    s.first_position + static_cast<int32_t>(s.tokens.size()));
        }
        out.push_back(*plan);
      }
      if (!out.empty() && random() % 2 == 0) {
        StepOutcome outcome{out.front().step, {}, ""};
        for (const auto& s : out.front().sequences) {
          if (s.sample) outcome.sampled.push_back({s.sequence, 7, 0, false});
        }
        out.pop_front();
        scheduler.complete(outcome);
        drain();
      }
      if (random() % 30 == 0 && next_id > 1) {
        const SequenceId id = 1 + random() % (next_id - 1);
        if (!ended.contains(id) && scheduler.finish(id)) {
          finished.insert(id);
          ended.insert(id);
        }
      }
      if (!held.empty() && random() % 4 == 0) {
        const SequenceId id = *held.begin();
        held.erase(held.begin());
        if (!ended.contains(id)) {
          ASSERT_TRUE(scheduler.release_held(id));
          ended.insert(id);
        }
      }
    }
    for (int round = 0; round < 3000 && ended.size() < next_id - 1; ++round) {
      for (const SequenceId id : std::exchange(held, {})) {
        if (!ended.contains(id)) {
          ASSERT_TRUE(scheduler.release_held(id));
          ended.insert(id);
        }
      }
      if (auto plan = scheduler.next(TimePoint{})) out.push_back(*plan);
      if (out.empty()) continue;
      StepOutcome outcome{out.front().step, {}, ""};
      for (const auto& s : out.front().sequences) {
        if (s.sample) outcome.sampled.push_back({s.sequence, 7, 0, false});
      }
      out.pop_front();
      scheduler.complete(outcome);
      drain();
    }
    while (!out.empty()) {
      StepOutcome outcome{out.front().step, {}, ""};
      out.pop_front();
      scheduler.complete(outcome);
    }
    EXPECT_EQ(ended.size(), next_id - 1) << seed;
    EXPECT_TRUE(kv.all_free()) << seed;
  }
}

// The logits of scored rows take memory: all sequences of a pass share one bound.
TEST(Scheduler, ScoredRowsOfAPassAreBoundedAndEveryTokenIsATargetOnce) {
  CountingKv kv(200, 4);
  Scheduler scheduler({.prefill_chunk = 32, .max_scored_rows = 5}, kv);
  std::map<SequenceId, std::vector<int32_t>> targets;
  for (SequenceId id = 1; id <= 3; ++id) {
    SequenceSpec spec = spec_of(id, 12);
    for (size_t i = 0; i < 12; ++i) spec.prompt[i] = static_cast<int32_t>(100 * id + i);
    spec.score_prompt = true;
    spec.generate = false;
    ASSERT_TRUE(scheduler.add(spec));
  }
  std::set<SequenceId> ended;
  for (int pass = 0; pass < 50 && ended.size() < 3; ++pass) {
    const auto plan = scheduler.next(TimePoint{});
    ASSERT_TRUE(plan);
    size_t scored = 0;
    for (const auto& s : plan->sequences) {
      EXPECT_FALSE(s.sample);
      scored += s.targets.size();
      auto& all = targets[s.sequence];
      all.insert(all.end(), s.targets.begin(), s.targets.end());
    }
    EXPECT_LE(scored, 5U);
    scheduler.complete(outcome_of(*plan));
    for (const auto& update : scheduler.take_updates()) {
      if (!update.finish) continue;
      EXPECT_EQ(*update.finish, protocol::FinishReason::kLength);
      ended.insert(update.id);
    }
  }
  EXPECT_EQ(ended.size(), 3U);
  for (const auto& [id, tokens] : targets) {
    ASSERT_EQ(tokens.size(), 11U);
    for (size_t i = 0; i < 11; ++i) EXPECT_EQ(tokens[i], static_cast<int32_t>(100 * id + i + 1));
  }
  EXPECT_TRUE(kv.all_free());
}

}  // namespace
}  // namespace tandem::engine
