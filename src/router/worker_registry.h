// WorkerRegistry: what the router knows of its workers: who they are, whether they live, how fast
// they are. One coroutine per worker polls it; failed legs report here too. One thread: the
// router's reactor.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "net/event.h"
#include "net/http_client.h"
#include "router/legs/load.h"
#include "router/policy/types.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tandem::router {

struct WorkerAddress {
  std::string url;
  WorkerRole role = WorkerRole::kUnified;
};

// GET /tandem/v1/info of a worker.
struct WorkerInfo {
  WorkerRole role = WorkerRole::kUnified;
  std::string epoch;  // changes when the process does
  std::string model_id;
  int64_t context_length = 0;
  std::string lineage;
  int32_t block_tokens = 16;
  std::string handoff_address;        // "unix:/path"; prefill only
  int64_t token_capacity = 0;         // what its KV memory holds
  std::vector<std::string> adapters;  // LoRA adapters by their served names, sorted
};
Result<WorkerInfo> parse_worker_info(const JsonValue& json);

// A model that is served: what all of its workers have in common. Requests in flight keep theirs.
struct ServedModel {
  std::string id;
  int64_t context_length = 0;
  std::string lineage;
  int32_t block_tokens = 16;
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::unique_ptr<text::ChatTemplate> chat_template;  // null: the model has none
  std::vector<std::string> adapters;

  bool has_adapter(std::string_view name) const;
};

// Every model that was seen, in the order in which they came. Immutable: a change is a new list.
class ModelList {
 public:
  using Pointer = std::shared_ptr<const ServedModel>;
  explicit ModelList(std::vector<Pointer> models = {}) : models_(std::move(models)) {}

  const std::vector<Pointer>& all() const { return models_; }
  Pointer named(std::string_view id) const;  // a model, not an adapter; null: none
  // What a request that names `name` gets: a model, the base model of an adapter, or for "default"
  // the only model. Errors: 404 "model_not_found" and 400 "model_required", with the names.
  Result<Pointer> choose(const std::string& name) const;

 private:
  std::string names() const;
  std::vector<Pointer> models_;
};

struct RegistryOptions {
  std::string secret;  // x-tandem-auth
  Duration poll_interval = std::chrono::milliseconds(500);
  Duration poll_timeout = std::chrono::seconds(1);
  int poll_failures = 2;     // in a row: down
  int breaker_failures = 5;  // charged legs in a row: open
  Duration breaker_open = std::chrono::seconds(5);
};

class WorkerRegistry {
 public:
  struct Events {
    std::function<void(WorkerId)> down;       // legs there are lost
    std::function<void(WorkerId)> new_epoch;  // its cache is gone
  };

  WorkerRegistry(net::Reactor& reactor, net::HttpClient& client, RegistryOptions options,
                 Events events);

  WorkerId add(const WorkerAddress& address, const net::Url& url);
  // The worker was started again elsewhere.
  void move(WorkerId worker, const std::string& url_text, const net::Url& url);
  void start(std::shared_ptr<void> keep_alive);  // polling holds `keep_alive` until stop()
  void stop();

  size_t size() const { return workers_.size(); }
  const std::string& url_text(WorkerId worker) const { return workers_[worker]->url_text; }
  const net::Url& url(WorkerId worker) const { return workers_[worker]->url; }
  WorkerRole role(WorkerId worker) const { return workers_[worker]->role; }
  const WorkerInfo& info(WorkerId worker) const { return workers_[worker]->info; }
  bool up(WorkerId worker) const { return workers_[worker]->state == State::kUp; }
  bool available(WorkerId worker) const;
  // Some model has a pair, or a unified worker, that can take requests.
  bool ready() const;
  // Every worker is up.
  bool complete() const;
  bool servable(const ServedModel& model) const;
  // Never null.
  const std::shared_ptr<const ModelList>& models() const { return models_; }

  // The workers of `model`. `held`: leading blocks by worker, or empty.
  std::vector<WorkerSnapshot> snapshots(const ServedModel& model, const LoadLedger& ledger,
                                        const std::vector<int32_t>& held) const;

  // From legs. A failure to connect takes the worker down at once, another one makes the poller
  // look now.
  void leg_died(WorkerId worker, const std::string& error_code);
  void charge(WorkerId worker);
  void succeeded(WorkerId worker);
  void measured_prefill(WorkerId worker, double tokens_per_second);
  void measured_step(WorkerId worker, double seconds);

 private:
  enum class State { kUnknown, kUp, kNotReady, kDown };
  struct Worker {
    explicit Worker(net::Reactor& reactor) : poke(reactor) {}
    std::string url_text;
    net::Url url;
    WorkerRole role = WorkerRole::kUnified;
    WorkerInfo info;
    State state = State::kUnknown;
    int failures = 0;
    int charged = 0;
    TimePoint open_until;
    double prefill_rate = 2000;
    double step_seconds = 0.02;
    std::string complaint;  // logged once
    net::Event poke;
  };

  net::asio::awaitable<void> poll(WorkerId id, std::shared_ptr<void> keep_alive);
  net::asio::awaitable<bool> poll_once(WorkerId id);
  net::asio::awaitable<Result<net::WholeResponse>> get(WorkerId id, std::string path,
                                                       Duration limit, size_t max_bytes);
  net::asio::awaitable<Status> load_model(WorkerId id);
  Status accept_info(Worker& worker, WorkerId id, WorkerInfo info);
  Status check_agreement(const WorkerInfo& info, WorkerId id) const;
  void forget_unserved_models();
  bool in_use(const ServedModel& model, WorkerId except) const;
  bool serves(WorkerId id, const ServedModel& model) const;
  void set_state(WorkerId id, State state, const std::string& why);
  void complain(Worker& worker, const std::string& what);

  net::Reactor& reactor_;
  net::HttpClient& client_;
  RegistryOptions options_;
  Events events_;
  bool stopping_ = false;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::shared_ptr<const ModelList> models_ = std::make_shared<const ModelList>();
};

const char* role_name(WorkerRole role);

}  // namespace tandem::router
