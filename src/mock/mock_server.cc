#include "mock/mock_server.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace tandem::mock {

namespace {

TimePoint now() { return std::chrono::steady_clock::now(); }

const net::Headers& json_headers() {
  static const net::Headers kHeaders{{"Content-Type", "application/json"}};
  return kHeaders;
}

std::string error_text(const Error& error) {
  JsonValue fields = JsonValue::object();
  fields.set("message", JsonValue::string(error.message));
  fields.set("type",
             JsonValue::string(error.status < 500 ? "invalid_request_error" : "server_error"));
  fields.set("code", JsonValue::string(error.code));
  JsonValue json = JsonValue::object();
  json.set("error", std::move(fields));
  return json.dump();
}

net::asio::awaitable<void> send_error(net::HttpResponder& responder, const Error& error) {
  net::Headers headers = json_headers();
  if (error.status == 503 || error.status == 429) headers.add("Retry-After", "1");
  (void)co_await responder.send(error.status, std::move(headers), error_text(error));
}

}  // namespace

// A generating request, registered while it runs.
struct MockServer::Running {
  Running(MockServer& in, std::string name, MockRequest read, Fault wrong)
      : server(in),
        engine(in.engine_),
        rooms(in.rooms_),
        me(in.me_),
        id(std::move(name)),
        request(std::move(read)),
        fault(wrong),
        job(engine->job()),
        entry(in.running_.emplace(id, this)) {}
  ~Running() {
    server.running_.erase(entry);
    for (const auto& room : opened) {
      if (room->state == Room::State::kComputing || holds) rooms->abort(*room);
    }
    if (joined) engine->leave();
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  void cancel() {
    EngineModel::cancel(*job);
    if (call) call->cancel();
    for (const auto& room : opened) room->changed.notify();
  }

  MockServer& server;
  // Those of the incarnation that took the request.
  std::shared_ptr<EngineModel> engine;
  std::shared_ptr<Rooms> rooms;
  Identity me;
  std::string id;
  MockRequest request;
  Fault fault;
  std::shared_ptr<EngineModel::Job> job;
  Handoff handoff;
  bool holds = false;  // rooms end with the request
  bool joined = false;
  std::vector<std::shared_ptr<Room>> opened;
  std::vector<PromptFacts> facts;
  std::unique_ptr<net::ClientCall> call;
  std::multimap<std::string, Running*>::iterator entry;
};

void MockServer::cancel_run(Running& run) { run.cancel(); }

MockServer::MockServer(net::Reactor& reactor, net::HttpClient& client, MockOptions options)
    : reactor_(reactor),
      client_(client),
      options_(std::move(options)),
      faults_(options_.seed),
      engine_(std::make_shared<EngineModel>(reactor, options_.speed, options_.cache_tokens)),
      rooms_(std::make_shared<Rooms>(reactor)) {
  me_.engine_id = mint_id();
  me_.bootstrap_host = options_.host;
}

MockServer::~MockServer() = default;

std::string MockServer::url() const {
  return "http://" + options_.host + ":" + std::to_string(port_);
}

std::string MockServer::mint_id() {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string id;
  for (int half = 0; half < 2; ++half) {
    uint64_t bits = faults_.random();
    for (int i = 0; i < 16; ++i, bits >>= 4) id += kDigits[bits & 15];
  }
  return id;
}

Status MockServer::start() {
  net::ServerOptions options{.host = options_.host, .port = options_.port};
  options.max_connections = 1 << 17;
  options.keep_alive = std::chrono::minutes(10);
  const auto self = weak_from_this();
  server_ = std::make_unique<net::HttpServer>(
      reactor_, options, [self](net::HttpRequest& request, net::HttpResponder& responder) {
        const auto server = self.lock();
        return server->handle(request, responder);
      });
  TANDEM_TRY(port, server_->listen());
  port_ = port;
  if (options_.role == Role::kDecode || options_.dialect == Dialect::kOpenai) return {};
  options.port = options_.bootstrap_port;
  bootstrap_ = std::make_unique<net::HttpServer>(
      reactor_, options, [self](net::HttpRequest& request, net::HttpResponder& responder) {
        const auto server = self.lock();
        return server->handle_bootstrap(request, responder);
      });
  TANDEM_TRY(side, bootstrap_->listen());
  me_.bootstrap_port = side;
  reactor_.spawn(expiry_loop(self));
  return {};
}

net::asio::awaitable<void> MockServer::expiry_loop(std::weak_ptr<MockServer> weak) {
  net::Reactor& reactor = reactor_;
  while (true) {
    co_await reactor.sleep(std::chrono::milliseconds(50));
    const auto self = weak.lock();
    if (!self) co_return;
    self->rooms_->expire(now());
  }
}

void MockServer::restart() {
  for (const auto& [id, run] : running_) run->cancel();
  rooms_->clear();
  engine_ = std::make_shared<EngineModel>(reactor_, options_.speed, options_.cache_tokens);
  rooms_ = std::make_shared<Rooms>(reactor_);
  me_.engine_id = mint_id();
}

JsonValue MockServer::state() const {
  const auto number = [](int64_t value) { return JsonValue::integer(value); };
  JsonValue rooms = JsonValue::object();
  const Rooms::Counts& counts = rooms_->counts();
  rooms.set("open", number(counts.open));
  rooms.set("opened", number(counts.opened));
  rooms.set("taken", number(counts.taken));
  rooms.set("aborted", number(counts.aborted));
  rooms.set("expired", number(counts.expired));
  rooms.set("waiting", number(counts.waiting));
  rooms.set("unclaimed", number(counts.unclaimed));
  JsonValue json = JsonValue::object();
  json.set("dialect", JsonValue::string(std::string(dialect_name(options_.dialect))));
  json.set("role", JsonValue::string(std::string(role_name(options_.role))));
  json.set("engine_id", JsonValue::string(me_.engine_id));
  json.set("requests", number(requests_));
  json.set("running", number(static_cast<int64_t>(running_.size())));
  json.set("completed", number(completed_));
  json.set("refused", number(refused_));
  json.set("disconnects", number(disconnects_));
  json.set("aborts", number(aborts_));
  json.set("cache_blocks", number(static_cast<int64_t>(engine_->cache().blocks())));
  json.set("rooms", std::move(rooms));
  return json;
}

net::asio::awaitable<void> MockServer::until_gone(Running* run, net::HttpResponder& responder) {
  while (!responder.client_gone() && (run == nullptr || !run->job->cancelled))
    co_await reactor_.sleep(std::chrono::milliseconds(20));
  responder.abort();
}

net::asio::awaitable<bool> MockServer::fail_early(const Fault& fault,
                                                  net::HttpResponder& responder) {
  switch (fault.kind) {
    case FaultKind::kRefuse:
      responder.abort();
      co_return true;
    case FaultKind::kStatus:
      co_await send_error(responder, {fault.status, "mock_fault", "this mock was told to fail"});
      co_return true;
    case FaultKind::kStall:
      co_await until_gone(nullptr, responder);
      co_return true;
    case FaultKind::kRestart:
      restart();
      responder.abort();
      co_return true;
    default:
      co_return false;
  }
}

net::asio::awaitable<void> MockServer::generate(Api api, net::HttpRequest& request,
                                                net::HttpResponder& responder) {
  const auto self = shared_from_this();
  ++requests_;
  Fault fault = faults_.next();
  if (const std::string* wanted = request.headers.find("x-mock-fault")) {
    if (auto parsed = parse_fault(*wanted)) fault = *parsed;
  }
  if (co_await fail_early(fault, responder)) co_return;
  Result<MockRequest> read = read_request(api, request.body);
  if (!read) {
    ++refused_;
    co_return co_await send_error(responder, read.error());
  }
  // vLLM's ids are the client's with a prefix and a suffix; SGLang takes rid from the body.
  std::string id(request.headers.get("x-request-id"));
  if (const JsonValue* rid = read->body.find("rid"); rid != nullptr && rid->is_string())
    id = rid->as_string();
  if (id.empty()) id = mint_id();
  Running run(*this, id, std::move(*read), fault);
  Result<Handoff> handoff = read_handoff(options_, run.request, id, me_);
  if (!handoff) {
    ++refused_;
    co_return co_await send_error(responder, handoff.error());
  }
  run.handoff = std::move(*handoff);
  responder.on_disconnect([this, &run] {
    ++disconnects_;
    run.cancel();
  });
  if (run.handoff.kind == Handoff::Kind::kPrefill) {
    co_await run_prefill(run, responder);
  } else {
    co_await run_answer(run, responder);
  }
  if (run.job->cancelled) {
    ++aborts_;
    responder.abort();
  } else {
    ++completed_;
  }
}

// Computes every prompt. False: cancelled.
net::asio::awaitable<bool> MockServer::compute(Running& run) {
  for (const auto& prompt : run.request.prompts) {
    run.job->computed = false;
    const auto cached = co_await run.engine->prefill(run.job, prompt);
    if (!cached) co_return false;
    run.facts.push_back({chain_hash(0, prompt), static_cast<int64_t>(prompt.size()), *cached});
  }
  co_return true;
}

net::asio::awaitable<void> MockServer::run_prefill(Running& run, net::HttpResponder& responder) {
  run.holds = run.handoff.holds;
  for (const std::string& id : run.handoff.ids) {
    Result<std::shared_ptr<Room>> room = run.rooms->open(id);
    if (!room) co_return co_await send_error(responder, room.error());
    run.opened.push_back(std::move(*room));
  }
  if (!co_await compute(run)) co_return;
  if (run.fault.kind == FaultKind::kAbortTransfer) {
    for (const auto& room : run.opened) run.rooms->abort(*room);
    co_return co_await send_error(responder, {500, "KVTransferError", "the transfer was aborted"});
  }
  const TimePoint lease = run.holds ? TimePoint::max() : now() + options_.lease;
  for (size_t i = 0; i < run.opened.size(); ++i) {
    const size_t prompt = run.facts.size() == run.opened.size() ? i : 0;
    run.rooms->ready(*run.opened[i], run.facts[prompt], lease);
  }
  const TimePoint until = now() + options_.partner_timeout;
  for (const auto& room : run.opened) {
    while (run.holds && room->state == Room::State::kReady && !run.job->cancelled && now() < until)
      (void)co_await room->changed.wait_for(
          std::min<Duration>(until - now(), std::chrono::seconds(1)));
    if (run.job->cancelled) co_return;
    if (run.holds && room->state != Room::State::kTaken)
      co_return co_await send_error(responder,
                                    {500, "KVTransferError", "no decode server came for the KV"});
  }
  if (options_.dialect == Dialect::kTandem) {
    int64_t cached = 0;
    for (const PromptFacts& facts : run.facts) cached += facts.cached;
    JsonValue usage = JsonValue::object();
    usage.set("prompt_tokens", JsonValue::integer(run.request.prompt_tokens()));
    usage.set("cached_tokens", JsonValue::integer(cached));
    JsonValue report = JsonValue::object();
    report.set("object", JsonValue::string("tandem.prefill"));
    report.set("usage", std::move(usage));
    report.set("kv_bytes", JsonValue::integer(run.request.prompt_tokens() * 64));
    report.set("blocks_sent", JsonValue::integer(run.request.prompt_tokens() / 16));
    (void)co_await responder.send(200, json_headers(), report.dump());
    co_return;
  }
  if (options_.dialect == Dialect::kSglang) run.request.max_tokens = 1;  // whatever was asked for
  ReplyPlan plan{run.id, 1700000000, run.facts, 0, run.fault.kind == FaultKind::kWrongUsage};
  for (const PromptFacts& facts : run.facts) plan.cached += facts.cached;
  co_await answer(run, std::move(plan), responder);
}

// Fetches what prefill left at its side channel.
net::asio::awaitable<Status> MockServer::take(Running& run) {
  for (const std::string& id : run.handoff.ids) {
    JsonValue wish = JsonValue::object();
    wish.set("id", JsonValue::string(id));
    wish.set("engine_id", JsonValue::string(run.handoff.engine_id));
    wish.set("late", JsonValue::boolean(run.handoff.late));
    net::ClientRequest asked;
    asked.method = "POST";
    asked.host = run.handoff.host == "localhost" ? "127.0.0.1" : run.handoff.host;
    asked.port = run.handoff.port;
    asked.target = "/mock/take";
    asked.headers = json_headers();
    asked.body = wish.dump();
    const Duration limit = options_.partner_timeout;
    run.call = client_.call(std::move(asked), {std::chrono::seconds(2), limit, limit});
    const auto head = co_await run.call->head();
    if (!head) co_return make_error(500, "KVTransferError", head.error().message);
    const auto body = co_await run.call->read_all(1 << 20);
    if (!body) co_return make_error(500, "KVTransferError", body.error().message);
    const auto json = parse_json(*body);
    if (head->status != 200 || !json)
      co_return make_error(500, "KVTransferError",
                           "prefill answered " + std::to_string(head->status));
    const auto field = [&](const char* name) {
      const JsonValue* const found = json->find(name);
      return found == nullptr ? std::string() : found->as_string();
    };
    PromptFacts facts;
    facts.hash = std::strtoull(field("hash").c_str(), nullptr, 10);
    facts.tokens = std::strtoll(field("tokens").c_str(), nullptr, 10);
    facts.cached = std::strtoll(field("cached").c_str(), nullptr, 10);
    run.facts.push_back(facts);
  }
  run.call.reset();
  // The rooms of one prompt's choices hold the same.
  run.facts.resize(std::min(run.facts.size(), run.request.prompts.size()));
  for (const auto& prompt : run.request.prompts) run.engine->cache().insert(prompt);
  co_return Status{};
}

net::asio::awaitable<void> MockServer::run_answer(Running& run, net::HttpResponder& responder) {
  const bool takes = run.handoff.kind == Handoff::Kind::kDecode;
  if (takes) {
    const Status taken = co_await take(run);
    if (run.job->cancelled) co_return;
    if (!taken) co_return co_await send_error(responder, taken.error());
  } else if (!co_await compute(run)) {
    co_return;
  }
  if (!co_await run.engine->join(run.job)) co_return;
  run.joined = true;
  ReplyPlan plan{run.id, 1700000000, run.facts, 0, run.fault.kind == FaultKind::kWrongUsage};
  for (const PromptFacts& facts : run.facts)
    plan.cached += takes ? cached_by_decode(options_, run.request, facts) : facts.cached;
  co_await answer(run, std::move(plan), responder);
}

net::asio::awaitable<void> MockServer::answer(Running& run, ReplyPlan plan,
                                              net::HttpResponder& responder) {
  const Reply reply(options_, run.request, std::move(plan));
  if (run.request.stream) co_return co_await stream(run, reply, responder);
  for (size_t i = 0; i < reply.steps(); ++i) {
    if (!co_await run.engine->step(run.job)) co_return;
  }
  JsonValue whole = reply.whole();
  if (run.handoff.kind == Handoff::Kind::kPrefill)
    add_prefill_result(options_, run.request, run.handoff, run.me, run.facts[0], whole);
  if (options_.dialect == Dialect::kTandem) whole.set("tandem", JsonValue::object());
  std::string body = whole.dump();
  switch (run.fault.kind) {
    case FaultKind::kDieAfterHead:
    case FaultKind::kDieMidStream:
    case FaultKind::kTruncate:
      if (co_await responder.begin_stream(200, json_headers()))
        (void)co_await responder.write(body.substr(0, body.size() / 2));
      responder.abort();
      co_return;
    case FaultKind::kStallMidStream:
      if (co_await responder.begin_stream(200, json_headers()))
        (void)co_await responder.write(body.substr(0, body.size() / 2));
      co_return co_await until_gone(&run, responder);
    case FaultKind::kGarbage:
      body = "{\"choices\": [";
      break;
    default:
      break;
  }
  (void)co_await responder.send(200, json_headers(), std::move(body));
}

net::asio::awaitable<bool> MockServer::write(net::HttpResponder& responder, std::string bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    size_t length = bytes.size();
    if (options_.piece > 0) length = static_cast<size_t>(options_.piece);
    if (options_.piece < 0) length = 1 + faults_.random() % 40;
    const auto piece = std::string_view(bytes).substr(at, length);
    if (!co_await responder.write(piece)) co_return false;
    at += piece.size();
  }
  co_return true;
}

net::asio::awaitable<void> MockServer::stream(Running& run, const Reply& reply,
                                              net::HttpResponder& responder) {
  const FaultKind fault = run.fault.kind;
  if (!co_await responder.begin_stream(200, {{"Content-Type", "text/event-stream; charset=utf-8"}}))
    co_return;
  if (fault == FaultKind::kDieAfterHead) co_return responder.abort();
  if (!co_await write(responder, reply.opening())) co_return;
  for (size_t i = 0; i < reply.steps(); ++i) {
    for (int slow = fault == FaultKind::kSlow ? 10 : 1; slow > 0; --slow) {
      if (!co_await run.engine->step(run.job)) co_return;
    }
    if (i == reply.steps() / 2) {
      if (fault == FaultKind::kDieMidStream) co_return responder.abort();
      if (fault == FaultKind::kStallMidStream) co_return co_await until_gone(&run, responder);
      if (fault == FaultKind::kGarbage && !co_await write(responder, "data: {\"choices\": [\n\n"))
        co_return;
      if (fault == FaultKind::kErrorFrame) {
        (void)co_await write(
            responder, "data: " + error_text({500, "mock_fault", "the engine failed"}) + "\n\n");
        (void)co_await responder.finish();
        co_return;
      }
    }
    std::string frame = reply.step(i);
    if (fault == FaultKind::kTruncate && i + 1 == reply.steps()) {
      (void)co_await write(responder, frame.substr(0, frame.size() / 2));
      (void)co_await responder.finish();
      co_return;
    }
    if (!co_await write(responder, std::move(frame))) co_return;
  }
  std::string end = reply.closing();
  if (reply.ends_with_done() && fault != FaultKind::kNoDone) end += "data: [DONE]\n\n";
  if (co_await write(responder, std::move(end))) (void)co_await responder.finish();
}

}  // namespace tandem::mock
