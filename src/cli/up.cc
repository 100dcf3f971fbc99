// `tandem up`: the whole stack for one model on this machine. This process is the router and the
// supervisor; every worker is a process of its own.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>

#include "cli/commands.h"
#include "cli/common.h"
#include "cli/router_flags.h"
#include "cli/supervisor.h"
#include "numerics/hmac.h"
#include "observe/log.h"

namespace tandem::cli {
namespace {

struct Pool {
  const char* name;
  router::WorkerRole role;
  int32_t count;
};

std::vector<ChildSpec> child_specs(const std::vector<Pool>& pools, WorkerFlags flags,
                                   const std::string& secret) {
  int32_t workers = 0;
  for (const Pool& pool : pools) workers += pool.count;
  const auto cores = static_cast<int32_t>(std::max(1U, std::thread::hardware_concurrency()));
  if (flags.threads == 0) flags.threads = std::max(1, cores / workers);
  std::vector<ChildSpec> specs;
  for (const Pool& pool : pools) {
    for (int32_t i = 0; i < pool.count; ++i) {
      ChildSpec spec;
      spec.name = std::string(pool.name) + "-" + std::to_string(i);
      spec.words = {"worker"};
      const auto words = flags.words();
      spec.words.insert(spec.words.end(), words.begin(), words.end());
      spec.words.insert(spec.words.end(), {"--role", pool.name});
      // In the environment, where other users of the machine cannot read it.
      spec.environment = {"TANDEM_SECRET=" + secret, "TANDEM_LOG_NAME=" + spec.name};
      specs.push_back(std::move(spec));
    }
  }
  return specs;
}

}  // namespace

int run_up(const Arguments& arguments) {
  config::Options options("up",
                          "Serves a model on this machine: a router, and prefill and decode "
                          "workers as processes of their own.");
  WorkerFlags flags;
  RouterFlags router_flags;
  int32_t prefill = -1;
  int32_t decode = -1;
  int32_t unified = 0;
  flags.declare(options);
  router_flags.declare(options);
  options.value(prefill, "prefill", "N", "prefill workers; -1: 1 unless --unified is given", -1,
                64);
  options.value(decode, "decode", "N", "decode workers; -1: 1 unless --unified is given", -1, 64);
  options.value(unified, "unified", "N", "workers that do both, instead of a pair", 0, 64);
  options.example("tandem up models/smollm2-135m-instruct.Q4_1.gguf");
  options.example(
      "tandem up model.gguf --port 9000 --prefill 1 --decode 2 --kv-memory 2G --api-key SECRET");
  auto parsed = options.parse(arguments);
  if (!parsed) return report(parsed.error());
  if (parsed->help) {
    std::fputs(parsed->help->c_str(), stdout);
    return 0;
  }
  if (prefill < 0) prefill = unified > 0 ? 0 : 1;
  if (decode < 0) decode = unified > 0 ? 0 : 1;
  if (unified == 0 && (prefill == 0 || decode == 0)) {
    return report(
        Error{400, "invalid_option",
              "A pair needs at least one --prefill and one --decode worker; or use --unified N."});
  }
  observe::set_log_level(flags.log_level);
  observe::set_log_name("router");
  const std::string secret = shared_secret().empty() ? numerics::random_hex(32) : shared_secret();
  const std::vector<Pool> pools = {{"prefill", router::WorkerRole::kPrefill, prefill},
                                   {"decode", router::WorkerRole::kDecode, decode},
                                   {"unified", router::WorkerRole::kUnified, unified}};
  auto specs = child_specs(pools, flags, secret);
  std::vector<std::string> names;
  names.reserve(specs.size());
  for (const auto& spec : specs) names.push_back(spec.name);
  Supervisor supervisor(std::move(specs));
  std::mutex mutex;
  std::unique_ptr<RouterProcess> process;
  Signals signals;  // the last of these to come and the first to go: its action uses the others
  signals.on_signal([&] {
    const std::lock_guard lock(mutex);
    process ? process->shut_down() : supervisor.interrupt();
  });
  auto ready = supervisor.start();
  if (!ready) return report(ready.error());
  std::vector<router::WorkerAddress> workers;
  std::vector<BudgetLine> budget;
  workers.reserve(ready->size());
  budget.reserve(ready->size());
  size_t index = 0;
  for (const Pool& pool : pools) {
    for (int32_t i = 0; i < pool.count; ++i, ++index) {
      workers.push_back({"http://127.0.0.1:" + std::to_string((*ready)[index].port), pool.role});
      budget.push_back({names[index], (*ready)[index].memory});
    }
  }
  auto made = RouterProcess::create(router_flags, std::move(workers), secret, flags.drain);
  if (!made) return report(made.error());
  {
    const std::lock_guard lock(mutex);
    process = std::move(*made);
  }
  if (supervisor.interrupted()) return 0;
  supervisor.watch([&](size_t worker, uint16_t port) {
    process->move_worker(worker, "http://127.0.0.1:" + std::to_string(port));
  });
  print_budget(budget);
  std::fflush(stdout);
  process->when_ready([&] {
    std::printf("serving %s (%d tokens of context)\nlistening on http://%s:%u\n",
                ready->front().model.c_str(), ready->front().context_length,
                router_flags.host.c_str(), process->port());
    std::fflush(stdout);
  });
  process->run();
  supervisor.stop(std::chrono::seconds(10));
  return 0;
}

}  // namespace tandem::cli
