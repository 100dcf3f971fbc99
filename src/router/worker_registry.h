// WorkerRegistry: what the router knows of its workers: who they are, whether they live, how fast
// they are and how much they have to do. One coroutine per worker polls it (Tandem's own:
// poll_tandem.cc; other engines': poll_engine.cc); failed legs report here too. One thread: the
// router's reactor.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "net/event.h"
#include "net/http_client.h"
#include "router/connectors/connector.h"
#include "router/connectors/leg_body.h"
#include "router/engine_replies.h"
#include "router/legs/load.h"
#include "router/model_list.h"
#include "router/policy/prefill_rate.h"
#include "router/policy/recent_tokens.h"
#include "router/policy/types.h"
#include "router/prefix/prefix_holders.h"
#include "router/served_text.h"

namespace tandem::router {

struct WorkerAddress {
  std::string url = {};
  WorkerRole role = WorkerRole::kUnified;
  std::string connector = "tandem";  // a row of the connector table
  std::string group = {};            // pairs are made only within one
  std::string model = {};            // of an engine: its name; empty: as its /v1/models says
  std::string kv_events = {};        // where it publishes block events; empty: as it says, or none
  uint16_t bootstrap_port = 0;       // of a prefill's side channel; 0: as it says, or the usual
  int32_t dp_size = 0;               // data-parallel ranks; 0: as it says, or one
  uint16_t notify_port = 0;          // MoRI-IO's second port; 0: the usual one
  int32_t tp_size = 1;               // MoRI-IO: tensor-parallel ranks, which the peer must know
  bool operator==(const WorkerAddress&) const = default;
};

// Sets the field of that name from text: "url", "role", "connector", "group", "model", "kv_events",
// "bootstrap_port", "dp_size", "notify_port", "tp_size". Errors: 400 "bad_worker".
Status set_worker_field(WorkerAddress& address, std::string_view field, const std::string& value);

// GET /tandem/v1/info of a worker. Of other engines: what their own replies gave of it.
struct WorkerInfo {
  WorkerRole role = WorkerRole::kUnified;
  std::string epoch;  // changes when the process does
  std::string model_id;
  int64_t context_length = 0;
  std::string lineage;
  std::string tokenizer;  // its text::tokenizer_identity(); empty: it does not say
  int32_t block_tokens = 16;
  std::string handoff_address;        // "unix:/path"; prefill only
  int64_t token_capacity = 0;         // what its KV memory holds
  std::string kv_events;              // where it publishes block events (kv_feeds.h), if anywhere
  std::vector<std::string> adapters;  // LoRA adapters by their served names, sorted
};
Result<WorkerInfo> parse_worker_info(const JsonValue& json);

// How an engine's pair finds it, and the router what it publishes.
struct EngineInfo {
  std::vector<EngineModel> models;
  std::vector<std::string> engine_ids;  // IdentitySource::kBootstrapQuery: by data-parallel rank
  std::vector<PrefillIdentity> identities;  // IdentitySource::kPrefillReply: by rank
  std::string context_endpoint;             // IdentitySource::kServerInfo: TensorRT-LLM's
  std::optional<int32_t> context_dp_rank;
  uint16_t bootstrap_port = 0;
  int32_t dp_size = 1;
  std::string kv_events;  // where it publishes block events (kv_feeds.h); empty: nowhere
};

struct RegistryOptions {
  std::string secret;          // x-tandem-auth, only to Tandem's own workers
  std::string worker_api_key;  // of other engines, for the router's own questions
  Duration poll_interval = std::chrono::milliseconds(500);
  Duration poll_timeout = std::chrono::seconds(1);
  int poll_failures = 2;  // in a row: down
  // The same for other engines, which answer late when they are busy.
  Duration health_interval = std::chrono::seconds(1);
  Duration health_timeout = std::chrono::seconds(5);
  int health_failures = 3;
  // One that takes connections, has requests of ours and says nothing at all is down after so long;
  // zero: never.
  Duration silence_limit = std::chrono::minutes(5);
  int health_successes = 2;                              // in a row: up again
  Duration relearn_interval = std::chrono::seconds(10);  // models, ranks, epochs
  int breaker_failures = 5;                              // charged legs in a row: open
  Duration breaker_open = std::chrono::seconds(5);
  size_t warm_connections = 4;    // opened ahead to a worker that came up
  std::vector<ServedText> texts;  // at hand: a worker that tells one's identity is not asked for it
};

class WorkerRegistry {
 public:
  struct Events {
    std::function<void(WorkerId)> down;       // legs there are lost
    std::function<void(WorkerId)> new_epoch;  // its cache is gone
    std::function<void(WorkerId)> learned;    // it told of itself, before it is up
  };
  enum class State { kUnknown, kUp, kNotReady, kDown, kRemoved };

  // `ledger` outlives it.
  WorkerRegistry(net::Reactor& reactor, net::HttpClient& client, const LoadLedger& ledger,
                 RegistryOptions options, Events events);

  // Polling of it begins at once when start() was called before. Errors: 400 "bad_url",
  // "unknown_connector", "bad_worker".
  Result<WorkerId> add(const WorkerAddress& address);
  // The worker was started again elsewhere.
  void move(WorkerId worker, const std::string& url_text, const net::Url& url);
  // A draining worker gets no new legs; those that run go on.
  void drain(WorkerId worker, bool on);
  // Drains it and forgets it; its number is not used again. Its legs go on.
  void remove(WorkerId worker);
  void start(std::shared_ptr<void> keep_alive);  // polling holds `keep_alive` until stop()
  void stop();

  size_t size() const { return workers_.size(); }
  const WorkerAddress& address(WorkerId worker) const { return workers_[worker]->address; }
  const std::string& url_text(WorkerId worker) const { return workers_[worker]->address.url; }
  const net::Url& url(WorkerId worker) const { return workers_[worker]->url; }
  WorkerRole role(WorkerId worker) const { return workers_[worker]->address.role; }
  const Connector& connector(WorkerId worker) const { return *workers_[worker]->connector; }
  const WorkerInfo& info(WorkerId worker) const { return workers_[worker]->info; }
  const EngineInfo& engine(WorkerId worker) const { return workers_[worker]->engine; }
  uint32_t group(WorkerId worker) const { return workers_[worker]->group; }
  State state(WorkerId worker) const { return workers_[worker]->state; }
  bool up(WorkerId worker) const { return workers_[worker]->state == State::kUp; }
  bool draining(WorkerId worker) const { return workers_[worker]->draining; }
  // Its health route does not answer while it works on requests of ours: it may be busy, so it is
  // not down and no leg is cut, but new ones go to others if there are any.
  bool silent(WorkerId worker) const { return workers_[worker]->silent; }
  bool breaker_open(WorkerId worker) const;
  bool available(WorkerId worker) const;  // up, not silent, not draining, breaker closed
  // Some model has a pair, or a unified worker, that can take requests.
  bool ready() const;
  // Every worker is up.
  bool complete() const;
  bool servable(const ServedModel& model) const;
  // Workers that are up and answer its clients: decode and unified.
  int64_t answering(const ServedModel& model) const;
  bool serves(WorkerId id, const ServedModel& model) const;
  // Some worker is another engine's: bodies must be looked at before it is known whose they are.
  bool any_engine() const { return engines_ > 0; }
  // Never null.
  const std::shared_ptr<const ModelList>& models() const { return models_; }

  // The workers of `model`, each of their ranks apart, into `out` (emptied before). `held`: of the
  // prompt, in blocks of `block_tokens`. When all workers of a role are silent or have their
  // breakers open, they are taken for good: some chance is better than none.
  void snapshots(const ServedModel& model, std::span<const HeldPrefix> held, int32_t block_tokens,
                 std::vector<WorkerSnapshot>& out) const;
  // The data-parallel ranks that a request can be given to.
  int32_t ranks(WorkerId worker) const;
  // The worker's whole load: ours and what others gave it.
  int64_t others_requests(WorkerId worker) const { return workers_[worker]->others_requests; }

  // The secret or the key that the router itself owes to the worker.
  void add_own_headers(WorkerId worker, net::Headers& headers) const;

  // From legs. A failure to connect takes the worker down at once, another one makes the poller
  // look now.
  void leg_died(WorkerId worker, const std::string& error_code);
  void look_again(WorkerId worker);  // something it told may be old
  void heard(WorkerId worker);       // bytes of it came: it is alive
  void charge(WorkerId worker);
  void succeeded(WorkerId worker);
  // That rank computed so many tokens of a prompt that was sent to it at `sent`, by now.
  void measured_prefill(WorkerId worker, int32_t rank, TimePoint sent, int64_t tokens);
  // A prompt of these blocks was placed there, or computed.
  void touched(WorkerId worker, int32_t rank, std::span<const uint64_t> blocks,
               int32_t block_tokens);
  void measured_step(WorkerId worker, double seconds);
  // Prefill's answer says who that rank is. True: another process than the one that was known.
  bool identity_seen(WorkerId worker, int32_t rank, const PrefillIdentity& identity);
  // Asks that rank of a prefill again who it is, and the others when it is another process by now.
  // Once at a time: who comes while it is being asked waits for that answer. Bounded.
  net::asio::awaitable<void> relearn(WorkerId worker, int32_t rank);

 private:
  // An answer to relearn() that is under way.
  struct Asking {
    explicit Asking(net::Reactor& reactor) : done(reactor) {}
    net::Event done;
    bool over = false;
  };
  // Ranks that are being asked who they are.
  struct Probes {
    explicit Probes(net::Reactor& reactor) : done(reactor) {}
    std::vector<int32_t> ranks;
    size_t next = 0;
    size_t running = 0;
    Status status;
    net::Event done;
  };
  struct Worker {
    explicit Worker(net::Reactor& reactor) : poke(reactor) {}
    WorkerAddress address;
    net::Url url;
    const Connector* connector = nullptr;  // a row of the table
    uint32_t group = 0;
    uint64_t key = 0;
    WorkerInfo info;
    EngineInfo engine;
    State state = State::kUnknown;
    bool draining = false;
    bool silent = false;
    bool was_up = false;
    bool away = false;  // it was gone: when it is there again it is another process
    TimePoint heard;
    int failures = 0;
    int successes = 0;
    int charged = 0;
    TimePoint open_until;
    TimePoint relearn_at;
    size_t load_path = 0;         // of load_paths(); beyond the last: it does not say
    int64_t others_requests = 0;  // reported, less ours at that moment
    // By rank, as many as were used.
    std::vector<PrefillRate> prefill_rates;
    std::vector<RecentTokens> recent_tokens;
    double step_seconds = 0.02;
    std::string complaint;        // logged once
    bool ranks_outdated = false;  // what is known of other ranks may be of a process that ended
    std::shared_ptr<Asking> asking;
    net::Event poke;
  };

  net::asio::awaitable<void> poll(WorkerId id, std::shared_ptr<void> keep_alive);
  net::asio::awaitable<bool> poll_tandem(WorkerId id);
  net::asio::awaitable<Result<net::WholeResponse>> get(WorkerId id, const std::string& path,
                                                       Duration limit, size_t max_bytes);
  net::asio::awaitable<Status> load_model(WorkerId id);
  net::asio::awaitable<Result<ServedText>> load_text(WorkerId id);
  Status accept_info(Worker& worker, WorkerId id, WorkerInfo info);
  Status check_agreement(const WorkerInfo& info, WorkerId id) const;

  net::asio::awaitable<bool> poll_engine(WorkerId id);
  net::asio::awaitable<Status> learn_engine(WorkerId id);
  net::asio::awaitable<Status> learn_models(WorkerId id);
  net::asio::awaitable<Status> learn_identity_of(WorkerId id);
  net::asio::awaitable<Status> learn_server_info(WorkerId id);
  net::asio::awaitable<Status> learn_engine_ids(WorkerId id);
  net::asio::awaitable<Status> learn_identity(WorkerId id, int32_t rank);
  std::vector<int32_t> unknown_ranks(WorkerId id) const;
  net::asio::awaitable<Status> learn_anew(WorkerId id, int32_t rank);
  net::asio::awaitable<Status> learn_identities(WorkerId id, std::vector<int32_t> of);
  net::asio::awaitable<void> probe_ranks(WorkerId id, std::shared_ptr<Probes> probes,
                                         std::shared_ptr<void> keep_alive);
  net::asio::awaitable<void> read_load(WorkerId id);
  void publish_models(WorkerId id);

  // It did not answer its health route, `failures` times in a row.
  void not_answered(WorkerId id, const Error& error);
  void restarted(WorkerId id);
  static void keep_identity(Worker& worker, int32_t rank, const PrefillIdentity& identity);
  void forget_unserved_models();
  bool in_use(const ServedModel& model, WorkerId except) const;
  void set_state(WorkerId id, State state, const std::string& why);
  void complain(Worker& worker, const std::string& what);
  uint32_t group_number(const WorkerAddress& address);

  net::Reactor& reactor_;
  net::HttpClient& client_;
  const LoadLedger& ledger_;
  RegistryOptions options_;
  Events events_;
  std::shared_ptr<void> keep_alive_;
  bool stopping_ = false;
  size_t engines_ = 0;
  size_t removed_ = 0;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::pair<std::string, std::string>>
      groups_;  // connector, name; the index is the number
  std::shared_ptr<const ModelList> models_ = std::make_shared<const ModelList>();
};

const char* role_name(WorkerRole role);
const char* state_name(WorkerRegistry::State state);

}  // namespace tandem::router
