#include "worker/worker.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <utility>

#include <unistd.h>

#include "base/environment.h"
#include "numerics/digest.h"
#include "numerics/hmac.h"
#include "observe/log.h"
#include "worker/routes.h"
#include "worker/stale_sockets.h"

namespace tandem::worker {

std::string_view role_name(Role role) {
  switch (role) {
    case Role::kPrefill:
      return "prefill";
    case Role::kDecode:
      return "decode";
    default:
      return "unified";
  }
}

Result<Role> parse_role(std::string_view name) {
  for (const Role role : {Role::kPrefill, Role::kDecode, Role::kUnified}) {
    if (name == role_name(role)) return role;
  }
  return invalid_request("The role is prefill, decode or unified, not \"" + std::string(name) +
                         "\".");
}

namespace {

// The same after a restart. A worker whose port the system picks has no such name.
std::string instance_name(const WorkerOptions& options) {
  std::array<char, 256> host{};
  if (options.port == 0 || gethostname(host.data(), host.size() - 1) != 0) return "";
  return std::string(host.data()) + "/" + options.host + ":" + std::to_string(options.port);
}

}  // namespace

Worker::Worker(WorkerOptions options)
    : options_(std::move(options)), epoch_(numerics::random_hex(16)) {}

Result<std::unique_ptr<Worker>> Worker::create(WorkerOptions options) {
  std::unique_ptr<Worker> worker(new Worker(std::move(options)));
  TANDEM_CHECK(worker->start());
  return worker;
}

Status Worker::start() {
  options_.model.prefill_chunk = options_.prefill_chunk;
  options_.model.max_sequences = options_.max_sequences;
  options_.model.kv_bytes = options_.kv_bytes;
  options_.model.block_tokens = options_.block_tokens;
  TANDEM_TRY(served, load_served_model(options_.model));
  served_ = std::move(served);
  options_.prefill_chunk = served_.prefill_chunk;
  const ops::PageLayout layout = served_.model->page_layout(options_.block_tokens);
  const std::vector<model::PageGroup> groups = served_.model->page_groups();
  // At least a few pages: the context is cut to what they hold.
  TANDEM_TRY(budget, model::plan_memory(served_.model->memory(), layout, options_.kv_bytes,
                                        {.groups = groups,
                                         .pass_tokens = options_.prefill_chunk,
                                         .min_tokens = int64_t{4} * options_.block_tokens}));
  memory_ = budget;
  TANDEM_TRY(arena, device::SharedArena::create(layout.page_bytes(), memory_.pages));
  arena_ = std::move(arena);

  ops::PageArenaView view{arena_->pages(), arena_->shape().page_stride, memory_.pages, layout};
  protocol::HelloFrame hello;
  hello.role = role_name(options_.role);
  hello.epoch = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                          std::chrono::system_clock::now().time_since_epoch())
                                          .count());
  hello.instance = instance_name(options_);
  hello.lineage = served_.lineage;
  hello.representation = served_.model->numeric_path();
  hello.kv_scales = served_.model->kv_scales().digest();
  hello.weights = served_.weights;
  hello.accepts = options_.kv_accepts;
  const std::string identity = hello.lineage + "/" + hello.representation + "/" +
                               std::string(ops::kv_dtype_name(layout.dtype));
  fingerprint_ =
      "fp_" + numerics::to_hex(numerics::sha256(std::as_bytes(std::span(identity)))).substr(0, 10);
  hello.block_tokens = static_cast<uint32_t>(layout.block_tokens);
  hello.kv_dtype = static_cast<uint32_t>(layout.dtype);
  hello.layout_id = layout.layout_id;
  hello.kv_heads = static_cast<uint32_t>(layout.kv_heads);
  hello.head_dim = static_cast<uint32_t>(layout.head_dim);
  describe_groups(groups, hello);
  metrics_
      .gauge("tandem_kv_bytes_per_token", "Bytes of KV pages that each further token takes.",
             {{"kv_dtype", std::string(ops::kv_dtype_name(layout.dtype))}})
      .set(static_cast<double>(memory_.bytes_per_token()));
  engine::EngineOptions engine_options;
  engine_options.prefill_chunk = options_.prefill_chunk;
  engine_options.prompt_patience = options_.prompt_patience;
  engine_options.max_sequences = options_.max_sequences;
  engine_options.max_in_flight = options_.steps_in_flight;
  engine_options.lineage = served_.lineage;
  engine_options.integrity = options_.integrity;
  engine_options.integrity.on_full = [this] {
    distrusted_ = true;
    shut_down();
  };
  if (!options_.kv_events.empty()) {
    TANDEM_TRY(publisher, KvPublisher::create({.endpoint = options_.kv_events,
                                               .replay_endpoint = options_.kv_events_replay,
                                               .model = served_.name,
                                               .lineage = served_.lineage,
                                               .block_tokens = options_.block_tokens},
                                              metrics_));
    kv_events_ = std::move(publisher);
    engine_options.kv_observer = kv_events_.get();
  }
  engine_ = std::make_unique<engine::Engine>(
      std::move(served_.model), served_.tokenizer, view,
      [arena = arena_.get()](int32_t page, uint64_t generation) {
        arena->set_generation(page, generation);
      },
      std::move(engine_options), metrics_);

  HandoffServiceOptions handoff;
  handoff.peer.hello = std::move(hello);
  handoff.peer.secret = options_.secret;
  if (options_.handoff_listen.empty()) {
    const std::string name =
        "tandem-" + std::to_string(getpid()) + "-" + epoch_.substr(0, 8) + ".sock";
    const std::string folder = socket_folder(name.size());
    remove_stale_sockets(folder);
    options_.handoff_listen = "unix:" + folder + "/" + name;
  }
  handoff.listen = options_.handoff_listen;
  handoff.advertised_host = options_.handoff_host;
  handoff.transports = options_.transports;
  handoff.tls = options_.handoff_tls;
  handoff.max_unfenced_pages = static_cast<size_t>(memory_.pages) / 8;
  handoff.on_must_restart = [this] { shut_down(); };
  handoff.faults = options_.integrity.faults;
  TANDEM_TRY(handoffs, HandoffService::create(*engine_, *arena_, std::move(handoff), metrics_));
  handoffs_ = std::move(handoffs);

  routes_ = std::make_unique<Routes>(Routes{*this});
  net::ServerOptions server_options;
  server_options.host = options_.host;
  server_options.port = options_.port;
  server_options.max_body_bytes = options_.max_body_bytes;
  server_options.metrics = &metrics_;
  server_ = std::make_unique<net::HttpServer>(
      reactor_, server_options,
      [this](net::HttpRequest& request, net::HttpResponder& responder) {
        return routes_->handle(request, responder);
      },
      [this](const net::HttpRequest& request) { return routes_->check_head(request); });
  TANDEM_TRY(port, server_->listen());
  port_ = port;
  return {};
}

Worker::~Worker() {
  server_.reset();
  pool_.stop();
  if (handoffs_) handoffs_->stop();
  engine_.reset();
  handoffs_.reset();
}

void Worker::run() { reactor_.run(); }

void Worker::shut_down() {
  reactor_.post([this] {
    if (std::exchange(draining_, true)) return;
    observe::log_info("draining: {} requests are running", server_->running_requests());
    server_->announce_close();
    reactor_.spawn(drain_and_stop());
  });
}

net::asio::awaitable<void> Worker::drain_and_stop() {
  // The port stays open while requests run: a router that finds it closed takes this worker for
  // dead and ends its streams; /ready's 503 only keeps new ones away.
  const TimePoint until = std::chrono::steady_clock::now() + options_.drain;
  while (server_->running_requests() > 0 && std::chrono::steady_clock::now() < until)
    co_await reactor_.sleep(std::chrono::milliseconds(20));
  // What still runs ends with an error that its client can read; give that time to leave.
  cutting_ = true;
  if (!open_.empty()) observe::log_warning("the drain limit passed: {} requests end", open_.size());
  for (const auto& events : open_) events->interrupt();
  if (!co_await server_->drain(std::chrono::seconds(2)))
    observe::log_warning("some requests were cut");
  reactor_.stop();
}

}  // namespace tandem::worker
