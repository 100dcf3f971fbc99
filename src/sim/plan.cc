#include "sim/plan.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "sim/event_loop.h"

namespace tandem::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::array<std::pair<Break, std::string_view>, 10> kBreaks = {{
    {Break::kNone, "none"},
    {Break::kI1, "I1"},
    {Break::kReaders, "I1-readers"},
    {Break::kDrain, "I1-drain"},
    {Break::kTime, "I1-time"},
    {Break::kNonce, "I1-nonce"},
    {Break::kI2, "I2"},
    {Break::kI3, "I3"},
    {Break::kCoverage, "I3-coverage"},
    {Break::kI5, "I5"},
}};

std::string seconds_text(Duration time) {
  std::string text = std::to_string(std::chrono::duration_cast<microseconds>(time).count());
  if (text.size() < 7) text.insert(0, 7 - text.size(), '0');
  return text.insert(text.size() - 6, ".") + "s";
}

std::vector<int32_t> some_tokens(Random& random, int64_t count) {
  std::vector<int32_t> out(static_cast<size_t>(count));
  for (int32_t& token : out) token = static_cast<int32_t>(random.pick(1000));
  return out;
}

void draw_shape(Random& random, Plan& plan) {
  static const std::vector<std::pair<std::vector<int32_t>, std::vector<int32_t>>> kShapes = {
      {{0}, {0, 0}}, {{0}, {0, 0}}, {{0, 8}, {0, 1}}, {{0, 5}, {0, 1, 0, 1}}};
  const auto& [windows, layers] = kShapes[static_cast<size_t>(random.pick(4))];
  plan.windows = windows;
  plan.layer_groups = layers;
  const auto groups = static_cast<int64_t>(windows.size());
  plan.pages = static_cast<int32_t>(random.between(16, 34) * groups);
  plan.prefill_chunk = static_cast<int32_t>(random.between(4, 16));
  plan.max_in_flight = static_cast<int32_t>(random.between(1, 2));
  plan.shared_memory = random.chance(0.6);
  plan.fenced_copies = random.chance(0.85);
  plan.copy_failures = random.chance(0.3) ? 0.03 : 0;
  static constexpr Duration kCopies[] = {Duration{}, milliseconds(3), milliseconds(60),
                                         milliseconds(400)};
  plan.slowest_copy = kCopies[random.pick(4)];
  plan.slowest_link = random.chance(0.2) ? milliseconds(400) : milliseconds(3);
}

void draw_requests(Random& random, Plan& plan) {
  std::array<std::vector<int32_t>, 2> stems;
  for (auto& stem : stems) stem = some_tokens(random, 48);
  const int64_t count = random.between(3, 14);
  const Duration span = random.chance(0.3) ? milliseconds(300) : seconds(random.between(2, 16));
  for (int64_t i = 0; i < count; ++i) {
    PlannedRequest request;
    request.at = random.time(Duration{}, span);
    const auto& stem = stems[static_cast<size_t>(random.pick(2))];
    request.prompt.assign(stem.begin(), stem.begin() + random.between(0, 36));
    for (const int32_t token : some_tokens(random, random.between(1, 14)))
      request.prompt.push_back(token);
    request.salt = random.chance(0.2) ? "tenant" : "";
    request.adapter = random.chance(0.25) ? "adapter" : "";
    request.max_tokens = static_cast<int32_t>(random.between(1, 10));
    request.priority = static_cast<int32_t>(random.pick(2));
    request.deadline = random.chance(0.4) ? seconds(random.between(2, 40)) : Duration{};
    request.one_worker = random.chance(0.12);
    plan.requests.push_back(std::move(request));
  }
}

void draw_faults(Random& random, Plan& plan) {
  const int64_t count = random.pick(10);
  for (int64_t i = 0; i < count; ++i) {
    Fault fault;
    fault.kind = static_cast<Fault::Kind>(random.pick(7));
    fault.at = random.time(Duration{}, seconds(14));
    if (random.chance(0.6)) {
      fault.moment = static_cast<Moment>(random.between(1, static_cast<int>(Moment::kFirstToken)));
      const bool often = fault.moment == Moment::kPushed || fault.moment == Moment::kCopyBegan ||
                         fault.moment == Moment::kCopyHalf;
      fault.nth = static_cast<int>(random.between(1, often ? 40 : 6));
    }
    const bool there = fault.moment != Moment::kNever && random.chance(0.6);
    fault.node = there ? kThere : static_cast<int>(random.pick(plan.nodes()));
    fault.other = static_cast<int>(random.pick(plan.nodes()));
    fault.request = static_cast<int>(random.pick(static_cast<int64_t>(plan.requests.size())));
    const bool lasting = random.chance(0.5);
    fault.time = random.time(milliseconds(5), lasting ? seconds(40) : seconds(2));
    fault.silent = random.chance(0.4);
    plan.faults.push_back(fault);
  }
}

}  // namespace

Result<Break> parse_break(std::string_view name) {
  const auto at = std::ranges::find(kBreaks, name, [](const auto& entry) { return entry.second; });
  if (at == kBreaks.end())
    return invalid_request("There is no protection named \"" + std::string(name) + "\".");
  return at->first;
}

std::string_view break_name(Break which) {
  return std::ranges::find(kBreaks, which, [](const auto& entry) { return entry.first; })->second;
}

std::vector<std::string> break_names() {
  std::vector<std::string> out;
  for (const auto& [which, name] : kBreaks) {
    if (which != Break::kNone) out.emplace_back(name);
  }
  return out;
}

std::string_view moment_name(Moment moment) {
  static constexpr std::string_view kNames[] = {
      "never",       "opened",    "offered", "reserving", "granted", "pushed",     "copy began",
      "half copied", "committed", "started", "acked",     "aborted", "first token"};
  return kNames[static_cast<size_t>(moment)];
}

Plan draw_plan(uint64_t seed, Break broken) {
  Random random(mix(seed, 0x7a6e));
  Plan plan;
  plan.seed = seed;
  plan.broken = broken;
  draw_shape(random, plan);
  draw_requests(random, plan);
  draw_faults(random, plan);
  return plan;
}

std::string describe(const Plan& plan) {
  static constexpr std::string_view kKinds[] = {"crash", "freeze",        "partition", "reset",
                                                "slow",  "client leaves", "copy fails"};
  std::string out = "seed " + std::to_string(plan.seed) +
                    ", switched off: " + std::string(break_name(plan.broken)) + "; nodes 0 to " +
                    std::to_string(plan.prefills - 1) + " prefill, to " +
                    std::to_string(plan.nodes() - 1) + " decode; " + std::to_string(plan.pages) +
                    " pages each, " + std::to_string(plan.layer_groups.size()) + " layers in " +
                    std::to_string(plan.windows.size()) + " groups; " +
                    (plan.shared_memory ? "shared memory" : "remote copies") +
                    (plan.fenced_copies ? "" : " without a fence") + "\n";
  for (size_t i = 0; i < plan.requests.size(); ++i) {
    const PlannedRequest& r = plan.requests[i];
    out += "  request " + std::to_string(i) + " at " + seconds_text(r.at) + ": " +
           std::to_string(r.prompt.size()) + " tokens, then " + std::to_string(r.max_tokens) +
           (r.salt.empty() ? "" : ", salted") + (r.adapter.empty() ? "" : ", adapter") +
           (r.one_worker ? ", one worker" : "") +
           (r.deadline == Duration{} ? "" : ", within " + seconds_text(r.deadline)) + "\n";
  }
  for (const Fault& f : plan.faults) {
    out += "  " + std::string(kKinds[static_cast<size_t>(f.kind)]);
    if (f.kind == Fault::Kind::kAbort) {
      out += " of request " + std::to_string(f.request);
    } else {
      out += f.node == kThere ? " there" : " node " + std::to_string(f.node);
    }
    if (f.kind == Fault::Kind::kPartition || f.kind == Fault::Kind::kReset ||
        f.kind == Fault::Kind::kSlow)
      out += " and " + std::to_string(f.other);
    out += f.moment == Moment::kNever
               ? " at " + seconds_text(f.at)
               : " at \"" + std::string(moment_name(f.moment)) + "\" no. " + std::to_string(f.nth);
    out += ", " + seconds_text(f.time) + (f.silent ? ", silent" : "") + "\n";
  }
  return out;
}

}  // namespace tandem::sim
