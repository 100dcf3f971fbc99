// `tandem simulate router`: the router's policies over modelled workers under virtual time, with
// the traffic of a trace; see src/sim/router_simulation.h.
#include <charconv>
#include <cstdio>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/read_trace.h"
#include "config/options.h"
#include "sim/router_simulation.h"

namespace tandem::cli {
namespace {

Result<double> parse_number(const std::string& name, const std::string& text) {
  double value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end.ec != std::errc() || end.ptr != text.data() + text.size() || value < 0)
    return make_error(400, "invalid_option", "--" + name + " needs a number, not '" + text + "'.");
  return value;
}

struct Constant {
  std::string_view name;
  double router::PolicyOptions::* member;
};
constexpr Constant kConstants[] = {
    {"affinity_seconds", &router::PolicyOptions::affinity_seconds},
    {"affinity_credit", &router::PolicyOptions::affinity_credit},
    {"work_weight", &router::PolicyOptions::work_weight},
    {"evict_weight", &router::PolicyOptions::evict_weight},
    {"assumed_capacity", &router::PolicyOptions::assumed_capacity},
    {"hot_factor", &router::PolicyOptions::hot_factor},
    {"hot_requests", &router::PolicyOptions::hot_requests},
    {"spread_weight", &router::PolicyOptions::spread_weight},
    {"decode_weight", &router::PolicyOptions::decode_weight},
    {"pressure_seconds", &router::PolicyOptions::pressure_seconds},
    {"bounded_load", &router::PolicyOptions::bounded_load},
    {"bounded_recent", &router::PolicyOptions::bounded_recent},
    {"crowding", &router::PolicyOptions::crowding},
    {"cache_threshold", &router::PolicyOptions::cache_threshold},
};

// NAME=NUMBER
Status set_constant(const std::string& text, router::PolicyOptions& policy) {
  const size_t equals = text.find('=');
  for (const Constant& constant : kConstants) {
    if (equals == std::string::npos || text.substr(0, equals) != constant.name) continue;
    TANDEM_TRY(value, parse_number("set", text.substr(equals + 1)));
    policy.*constant.member = value;
    return {};
  }
  std::string names;
  for (const Constant& constant : kConstants)
    names += (names.empty() ? "" : ", ") + std::string(constant.name);
  return make_error(400, "invalid_option", "--set needs NAME=NUMBER with NAME one of " + names);
}

struct Flags {
  std::string trace;
  std::vector<std::string> policies;
  int32_t unified = 8;
  int32_t prefill = 0;
  int32_t decode = 0;
  int32_t groups = 1;
  int32_t prefill_rate = 8000;
  Duration step = std::chrono::milliseconds(10);
  std::string crowding = "0.02";
  int32_t max_running = 256;
  int32_t kv_tokens = 1 << 20;
  bool untold = false;
  bool separate = false;
  std::string speed = "1";
  int32_t limit = 0;
  int32_t turns = 0;
  Duration max_think = std::chrono::seconds(60);
  int32_t sessions = 64;
  int32_t shrink = 1;
  int32_t max_inflight = 0;
  int32_t max_inflight_tokens = 0;
  Duration max_wait = std::chrono::seconds(60);
  int32_t seed = 0;
  int32_t runs = 1;
  Duration jitter{};
  std::vector<std::string> constants;

  void declare(config::Options& options);
  Result<sim::RouterSetup> setup() const;
};

void Flags::declare(config::Options& options) {
  options.positional(trace, "TRACE",
                     "requests to replay: Mooncake's JSON lines, agent sessions, or Azure's CSV; "
                     "plain or compressed with zstd");
  options.list(policies, "policy", "NAME",
               "which to compare: those of `tandem router`, or cache_aware (a model of SGLang's); "
               "none: all");
  options.value(unified, "unified", "N", "workers that do everything", 0, 64);
  options.value(prefill, "prefill", "N", "prefill workers", 0, 64);
  options.value(decode, "decode", "N", "decode workers", 0, 64);
  options.value(groups, "groups", "N", "prefill and decode workers pair only within a group", 1,
                32);
  options.value(prefill_rate, "prefill-rate", "N", "prompt tokens per second of a worker", 1,
                1 << 30);
  options.value(step, "step", "TIME", "length of a decode step with one sequence");
  options.value(crowding, "crowding", "SHARE", "how much longer it is for each further sequence");
  options.value(max_running, "max-running", "N", "sequences that decode at once", 1, 1 << 20);
  options.value(kv_tokens, "kv-tokens", "N", "KV memory of a worker", 1, 1 << 30);
  options.flag(untold, "untold-capacity",
               "workers do not tell their KV memory, as other engines' do not: the policy takes "
               "its assumed_capacity");
  options.flag(separate, "separate-devices",
               "a unified worker computes prompts beside its decode steps, as `tandem mock` does; "
               "else they take turns");
  options.value(speed, "speed", "FACTOR", "requests of a timed trace come so much faster");
  options.value(limit, "limit", "N", "only the first requests, or sessions; 0: all", 0, 1 << 30);
  options.value(turns, "turns", "N", "only the first turns of each session; 0: all", 0, 1 << 30);
  options.value(max_think, "max-think", "TIME", "longest pause of a session between turns");
  options.value(sessions, "sessions", "N", "sessions at once", 1, 1 << 20);
  options.value(shrink, "shrink", "N", "every length of the trace is divided by this", 1, 512);
  options.value(max_inflight, "max-inflight", "N",
                "requests in flight for each answering worker, more wait; 0: no limit", 0, 1 << 20);
  options.value(max_inflight_tokens, "max-inflight-tokens", "N",
                "their tokens, prompt and expected answer; 0: no limit", 0, 1 << 30);
  options.value(max_wait, "max-wait", "TIME", "what would wait longer is refused");
  options.value(seed, "seed", "N", "of what is chance: the workers' names, --jitter", 0, 1 << 30);
  options.value(runs, "runs", "N", "with so many seeds from --seed on, told as one", 1, 1000);
  options.value(jitter, "jitter", "TIME", "each request comes up to so much later");
  options.list(constants, "set", "NAME=NUMBER", "a constant of the policy, for tuning it");
  options.example("tandem simulate router mooncake_conversation.jsonl.zst --unified 8");
  options.example(
      "tandem simulate router agent_sessions.jsonl.zst --prefill 4 --decode 4 --unified 0 "
      "--policy auto --policy cache_aware");
}

Result<sim::RouterSetup> Flags::setup() const {
  sim::RouterSetup made;
  made.unified = unified;
  made.prefill = prefill;
  made.decode = decode;
  made.groups = groups;
  made.engine.prefill_rate = prefill_rate;
  made.engine.step_seconds = to_seconds(step);
  TANDEM_TRY(crowding_number, parse_number("crowding", crowding));
  made.engine.crowding = crowding_number;
  made.engine.max_running = max_running;
  made.engine.kv_tokens = kv_tokens;
  made.tells_capacity = !untold;
  made.engine.shared_device = !separate;
  made.sessions_at_once = sessions;
  made.capacity = {int64_t{max_inflight} * (unified + decode),
                   int64_t{max_inflight_tokens} * (unified + decode)};
  made.admission.max_wait = max_wait;
  made.seed = static_cast<uint64_t>(seed);
  made.jitter = jitter;
  for (const std::string& constant : constants) TANDEM_CHECK(set_constant(constant, made.policy));
  return made;
}

void print_head() {
  std::printf(
      "policy        TTFT s: mean     p50     p90     p99  ITL ms: p50    p99   hit %%  of ideal  "
      "load max/mean  work max/mean  busy %%  shed\n");
}

void print_row(const sim::RouterOutcome& outcome) {
  std::printf("%-12s %12.3f %7.3f %7.3f %7.3f %12.1f %6.1f %7.2f %9.2f %14.2f %14.2f %7.1f %5lld\n",
              outcome.policy.c_str(), outcome.mean_first_token(),
              sim::quantile(outcome.first_token, 0.5), sim::quantile(outcome.first_token, 0.9),
              sim::quantile(outcome.first_token, 0.99), outcome.steps.quantile(0.5) * 1e3,
              outcome.steps.quantile(0.99) * 1e3, outcome.hit_rate() * 100,
              outcome.share_of_ideal() * 100, outcome.load_ratio, outcome.work_ratio,
              outcome.utilization * 100, static_cast<long long>(outcome.shed));
  std::fflush(stdout);
}

Result<sim::RouterOutcome> simulate_runs(const sim::Traffic& traffic, sim::RouterSetup setup,
                                         const sim::RouterPolicy& policy, int32_t runs) {
  std::vector<sim::RouterOutcome> outcomes;
  for (int32_t run = 0; run < runs; ++run, ++setup.seed) {
    TANDEM_TRY(outcome, sim::simulate_router(traffic, setup, policy));
    outcomes.push_back(std::move(outcome));
  }
  return sim::joined(outcomes);
}

Result<int> simulate(const Flags& flags) {
  sim::TrafficOptions asked;
  TANDEM_TRY(speed, parse_number("speed", flags.speed));
  asked.speed = speed;
  asked.limit = static_cast<size_t>(flags.limit);
  asked.max_turns = static_cast<size_t>(flags.turns);
  asked.max_think = to_seconds(flags.max_think);
  asked.shrink = flags.shrink;
  TANDEM_TRY(text, read_trace_file(flags.trace));
  TANDEM_TRY(traffic, sim::read_traffic(text, asked));
  TANDEM_TRY(setup, flags.setup());
  std::vector<sim::RouterPolicy> policies;
  for (const std::string& name : flags.policies) {
    TANDEM_TRY(policy, sim::parse_router_policy(name));
    policies.push_back(policy);
  }
  if (policies.empty()) policies = sim::all_router_policies();
  bool first = true;
  for (const sim::RouterPolicy& policy : policies) {
    TANDEM_TRY(outcome, simulate_runs(traffic, setup, policy, flags.runs));
    if (std::exchange(first, false)) {
      std::printf("%lld requests in %.0f s, %lld unfinished\n",
                  static_cast<long long>(outcome.requests), outcome.seconds,
                  static_cast<long long>(outcome.unfinished));
      print_head();
    }
    print_row(outcome);
  }
  return 0;
}

}  // namespace

int simulate_router(const Arguments& arguments) {
  config::Options options(
      "simulate router",
      "Replays a trace through the router's own policies over modelled workers, in virtual time, "
      "and prints what each policy would have given: time to the first token, time between tokens, "
      "the share of prompt tokens that were cached, and how even the work was.");
  Flags flags;
  flags.declare(options);
  const auto parsed = options.parse(arguments);
  if (!parsed) return report(parsed.error());
  if (parsed->help) {
    std::fputs(parsed->help->c_str(), stdout);
    return 0;
  }
  const auto result = simulate(flags);
  return result ? *result : report(result.error());
}

}  // namespace tandem::cli
