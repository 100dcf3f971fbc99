#include "mock/mock_server.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "mock/answers.h"
#include "mock/running.h"
#include "observe/log.h"

namespace tandem::mock {

namespace {

TimePoint now() { return std::chrono::steady_clock::now(); }

int64_t nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now().time_since_epoch()).count();
}

}  // namespace

void MockServer::cancel_run(Running& run) { run.cancel(); }

size_t MockServer::rank_of(const Running& run) { return static_cast<size_t>(run.me.rank); }

MockServer::MockServer(net::Reactor& reactor, net::HttpClient& client, MockOptions options)
    : reactor_(reactor), client_(client), options_(std::move(options)), faults_(options_.seed) {
  me_.bootstrap_host = options_.host;
  begin_life();
}

MockServer::~MockServer() {
  for (const auto& engine : engines_) engine->cache().set_voice(nullptr);
}

void MockServer::begin_life() {
  engines_.clear();
  for (int32_t rank = 0; rank < options_.dp_size; ++rank)
    engines_.push_back(
        std::make_shared<EngineModel>(reactor_, options_.speed, options_.cache_tokens));
  rank_requests_.assign(engines_.size(), 0);
  rooms_ = std::make_shared<Rooms>(reactor_);
  me_.engine_id = mint_id();
}

Status MockServer::open_voices() {
  if (options_.kv_events.empty()) return {};
  const MockOptions asked = options_;
  const bool any_port = asked.kv_events.ends_with(":0");
  Status open = try_voices();
  // The ports after the one that the system picked may be somebody's.
  for (int tries = 0; !open && any_port && options_.dp_size > 1 && tries < 30; ++tries) {
    options_.kv_events = asked.kv_events;
    options_.kv_events_replay = asked.kv_events_replay;
    open = try_voices();
  }
  return open;
}

Status MockServer::try_voices() {
  for (const auto& engine : engines_) engine->cache().set_voice(nullptr);
  voices_.clear();
  for (int32_t rank = 0; rank < options_.dp_size; ++rank) {
    TANDEM_TRY(voice, KvVoice::create(options_, rank));
    voices_.push_back(std::move(voice));
    engines_[static_cast<size_t>(rank)]->cache().set_voice(voices_.back().get());
    // The next ranks follow, and a restarted process publishes where it did before.
    options_.kv_events = voices_[0]->endpoint();
    options_.kv_events_replay = voices_[0]->replay_endpoint();
  }
  return {};
}

std::string MockServer::kv_events() const {
  return voices_.empty() ? "" : voices_[0]->endpoint() + "," + voices_[0]->replay_endpoint();
}

// Ranks have engine ids of their own, as in vLLM.
Identity MockServer::identity(int32_t rank) const {
  Identity of_rank = me_;
  of_rank.rank = rank;
  if (options_.dp_size > 1) of_rank.engine_id += "_dp" + std::to_string(rank);
  return of_rank;
}

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
  options.read_pause = [self](const net::HttpRequest& request) {
    const auto server = self.lock();
    return server ? server->read_pause(request) : Duration::zero();
  };
  server_ = std::make_unique<net::HttpServer>(
      reactor_, options, [self](net::HttpRequest& request, net::HttpResponder& responder) {
        const auto server = self.lock();
        return server->handle(request, responder);
      });
  TANDEM_TRY(port, server_->listen());
  port_ = port;
  TANDEM_CHECK(open_voices());
  if (options_.role == Role::kDecode || options_.dialect == Dialect::kOpenai) return {};
  options.read_pause = {};
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
  for (const auto& engine : engines_) engine->cache().set_voice(nullptr);
  voices_.clear();
  begin_life();
  if (Status open = open_voices(); !open)
    observe::log_error("the restarted mock publishes no events: {}", open.error().message);
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
  json.set("running", number(static_cast<int64_t>(running_.size()) + static_running_));
  json.set("completed", number(completed_));
  json.set("refused", number(refused_));
  json.set("disconnects", number(disconnects_));
  json.set("aborts", number(aborts_));
  json.set("last_fault_ns", number(last_fault_));
  json.set("last_disconnect_ns", number(last_disconnect_));
  int64_t blocks = 0;
  JsonValue ranks = JsonValue::array();
  for (size_t rank = 0; rank < engines_.size(); ++rank) {
    blocks += static_cast<int64_t>(engines_[rank]->cache().blocks());
    ranks.push_back(number(rank_requests_[rank]));
  }
  json.set("cache_blocks", number(blocks));
  json.set("ranks", std::move(ranks));
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
  if (fault.kind != FaultKind::kNone) last_fault_ = nanoseconds();
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

// "decode:stall" is for decode servers only.
std::optional<Fault> MockServer::wished_fault(const net::HttpRequest& request) const {
  const std::string* const wish = request.headers.find("x-mock-fault");
  if (wish == nullptr) return std::nullopt;
  std::string_view text = *wish;
  if (const size_t colon = text.find(':'); colon != std::string_view::npos) {
    if (text.substr(0, colon) != role_name(options_.role)) return std::nullopt;
    text.remove_prefix(colon + 1);
  }
  const auto parsed = parse_fault(text);
  return parsed ? std::optional(*parsed) : std::nullopt;
}

Duration MockServer::read_pause(const net::HttpRequest& request) {
  constexpr Duration kPause = std::chrono::milliseconds(200);
  if (request.method != "POST" || request.path.starts_with("/mock/")) return Duration::zero();
  const auto wished = wished_fault(request);
  const bool slow =
      (wished && wished->kind == FaultKind::kSlowRead) || faults_.happens(FaultKind::kSlowRead);
  return slow ? kPause : Duration::zero();
}

// The last requests as they came, for tests of what a router sends.
void MockServer::record(const net::HttpRequest& request) {
  if (options_.record <= 0) return;
  JsonValue headers = JsonValue::object();
  for (const auto& [name, value] : request.headers) headers.set(name, JsonValue::string(value));
  JsonValue json = JsonValue::object();
  json.set("target", JsonValue::string(request.target));
  json.set("headers", std::move(headers));
  json.set("body", JsonValue::string(request.body));
  recorded_.push_back(std::move(json));
  if (recorded_.size() > static_cast<size_t>(options_.record)) recorded_.pop_front();
}

net::asio::awaitable<void> MockServer::generate(Api api, net::HttpRequest& request,
                                                net::HttpResponder& responder) {
  const auto self = shared_from_this();
  ++requests_;
  record(request);
  if (options_.is_static) co_return co_await answer_static(api, request, responder);
  Fault fault = faults_.next();
  if (const auto wished = wished_fault(request)) fault = *wished;
  if (co_await fail_early(fault, responder)) co_return;
  Result<MockRequest> read = read_request(api, request.body, options_.byte_tokens);
  if (!read) {
    ++refused_;
    co_return co_await send_error(responder, read.error());
  }
  const Result<int32_t> rank =
      pick_rank(options_, *read, request.headers.get("x-data-parallel-rank"), next_rank_);
  if (!rank) {
    ++refused_;
    co_return co_await send_error(responder, rank.error());
  }
  ++rank_requests_[static_cast<size_t>(*rank)];
  // vLLM's ids are the client's with a prefix and a suffix; SGLang takes rid from the body.
  std::string id(request.headers.get("x-request-id"));
  if (const JsonValue* rid = read->body.find("rid"); rid != nullptr && rid->is_string())
    id = rid->as_string();
  if (id.empty()) id = mint_id();
  Running run(*this, id, std::move(*read), fault, *rank);
  Result<Handoff> handoff = read_handoff(options_, run.request, id, me_);
  if (!handoff) {
    ++refused_;
    co_return co_await send_error(responder, handoff.error());
  }
  run.handoff = std::move(*handoff);
  responder.on_disconnect([this, &run] {
    ++disconnects_;
    last_disconnect_ = nanoseconds();
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
    (*room)->rank = run.me.rank;
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
  // Whatever was asked for.
  if (options_.dialect == Dialect::kSglang || options_.dialect == Dialect::kTrtllm)
    run.request.max_tokens = 1;
  ReplyPlan plan{.id = run.id,
                 .created = 1700000000,
                 .facts = run.facts,
                 .wrong_usage = run.fault.kind == FaultKind::kWrongUsage};
  for (const PromptFacts& facts : run.facts) plan.cached += facts.cached;
  co_await answer(run, std::move(plan), responder);
}

// Fetches what prefill left at its side channel.
net::asio::awaitable<Status> MockServer::take(Running& run) {
  for (const std::string& id : run.handoff.ids) {
    JsonValue wish = JsonValue::object();
    wish.set("id", JsonValue::string(id));
    wish.set("engine_id", JsonValue::string(run.handoff.engine_id));
    wish.set("rank", JsonValue::integer(run.handoff.rank));
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
  ReplyPlan plan{.id = run.id,
                 .created = 1700000000,
                 .facts = run.facts,
                 .wrong_usage = run.fault.kind == FaultKind::kWrongUsage};
  plan.aborted = run.fault.kind == FaultKind::kAbort;
  for (const PromptFacts& facts : run.facts)
    plan.cached += takes ? cached_by_decode(options_, run.request, facts) : facts.cached;
  co_await answer(run, std::move(plan), responder);
}

}  // namespace tandem::mock
