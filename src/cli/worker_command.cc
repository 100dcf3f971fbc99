#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>

#include <sys/prctl.h>
#include <unistd.h>

#include "base/json_value.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "observe/log.h"

namespace tandem::cli {
namespace {

// A supervisor (`tandem up`) passes the descriptor of a pipe: the worker tells it there that it is
// ready, and ends when the supervisor does.
int supervisor_descriptor() {
  const char* text = std::getenv("TANDEM_READY_FD");
  return text == nullptr ? -1 : std::atoi(text);
}

void tell_supervisor(int descriptor, const worker::Worker& worker) {
  JsonValue ready = JsonValue::object();
  ready.set("port", JsonValue::integer(worker.port()));
  ready.set("model", JsonValue::string(worker.model_name()));
  ready.set("context_length", JsonValue::integer(worker.context_length()));
  ready.set("weights", JsonValue::unsigned_integer(worker.memory().weights));
  ready.set("activations", JsonValue::unsigned_integer(worker.memory().activations));
  ready.set("kv", JsonValue::unsigned_integer(worker.memory().kv));
  ready.set("kv_dtype",
            JsonValue::string(std::string(ops::kv_dtype_name(worker.memory().kv_dtype))));
  ready.set("kv_tokens", JsonValue::integer(worker.memory().tokens));
  const std::string line = ready.dump() + "\n";
  if (write(descriptor, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    observe::log_warning("the supervisor does not listen");
  }
  close(descriptor);
}

}  // namespace

int run_worker(const Arguments& arguments) {
  config::Options options(
      "worker",
      "Runs one worker. Its role only says what the router sends here; requests go to the router.");
  WorkerFlags flags;
  flags.declare(options);
  std::string role = "unified";
  std::string host = "127.0.0.1";
  uint16_t port = 8100;
  std::string handoff_listen;
  std::string handoff_host;
  kv::TransportOptions transports;
  kv::TlsFiles tls;
  options.choice(role, "role", {"prefill", "decode", "unified"}, "what the worker is for");
  options.value(host, "host", "ADDRESS", "address to listen on");
  options.value(port, "port", "PORT", "port to listen on; 0: the system picks");
  options.value(handoff_listen, "handoff-listen", "ADDRESS",
                "where decode workers take KV over: unix:/path, tcp:host:port or tls:host:port; "
                "else a Unix socket under TMPDIR");
  options.value(handoff_host, "handoff-host", "HOST",
                "the host that decode workers dial, if it is another than they see in "
                "--handoff-listen (0.0.0.0 needs it)");
  options.value(transports.choice, "kv-transport", "NAME",
                "how page bytes travel: auto, shm, tcp or a module's name");
  options.value(transports.streams, "kv-streams", "N", "TCP connections per peer for page bytes", 1,
                64);
  options.value(transports.module, "kv-transport-module", "PATH",
                "a transport module to load (see the operator guide)");
  options.value(transports.module_settings, "kv-transport-settings", "LINES",
                "key=value lines for the module");
  std::string kv_events;
  std::string kv_events_replay;
  options.value(kv_events, "kv-events", "ENDPOINT",
                "publishes which blocks are cached here (ZeroMQ, vLLM's form), for example "
                "tcp://127.0.0.1:5557; whoever can connect learns the prompts' token ids");
  options.value(kv_events_replay, "kv-events-replay", "ENDPOINT",
                "where subscribers ask for past events; else the next port");
  std::string transport_fault;
  options.value(transport_fault, "kv-transport-fault", "PLAN",
                "for tests: what goes wrong with page bytes read here, for example "
                "seed=7,flip=0.01,drop=0.01,rate=1e8 (bytes per second)");
  options.value(tls.certificate, "handoff-tls-cert", "FILE",
                "this worker's certificate for tls: addresses (PEM, with its chain)");
  options.value(tls.key, "handoff-tls-key", "FILE", "the certificate's key (PEM)");
  options.value(tls.authorities, "handoff-tls-ca", "FILE",
                "who signs the workers' certificates (PEM)");
  options.example(
      "tandem worker models/smollm2-135m-instruct.Q4_1.gguf --role prefill --port 8101");
  options.example(
      "TANDEM_SECRET=... in the environment: only a router with the same secret is answered");
  auto parsed = options.parse(arguments);
  if (!parsed) return report(parsed.error());
  if (parsed->help) {
    std::fputs(parsed->help->c_str(), stdout);
    return 0;
  }
  // Over plain TCP the secret is all that keeps strangers from reading the KV of every request.
  const bool guarded = role != "unified" || handoff_listen.starts_with("tcp:");
  if (auto secret = check_pair_secret(guarded); !secret) return report(secret.error());
  const int supervisor = supervisor_descriptor();
  if (supervisor >= 0) prctl(PR_SET_PDEATHSIG, SIGTERM);
  std::mutex mutex;
  std::unique_ptr<worker::Worker> worker;
  Signals signals;  // the last of these to come and the first to go: its action uses the others
  signals.on_signal([&] {
    const std::lock_guard lock(mutex);
    if (worker == nullptr) _exit(130);  // it still loads: nothing to end with care
    worker->shut_down();
  });
  auto faults = kv::parse_fault_plan(transport_fault);
  if (!faults) return report(faults.error());
  transports.faults = *faults;
  if (Status found = flags.find_model(); !found) return report(found.error());
  auto made = flags.worker_options(*worker::parse_role(role));
  if (!made) return report(made.error());
  made->host = host;
  made->port = port;
  made->handoff_listen = handoff_listen;
  made->handoff_host = handoff_host;
  made->transports = transports;
  made->handoff_tls = tls;
  made->kv_events = kv_events;
  made->kv_events_replay = kv_events_replay;
  const char* log_name = std::getenv("TANDEM_LOG_NAME");
  observe::set_log_name(log_name == nullptr ? role : log_name);
  auto loaded = worker::Worker::create(std::move(*made));
  if (!loaded) return report(loaded.error());
  {
    const std::lock_guard lock(mutex);
    worker = std::move(*loaded);
  }
  if (supervisor >= 0) {
    tell_supervisor(supervisor, *worker);
  } else {
    print_budget({{role, worker->memory()}});
    std::printf("serving %s (%d tokens of context)\nlistening on http://%s:%u\n",
                worker->model_name().c_str(), worker->context_length(), host.c_str(),
                worker->port());
    std::fflush(stdout);
  }
  worker->run();
  return worker->must_restart() ? 1 : 0;
}

}  // namespace tandem::cli
