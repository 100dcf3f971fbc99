// `tandem simulate kv`: the KV plane under virtual time, with crashes, freezes, partitions and
// aborts; see src/sim. `tandem simulate router` is in simulate_router.cc.
#include <cinttypes>
#include <cstdio>

#include <unistd.h>

#include "base/clock.h"
#include "cli/commands.h"
#include "config/options.h"
#include "sim/kv_simulation.h"

namespace tandem::cli {
namespace {

constexpr size_t kTraceLines = 400;  // the last ones

void print_failure(uint64_t seed, sim::Break broken) {
  const sim::Plan plan = sim::draw_plan(seed, broken);
  const sim::Outcome outcome = sim::run_plan(plan, /*tracing=*/true);
  std::printf("%s", sim::describe(plan).c_str());
  const size_t lines = outcome.trace.size();
  if (lines > kTraceLines) std::printf("  ... %zu lines before\n", lines - kTraceLines);
  for (size_t i = lines > kTraceLines ? lines - kTraceLines : 0; i < lines; ++i)
    std::printf("%s\n", outcome.trace[i].c_str());
}

int simulate_kv(const Arguments& arguments) {
  config::Options options(
      "simulate kv",
      "Runs the KV plane's own state machines in virtual time, each run with requests, delays, "
      "crashes, freezes, partitions and aborts drawn from its seed, and checks after every event "
      "that no wrong byte is used, no page is lost and every request ends.");
  int32_t runs = 1000;
  int32_t seed = 1;
  std::string broken_name = "none";
  bool trace = false;
  options.value(runs, "runs", "N", "how many runs", 1, 1 << 30);
  options.value(seed, "seed", "S", "of the first run; the others follow", 0, 1 << 30);
  std::vector<std::string> names = sim::break_names();
  names.emplace_back("none");
  options.choice(broken_name, "break", std::move(names),
                 "switches one protection off: the runs must then fail");
  options.flag(trace, "trace", "prints every event of the first run");
  options.example("tandem simulate kv --runs 10000 --seed 1");
  options.example("tandem simulate kv --break I1");
  const auto parsed = options.parse(arguments);
  if (!parsed) return report(parsed.error());
  if (parsed->help) {
    std::fputs(parsed->help->c_str(), stdout);
    return 0;
  }
  const auto broken = sim::parse_break(broken_name);
  if (!broken) return report(broken.error());
  const auto first = static_cast<uint64_t>(seed);
  if (trace) print_failure(first, *broken);
  const bool terminal = isatty(STDERR_FILENO) == 1;
  const TimePoint begun = SteadyClock().now();
  const auto progress = [&](const sim::Campaign& so_far) {
    if (terminal && so_far.runs % 100 == 0)
      std::fprintf(stderr, "\r%" PRIu64 " of %d runs", so_far.runs, runs);
  };
  const auto result = sim::run_campaign(static_cast<uint64_t>(runs), first, *broken, 1, progress);
  if (terminal) std::fputs("\r\033[K", stderr);
  std::printf("%" PRIu64 " runs, %" PRIu64 " events in %.1f s: %" PRIu64
              " requests complete, %" PRIu64 " failed, %" PRIu64 " abandoned; %" PRIu64
              " handoffs, %" PRIu64 " peers fenced\n",
              result.runs, result.events, to_seconds(SteadyClock().now() - begun), result.completed,
              result.failed, result.abandoned, result.handoffs, result.fenced);
  if (result.bad_seeds.empty()) {
    std::printf("no wrong bytes, no lost pages, every request ended\n");
    return 0;
  }
  std::printf("seed %" PRIu64 ": %s\n", result.bad_seeds.front(), result.violation.c_str());
  if (!trace) print_failure(result.bad_seeds.front(), *broken);
  return 1;
}

}  // namespace

int run_simulate(const Arguments& arguments) {
  const std::string what = arguments.empty() ? "" : arguments.front();
  if (what == "kv") return simulate_kv({arguments.begin() + 1, arguments.end()});
  if (what == "router") return simulate_router({arguments.begin() + 1, arguments.end()});
  if (what == "--help" || what == "-h") {
    std::fputs(
        "tandem simulate kv      the KV plane against crashes, freezes and partitions\n"
        "tandem simulate router  the router's policies, with a trace's requests\n",
        stdout);
    return 0;
  }
  return report(Error{400, "invalid_option",
                      "What to simulate is missing: tandem simulate kv, or tandem simulate "
                      "router."});
}

}  // namespace tandem::cli
