// `tandem up`: the whole stack for one or several models on this machine. This process is the
// router and the supervisor; every worker is a process of its own.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <system_error>
#include <thread>

#include "base/environment.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/router_flags.h"
#include "cli/supervisor.h"
#include "engine/tokenizer_source.h"
#include "numerics/hmac.h"
#include "observe/log.h"
#include "weights/checkpoint.h"

namespace tandem::cli {
namespace {

struct Pool {
  const char* name;
  router::WorkerRole role;
  int32_t count;
  std::string kv_dtype;  // "same": what --kv-dtype says
};

struct ModelChoice {
  std::string name;  // empty: the worker's default, the file's name
  std::string path;
  std::vector<std::string> adapters = {};  // NAME=PATH
};

// "NAME=PATH" or "PATH".
ModelChoice parse_model(const std::string& text) {
  const size_t equals = text.find('=');
  const bool named = equals != std::string::npos && equals > 0 &&
                     text.find_first_of("/:") > equals;  // else the sign is part of a path
  return named ? ModelChoice{.name = text.substr(0, equals), .path = text.substr(equals + 1)}
               : ModelChoice{.name = "", .path = text};
}

// Gives each "NAME=PATH", or "MODEL:NAME=PATH" when there are several models, to its model.
Status share_adapters(const std::vector<std::string>& adapters, std::vector<ModelChoice>& models) {
  for (const std::string& text : adapters) {
    if (models.size() == 1) {
      models.front().adapters.push_back(text);
      continue;
    }
    const size_t colon = text.substr(0, text.find('=')).rfind(':');
    const std::string name = colon == std::string::npos ? "" : text.substr(0, colon);
    const auto found = std::ranges::find(models, name, &ModelChoice::name);
    if (name.empty() || found == models.end()) {
      return make_error(400, "invalid_option",
                        "--adapter: with several models it is MODEL:NAME=PATH, MODEL being a name "
                        "given by --model MODEL=...; \"" +
                            text + "\" is not.");
    }
    found->adapters.push_back(text.substr(colon + 1));
  }
  return {};
}

// A folder that only this user can enter, with all that is in it until this object goes.
class PrivateFolder {
 public:
  PrivateFolder() {
    constexpr std::string_view kName = "/tandem-up-XXXXXX";
    std::string path = socket_folder(kName.size() + sizeof("/999-prefill-999.events"));
    path += kName;
    if (mkdtemp(path.data()) != nullptr) path_ = path;
  }
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;
  ~PrivateFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }  // empty: it could not be made

 private:
  std::string path_;
};

// One worker process to be.
struct Planned {
  size_t model;
  router::WorkerRole role;
  ChildSpec spec;
};

std::vector<Planned> plan_workers(const std::vector<ModelChoice>& models,
                                  const std::vector<Pool>& pools, WorkerFlags flags,
                                  const std::string& secret, const std::string& sockets) {
  const std::string kv_dtype = flags.kv_dtype;
  int32_t workers = 0;
  for (const Pool& pool : pools) workers += pool.count * static_cast<int32_t>(models.size());
  const auto cores = static_cast<int32_t>(std::max(1U, std::thread::hardware_concurrency()));
  if (flags.threads == 0) flags.threads = std::max(1, cores / workers);
  std::vector<Planned> planned;
  for (size_t model = 0; model < models.size(); ++model) {
    flags.model = models[model].path;
    flags.name = models[model].name;
    flags.adapters = models[model].adapters;
    const std::string prefix = models.size() > 1 ? std::to_string(model) + "-" : "";
    for (const Pool& pool : pools) {
      for (int32_t i = 0; i < pool.count; ++i) {
        ChildSpec spec;
        spec.name = prefix + pool.name + "-" + std::to_string(i);
        spec.words = {"worker"};
        flags.kv_dtype = pool.kv_dtype == "same" ? kv_dtype : pool.kv_dtype;
        const auto words = flags.words();
        spec.words.insert(spec.words.end(), words.begin(), words.end());
        spec.words.insert(spec.words.end(), {"--role", pool.name});
        // What it holds, told to the router. Events hold prompts' tokens: no port that anybody on
        // this machine could listen to.
        if (!sockets.empty()) {
          const std::string events = "ipc://" + sockets + "/" + spec.name;
          spec.words.insert(spec.words.end(), {"--kv-events", events + ".events",
                                               "--kv-events-replay", events + ".replay"});
        }
        // In the environment, where other users of the machine cannot read it.
        spec.environment = {"TANDEM_SECRET=" + secret, "TANDEM_LOG_NAME=" + spec.name};
        planned.push_back({model, pool.role, std::move(spec)});
      }
    }
  }
  return planned;
}

// The text sides of the models, each read from its file on a thread of its own while the workers
// read the weights; a worker that turns out to have another one is asked for it.
class TextsAhead {
 public:
  explicit TextsAhead(const std::vector<ModelChoice>& models) {
    for (const ModelChoice& model : models) {
      try {
        coming_.push_back(
            std::async(std::launch::async, [path = model.path]() -> Result<router::ServedText> {
              TANDEM_TRY(checkpoint, weights::Checkpoint::open(path));
              TANDEM_TRY(spec, engine::tokenizer_spec_of(checkpoint));
              return router::make_served_text(std::move(spec));
            }));
      } catch (const std::system_error&) {
        return;  // no thread: the workers are asked
      }
    }
  }
  // What could be read; the workers tell what is wrong with the rest.
  std::vector<router::ServedText> take() {
    std::vector<router::ServedText> texts;
    for (auto& one : coming_) {
      if (auto made = one.get()) texts.push_back(std::move(*made));
    }
    return texts;
  }

 private:
  std::vector<std::future<Result<router::ServedText>>> coming_;
};

// An error when an adapter has the name of another model or of another model's adapter.
Status check_names(const std::vector<ModelChoice>& models,
                   const std::vector<const ChildReady*>& served) {
  std::set<std::string> taken;
  for (const ChildReady* model : served) taken.insert(model->model);
  for (const ModelChoice& model : models) {
    for (const std::string& adapter : model.adapters) {
      const std::string name = adapter.substr(0, adapter.find('='));
      if (!taken.insert(name).second) {
        return make_error(400, "invalid_option",
                          "--adapter: \"" + name +
                              "\" is the name of another model or adapter; each needs its own.");
      }
    }
  }
  return {};
}

// What each model is served as; an error when two would have one name.
Result<std::vector<const ChildReady*>> by_model(const std::vector<Planned>& planned,
                                                const std::vector<ChildReady>& ready,
                                                size_t models) {
  std::vector<const ChildReady*> found(models);
  for (size_t i = 0; i < planned.size(); ++i) {
    for (size_t other = 0; other < planned[i].model; ++other) {
      if (found[other]->model == ready[i].model) {
        return make_error(400, "invalid_option",
                          "Two models would be served as \"" + ready[i].model +
                              "\"; name them: --model NAME=PATH.");
      }
    }
    found[planned[i].model] = &ready[i];
  }
  return found;
}

}  // namespace

int run_up(const Arguments& arguments) {
  config::Options options("up",
                          "Serves one or several models on this machine: a router, and prefill and "
                          "decode workers of each model as processes of their own.");
  WorkerFlags flags;
  RouterFlags router_flags;
  int32_t prefill = -1;
  int32_t decode = -1;
  int32_t unified = 0;
  std::vector<std::string> model_texts;
  flags.declare(options, false);
  options.list(model_texts, "model", "[NAME=]MODEL",
               "further models, each with workers of its own; requests choose by name");
  router_flags.declare(options);
  options.value(prefill, "prefill", "N",
                "prefill workers of each model; -1: 1 unless --unified is given", -1, 64);
  options.value(decode, "decode", "N",
                "decode workers of each model; -1: 1 unless --unified is given", -1, 64);
  options.value(unified, "unified", "N", "workers of each model that do both, instead of a pair", 0,
                64);
  std::string prefill_kv_dtype = "same";
  std::string decode_kv_dtype = "same";
  std::vector<std::string> words = {"same"};
  words.insert(words.end(), kKvDtypeWords.begin(), kKvDtypeWords.end());
  options.choice(prefill_kv_dtype, "prefill-kv-dtype", words,
                 "--kv-dtype of the prefill workers; same: as the others");
  options.choice(decode_kv_dtype, "decode-kv-dtype", words,
                 "--kv-dtype of the decode workers; same: as the others");
  options.example("tandem up models/smollm2-135m-instruct.Q4_1.gguf");
  options.example(
      "tandem up model.gguf --port 9000 --prefill 1 --decode 2 --kv-memory 2G --api-key SECRET");
  options.example("tandem up --model small=smollm2.gguf --model large=gemma.gguf --unified 1");
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
  std::vector<ModelChoice> models;
  if (!flags.model.empty()) models.push_back({.name = flags.name, .path = flags.model});
  for (const std::string& text : model_texts) models.push_back(parse_model(text));
  if (models.empty())
    return report(Error{400, "invalid_option", "MODEL is missing (see tandem up --help)"});
  for (ModelChoice& choice : models) {
    flags.model = choice.path;
    flags.name = choice.name;
    if (Status found = flags.find_model(); !found) return report(found.error());
    choice = {.name = flags.name, .path = flags.model};
  }
  if (Status shared = share_adapters(flags.adapters, models); !shared)
    return report(shared.error());
  observe::set_log_level(flags.log_level);
  observe::set_log_name("router");
  const std::string secret = shared_secret().empty() ? numerics::random_hex(32) : shared_secret();
  const std::vector<Pool> pools = {
      {"prefill", router::WorkerRole::kPrefill, prefill, prefill_kv_dtype},
      {"decode", router::WorkerRole::kDecode, decode, decode_kv_dtype},
      {"unified", router::WorkerRole::kUnified, unified, "same"}};
  const PrivateFolder sockets;
  const std::vector<Planned> planned = plan_workers(models, pools, flags, secret, sockets.path());
  std::vector<ChildSpec> specs;
  specs.reserve(planned.size());
  for (const Planned& worker : planned) specs.push_back(worker.spec);
  Supervisor supervisor(std::move(specs));
  std::mutex mutex;
  std::unique_ptr<RouterProcess> process;
  Signals signals;  // the last of these to come and the first to go: its action uses the others
  signals.on_signal([&] {
    const std::lock_guard lock(mutex);
    process ? process->shut_down() : supervisor.interrupt();
  });
  TextsAhead texts(models);
  auto ready = supervisor.start();
  if (!ready) return report(ready.error());
  std::vector<router::WorkerAddress> workers;
  std::vector<BudgetLine> budget;
  workers.reserve(ready->size());
  budget.reserve(ready->size());
  for (size_t i = 0; i < planned.size(); ++i) {
    workers.push_back({"http://127.0.0.1:" + std::to_string((*ready)[i].port), planned[i].role});
    budget.push_back({planned[i].spec.name, (*ready)[i].memory, workers.back().url});
  }
  const auto served = by_model(planned, *ready, models.size());
  if (!served) return report(served.error());
  if (Status names = check_names(models, *served); !names) return report(names.error());
  router::RouterOptions router_options = router_flags.router_options();
  router_options.workers = std::move(workers);
  router_options.secret = secret;
  router_options.texts = texts.take();
  auto made = RouterProcess::create(router_flags, std::move(router_options), flags.drain);
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
    for (const ChildReady* model : *served)
      std::printf("serving %s (%d tokens of context)\n", model->model.c_str(),
                  model->context_length);
    std::printf("listening on http://%s:%u\n", router_flags.host.c_str(), process->port());
    std::fflush(stdout);
  });
  process->run();
  supervisor.stop(std::chrono::seconds(10));
  return 0;
}

}  // namespace tandem::cli
