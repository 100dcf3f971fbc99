#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/common.h"
#include "mock/mock_server.h"
#include "observe/log.h"

namespace tandem::cli {

namespace {

struct MockFlags {
  std::string dialect = "openai";
  std::string role = "unified";
  int32_t count = 1;
  int32_t prefill = 0;
  int32_t decode = 0;
  int32_t unified = 0;
  std::string host = "127.0.0.1";
  uint16_t port = 0;
  uint16_t bootstrap_port = 0;
  std::string model = "mock-model";
  int32_t prefill_rate = 8000;
  Duration step = std::chrono::milliseconds(10);
  int32_t max_running = 256;
  int32_t cache_tokens = 1 << 20;
  int32_t reply_tokens = 16;
  Duration partner_timeout = std::chrono::seconds(300);
  Duration lease = std::chrono::seconds(30);
  bool no_cached_report = false;
  int32_t piece = 0;
  int32_t seed = 1;
  int32_t dp_size = 1;
  int32_t record = 0;
  bool is_static = false;
  std::string kv_events;
  bool kv_event_arrays = false;
  bool byte_tokens = false;
  std::vector<std::string> faults;

  void declare(config::Options& options) {
    options.choice(dialect, "dialect",
                   {"tandem", "sglang", "vllm-nixl", "vllm-nixl-push", "vllm-mooncake",
                    "vllm-moriio", "vllm-moriio-write", "trtllm", "openai"},
                   "whose protocol the engines speak");
    options.choice(role, "role", {"prefill", "decode", "unified"}, "what the engines do");
    options.value(count, "count", "N", "engines of that role", 1, 65000);
    options.value(prefill, "prefill", "N", "prefill engines (instead of --role and --count)", 0,
                  65000);
    options.value(decode, "decode", "N", "decode engines", 0, 65000);
    options.value(unified, "unified", "N", "unified engines", 0, 65000);
    options.value(host, "host", "ADDRESS", "address to listen on");
    options.value(port, "port", "PORT",
                  "port of the first engine, the next ones follow; 0: the system picks");
    options.value(bootstrap_port, "bootstrap-port", "PORT",
                  "side channel of the first prefill engine, the next ones follow");
    options.value(model, "model", "NAME", "name of the served model");
    options.value(prefill_rate, "prefill-rate", "N",
                  "prompt tokens per second, one prompt after another; 0: no time", 0, 1 << 30);
    options.value(step, "step", "TIME", "length of a decode step; 0: no time");
    options.value(max_running, "max-running", "N", "sequences that decode at once", 1, 1 << 20);
    options.value(cache_tokens, "cache-tokens", "N", "prefix cache of an engine", 0, 1 << 30);
    options.value(reply_tokens, "reply-tokens", "N", "tokens of an answer that has no limit", 1,
                  1 << 20);
    options.value(partner_timeout, "partner-timeout", "TIME",
                  "how long a leg waits for the other one");
    options.value(lease, "lease", "TIME", "how long prefill keeps blocks that nobody fetches");
    options.flag(no_cached_report, "no-cached-report", "usage does not tell cached tokens");
    options.value(piece, "piece", "BYTES",
                  "streams are written in pieces of so many bytes; 0: whole frames; -1: random", -1,
                  1 << 20);
    options.value(seed, "seed", "N", "of everything random", 0, 1 << 30);
    options.value(dp_size, "dp-size", "N", "data-parallel ranks of each engine", 1, 1024);
    options.value(record, "record", "N", "GET /mock/requests tells the last N requests", 0, 4096);
    options.flag(
        is_static, "static",
        "ready-made answers, for measuring routers: --reply-tokens chunks, --step apart (0: "
        "at once)");
    options.value(kv_events, "kv-events", "ENDPOINT",
                  "publishes what the prefix caches hold (ZeroMQ), as the engine does: "
                  "tcp://HOST:PORT of the first engine, the next ones follow; port 0: the system "
                  "picks");
    options.flag(kv_event_arrays, "kv-event-arrays", "events in the older encoding");
    options.flag(byte_tokens, "byte-tokens",
                 "each byte of text is a token, for routers that tokenize too");
    options.list(faults, "fault", "FAULT",
                 "what goes wrong: NAME[=STATUS][*PROBABILITY][#TIMES] with NAME one of " +
                     mock::fault_names());
    options.example("tandem mock --dialect sglang --prefill 2 --decode 2 --fault 'stall*0.05'");
  }
};

mock::Role parse_role(const std::string& name) {
  return name == "prefill"  ? mock::Role::kPrefill
         : name == "decode" ? mock::Role::kDecode
                            : mock::Role::kUnified;
}

mock::MockOptions options_of(const MockFlags& flags, mock::Dialect dialect, mock::Role role) {
  mock::MockOptions options;
  options.dialect = dialect;
  options.role = role;
  options.host = flags.host;
  options.model = flags.model;
  options.speed.prefill_rate = flags.prefill_rate;
  options.speed.step = flags.step;
  options.speed.max_running = flags.max_running;
  options.cache_tokens = static_cast<size_t>(flags.cache_tokens);
  options.reply_tokens = flags.reply_tokens;
  options.partner_timeout = flags.partner_timeout;
  options.lease = flags.lease;
  options.report_cached = !flags.no_cached_report;
  options.piece = flags.piece;
  options.dp_size = flags.dp_size;
  options.record = flags.record;
  options.is_static = flags.is_static;
  options.kv_event_arrays = flags.kv_event_arrays;
  options.byte_tokens = flags.byte_tokens;
  options.secret = shared_secret();
  return options;
}

}  // namespace

int run_mock(const Arguments& arguments) {
  config::Options options("mock",
                          "Runs engines that only pretend: they speak another engine's protocol, "
                          "meet in real handoffs, take modelled time and fail when told to. For "
                          "testing routers.");
  MockFlags flags;
  flags.declare(options);
  auto parsed = options.parse(arguments);
  if (!parsed) return report(parsed.error());
  if (parsed->help) {
    std::fputs(parsed->help->c_str(), stdout);
    return 0;
  }
  observe::set_log_name("mock");
  const auto dialect = mock::parse_dialect(flags.dialect);
  if (!dialect) return report(dialect.error());
  std::vector<mock::Fault> faults;
  for (const std::string& text : flags.faults) {
    const auto fault = mock::parse_fault(text);
    if (!fault) return report(fault.error());
    faults.push_back(*fault);
  }
  std::vector<mock::Role> roles;
  roles.insert(roles.end(), static_cast<size_t>(flags.prefill), mock::Role::kPrefill);
  roles.insert(roles.end(), static_cast<size_t>(flags.decode), mock::Role::kDecode);
  roles.insert(roles.end(), static_cast<size_t>(flags.unified), mock::Role::kUnified);
  if (roles.empty()) roles.assign(static_cast<size_t>(flags.count), parse_role(flags.role));
  raise_descriptor_limit();
  Signals signals;
  net::Reactor reactor;
  net::HttpClient client(reactor);
  std::vector<std::shared_ptr<mock::MockServer>> servers;
  uint16_t port = flags.port;
  uint16_t side = flags.bootstrap_port;
  for (const mock::Role role : roles) {
    mock::MockOptions made = options_of(flags, *dialect, role);
    made.seed = static_cast<uint64_t>(flags.seed) + servers.size() * 7919;
    made.port = port;
    if (port != 0) ++port;
    if (role != mock::Role::kDecode) {
      made.bootstrap_port = side;
      if (side != 0) ++side;
    }
    if (!flags.kv_events.empty())
      made.kv_events = mock::offset_port(flags.kv_events,
                                         static_cast<int32_t>(servers.size()) * 2 * flags.dp_size);
    auto server = std::make_shared<mock::MockServer>(reactor, client, std::move(made));
    if (auto started = server->start(); !started) return report(started.error());
    server->set_faults(faults);
    std::printf("%s %s", std::string(mock::role_name(role)).c_str(), server->url().c_str());
    if (server->has_bootstrap()) std::printf(" bootstrap %u", server->bootstrap_port());
    if (!server->kv_events().empty()) std::printf(" events %s", server->kv_events().c_str());
    std::printf("\n");
    servers.push_back(std::move(server));
  }
  std::printf("ready\n");
  std::fflush(stdout);
  signals.on_signal([&] { reactor.stop(); });
  reactor.run();
  return 0;
}

}  // namespace tandem::cli
