#include "mock/dialects.h"

#include <charconv>

namespace tandem::mock {

namespace {

constexpr int64_t kFirstGlobalId = int64_t{1}
                                   << 42;  // TensorRT-LLM: smaller ids are an engine's own

tl::unexpected<Error> bad(std::string message) {
  return make_error(400, "invalid_request", std::move(message));
}

std::string text(const JsonValue& object, const char* name) {
  const JsonValue* const found = object.find(name);
  if (found == nullptr || found->is_null()) return {};
  return found->as_string();  // of a number its text
}

bool flag(const JsonValue& object, const char* name) {
  const JsonValue* const found = object.find(name);
  return found != nullptr && found->as_bool();
}

// "http://host:port", "host:port", "mock:host:port".
Status read_address(std::string_view address, Handoff& handoff) {
  if (const size_t scheme = address.rfind('/'); scheme != std::string_view::npos)
    address = address.substr(scheme + 1);
  if (address.starts_with("mock:")) address = address.substr(5);
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos) return bad("the prefill server's address has no port");
  handoff.host = address.substr(0, colon);
  const std::string_view port = address.substr(colon + 1);
  if (std::from_chars(port.data(), port.data() + port.size(), handoff.port).ptr !=
          port.data() + port.size() ||
      handoff.port == 0)
    return bad("the prefill server's port is not one");
  return {};
}

Result<Handoff> sglang(const MockOptions& options, const MockRequest& request) {
  Handoff handoff;
  handoff.holds = true;
  const JsonValue* const room = request.body.find("bootstrap_room");
  if (room == nullptr || room->is_null()) {
    if (options.role == Role::kUnified) return Handoff{};
    if (options.role == Role::kPrefill)
      return make_error(500, "assertion", "a prefill server was asked without a bootstrap room");
    return bad("Disaggregated request received without bootstrap room id");
  }
  handoff.kind = options.role == Role::kPrefill ? Handoff::Kind::kPrefill : Handoff::Kind::kDecode;
  const size_t wanted =
      request.prompts.size() > 1 ? request.prompts.size() : static_cast<size_t>(request.n);
  const JsonValue* const hosts = request.body.find("bootstrap_host");
  const JsonValue* const ports = request.body.find("bootstrap_port");
  const auto first = [](const JsonValue* value) -> JsonValue {
    if (value == nullptr) return {};
    return value->is_array() && !value->items().empty() ? value->items()[0] : *value;
  };
  if (room->is_array() != (wanted > 1))
    return bad("bootstrap_room has another shape than the batch");
  if (room->is_array()) {
    const auto same_length = [&](const JsonValue* value) {
      return value != nullptr && value->is_array() && value->items().size() == wanted;
    };
    if (!same_length(room) || !same_length(hosts) || !same_length(ports))
      return bad(
          "bootstrap_room, bootstrap_host and bootstrap_port must have one entry each for "
          "every request of the batch");
    for (const JsonValue& id : room->items()) handoff.ids.push_back(id.as_string());
  } else {
    handoff.ids.push_back(room->as_string());
  }
  for (const std::string& id : handoff.ids) {
    int64_t number = -1;
    std::from_chars(id.data(), id.data() + id.size(), number);
    if (number < 0) return bad("bootstrap_room is not an integer from 0 to 2^63 - 1");
  }
  if (handoff.kind == Handoff::Kind::kDecode) {
    const JsonValue* const rank = request.body.find("disagg_prefill_dp_rank");
    handoff.rank = rank == nullptr || !rank->as_integer()
                       ? Handoff::kRankOfRoom
                       : static_cast<int32_t>(*rank->as_integer());
  }
  handoff.host = first(hosts).as_string();
  handoff.port = static_cast<uint16_t>(first(ports).as_integer().value_or(8998));
  if (handoff.host.empty()) return bad("bootstrap_host is missing");
  return handoff;
}

// MoRI-IO: both sides know a transfer id. Writing, each is told where the other is, in its body and
// in the request id.
Result<Handoff> moriio(const MockOptions& options, const JsonValue& params, bool decode,
                       const std::string& request_id) {
  Handoff handoff;
  handoff.kind = decode ? Handoff::Kind::kDecode : Handoff::Kind::kPrefill;
  handoff.ids.push_back(text(params, "transfer_id"));
  if (!handoff.ids[0].starts_with("tx")) return bad("kv_transfer_params has no transfer_id");
  const bool write = options.dialect == Dialect::kVllmMoriioWrite;
  if (!decode && !write) return handoff;
  const auto number = [&](const char* name) -> int64_t {
    const JsonValue* const value = params.find(name);
    return value == nullptr ? 0 : value->as_integer().value_or(0);
  };
  handoff.host = text(params, "remote_host");
  handoff.port = static_cast<uint16_t>(number("remote_handshake_port"));
  if (handoff.host.empty() || handoff.port == 0 || number("remote_notify_port") == 0 ||
      number("remote_dp_size") < 1)
    return bad("kv_transfer_params does not say where the other side is");
  if (!write) {
    handoff.engine_id = text(params, "remote_engine_id");
    const JsonValue* const blocks = params.find("remote_block_ids");
    if (handoff.engine_id.empty() || blocks == nullptr || !blocks->is_array())
      return bad("kv_transfer_params has no remote_block_ids");
    return handoff;
  }
  const std::string peer = "___" + std::string(decode ? "prefill" : "decode") +
                           "_addr_host:" + handoff.host +
                           ",handshake:" + std::to_string(handoff.port) + ",notify:";
  if (request_id.find(peer) == std::string::npos || number("remote_tp_size") < 1)
    return bad("the request id does not hold the other side's address");
  if (decode) handoff.rank = static_cast<int32_t>(number("remote_dp_rank"));
  return handoff;
}

Result<Handoff> vllm(const MockOptions& options, const MockRequest& request,
                     const std::string& request_id) {
  Handoff handoff;
  const JsonValue* const params = request.body.find("kv_transfer_params");
  if (params == nullptr || params->is_null()) return handoff;
  const bool decode = flag(*params, "do_remote_prefill");
  if (!decode && !flag(*params, "do_remote_decode")) return handoff;
  if (options.dialect == Dialect::kVllmMoriio || options.dialect == Dialect::kVllmMoriioWrite)
    return moriio(options, *params, decode, request_id);
  handoff.kind = decode ? Handoff::Kind::kDecode : Handoff::Kind::kPrefill;
  if (options.dialect == Dialect::kVllmMooncake) {
    handoff.ids.push_back(text(*params, "transfer_id"));
    if (handoff.ids[0].empty()) return bad("kv_transfer_params has no transfer_id");
    if (decode) {
      handoff.engine_id = text(*params, "remote_engine_id");
      TANDEM_CHECK(read_address(text(*params, "remote_bootstrap_addr"), handoff));
    }
    return handoff;
  }
  const bool push = options.dialect == Dialect::kVllmNixlPush;
  if (!decode) {
    handoff.ids.push_back(request_id);
    return handoff;
  }
  // A push finds its decode request by the request id that both legs have.
  handoff.ids.push_back(push ? request_id : text(*params, "remote_request_id"));
  handoff.engine_id = text(*params, "remote_engine_id");
  handoff.host = text(*params, "remote_host");
  const JsonValue* const port = params->find("remote_port");
  handoff.port = static_cast<uint16_t>(port == nullptr ? 0 : port->as_integer().value_or(0));
  const JsonValue* const blocks = params->find("remote_block_ids");
  if (!push && (blocks == nullptr || !blocks->is_array()))
    return bad("kv_transfer_params has no remote_block_ids");
  if (handoff.ids[0].empty() || handoff.host.empty() || handoff.port == 0)
    return bad("kv_transfer_params does not say where the blocks are");
  return handoff;
}

Result<Handoff> trtllm(const MockRequest& request, const std::string& request_id) {
  Handoff handoff;
  const JsonValue* const params = request.body.find("disaggregated_params");
  if (params == nullptr || params->is_null()) return handoff;
  const std::string type = text(*params, "request_type");
  const std::string global = text(*params, "disagg_request_id");
  if (!global.empty()) {
    int64_t number = 0;
    const auto read = std::from_chars(global.data(), global.data() + global.size(), number);
    if (read.ptr != global.data() + global.size() || number < kFirstGlobalId)
      return bad("disagg_request_id is not an integer of at least 2^42");
  }
  const JsonValue* const style = params->find("schedule_style");
  const bool generation_first = style != nullptr && style->as_integer() == 1;
  if (generation_first && global.empty())
    return bad("generation first needs a disagg_request_id for both servers");
  if (request.n > 1 || request.prompts.size() > 1)
    return bad("disaggregated requests have one prompt and one choice");
  if (type == "context_only") {
    if (request.stream) return bad("a context server does not stream");
    handoff.kind = Handoff::Kind::kPrefill;
    handoff.holds = generation_first;
    handoff.ids.push_back(global.empty() ? request_id : global);
    return handoff;
  }
  if (type != "generation_only")
    return bad("request_type is neither context_only nor generation_only");
  handoff.kind = Handoff::Kind::kDecode;
  const std::string context = text(*params, "ctx_request_id");
  handoff.ids.push_back(!global.empty() ? global : context);
  if (handoff.ids[0].empty()) return bad("disaggregated_params names no request");
  const JsonValue* const rank = params->find("ctx_dp_rank");
  if (rank != nullptr && rank->as_integer())
    handoff.rank = static_cast<int32_t>(*rank->as_integer());
  TANDEM_CHECK(read_address(text(*params, "ctx_info_endpoint"), handoff));
  return handoff;
}

Result<Handoff> tandem(const MockRequest& request) {
  Handoff handoff;
  const JsonValue* const envelope = request.body.find("tandem");
  if (envelope == nullptr) return handoff;
  const std::string leg = text(*envelope, "leg");
  if (leg != "prefill" && leg != "decode") return handoff;
  const JsonValue* const ticket = envelope->find("handoff");
  if (ticket == nullptr) return bad("a leg needs a handoff");
  handoff.kind = leg == "prefill" ? Handoff::Kind::kPrefill : Handoff::Kind::kDecode;
  handoff.holds = true;
  handoff.ids.push_back(text(*ticket, "id"));
  if (leg == "decode") TANDEM_CHECK(read_address(text(*ticket, "prefill_address"), handoff));
  return handoff;
}

JsonValue block_ids(const PromptFacts& facts) {
  JsonValue group = JsonValue::array();
  for (int64_t block = 0; block * 16 < facts.tokens; ++block)
    group.push_back(JsonValue::integer(static_cast<int64_t>(facts.hash % 100000) + block));
  return JsonValue::array({std::move(group)});
}

}  // namespace

int32_t rank_of_room(std::string_view room, int32_t dp_size) {
  uint64_t number = 0;
  std::from_chars(room.data(), room.data() + room.size(), number);
  return static_cast<int32_t>(number % static_cast<uint64_t>(dp_size));
}

Result<int32_t> pick_rank(const MockOptions& options, const MockRequest& request,
                          std::string_view header, int32_t& next) {
  const auto known = [&](int64_t rank) -> Result<int32_t> {
    if (rank >= 0 && rank < options.dp_size) return static_cast<int32_t>(rank);
    return bad("there is no data-parallel rank " + std::to_string(rank));
  };
  if (options.dialect == Dialect::kSglang) {
    const JsonValue* const routed = request.body.find("routed_dp_rank");
    if (routed != nullptr && routed->as_integer()) return known(*routed->as_integer());
    const JsonValue* room = request.body.find("bootstrap_room");
    if (room != nullptr && room->is_array() && !room->items().empty()) room = &room->items()[0];
    if (options.role == Role::kPrefill && room != nullptr && room->is_number())
      return rank_of_room(room->as_string(), options.dp_size);
  } else if (!header.empty()) {
    int64_t rank = -1;
    std::from_chars(header.data(), header.data() + header.size(), rank);
    return known(rank);
  }
  next = (next + 1) % options.dp_size;
  return next;
}

Result<Handoff> read_handoff(const MockOptions& options, const MockRequest& request,
                             const std::string& request_id, const Identity& /*me*/) {
  switch (options.dialect) {
    case Dialect::kSglang:
      return sglang(options, request);
    case Dialect::kVllmNixl:
    case Dialect::kVllmNixlPush:
    case Dialect::kVllmMooncake:
    case Dialect::kVllmMoriio:
    case Dialect::kVllmMoriioWrite:
      return vllm(options, request, request_id);
    case Dialect::kTrtllm:
      return trtllm(request, request_id);
    case Dialect::kTandem:
      return tandem(request);
    case Dialect::kOpenai:
      break;
  }
  return Handoff{};
}

void add_prefill_result(const MockOptions& options, const MockRequest& request,
                        const Handoff& handoff, const Identity& me, const PromptFacts& facts,
                        JsonValue& reply) {
  const bool moriio_reads = options.dialect == Dialect::kVllmMoriio;
  const bool nixl =
      options.dialect == Dialect::kVllmNixl || options.dialect == Dialect::kVllmNixlPush;
  if (nixl || moriio_reads) {
    JsonValue params = JsonValue::object();
    params.set("do_remote_prefill", JsonValue::boolean(true));
    params.set("do_remote_decode", JsonValue::boolean(false));
    params.set("remote_block_ids", block_ids(facts));
    params.set("remote_engine_id", JsonValue::string(me.engine_id));
    params.set("remote_request_id", JsonValue::string(handoff.ids[0]));
    params.set("remote_host", JsonValue::string(me.bootstrap_host));
    params.set("remote_port", JsonValue::integer(me.bootstrap_port));
    params.set("tp_size", JsonValue::integer(1));
    params.set("remote_num_tokens", JsonValue::integer(facts.tokens));
    if (moriio_reads) {
      params.set("transfer_id", JsonValue::string(handoff.ids[0]));
      params.set("remote_handshake_port", JsonValue::integer(me.bootstrap_port));
      params.set("remote_notify_port", JsonValue::integer(61005));
      reply.set("kv_transfer_params", std::move(params));
      return;
    }
    params.set("transfer_mode",
               JsonValue::string(options.dialect == Dialect::kVllmNixl ? "pull" : "push"));
    reply.set("kv_transfer_params", std::move(params));
    return;
  }
  if (options.dialect != Dialect::kTrtllm) return;
  JsonValue params = JsonValue::object();
  params.set("request_type", JsonValue::string("context_only"));
  params.set("first_gen_tokens", JsonValue::array({JsonValue::integer(7)}));
  params.set("ctx_request_id", JsonValue::number_text("0"));
  const std::string& id = handoff.ids[0];
  const bool number = id.find_first_not_of("0123456789") == std::string::npos;
  params.set("ctx_request_id", number ? JsonValue::number_text(id) : JsonValue::string(id));
  if (const JsonValue* mine = request.body.find("disaggregated_params")) {
    if (const JsonValue* global = mine->find("disagg_request_id"))
      params.set("disagg_request_id", *global);
  }
  params.set("ctx_dp_rank", JsonValue::integer(me.rank));
  params.set("ctx_info_endpoint",
             JsonValue::string(me.bootstrap_host + ":" + std::to_string(me.bootstrap_port)));
  JsonValue ids = JsonValue::array();
  for (const uint32_t token : request.prompts[0]) ids.push_back(JsonValue::integer(token));
  reply.set("prompt_token_ids", std::move(ids));
  if (JsonValue* choices = reply.find("choices"))
    choices->items()[0].set("disaggregated_params", std::move(params));
}

// vLLM counts what was transferred as a hit, on a stone-cold prompt too (vllm#43370); TensorRT-LLM
// repeats what the orchestrator passed on; SGLang and Tandem tell prefill's count.
int64_t cached_by_decode(const MockOptions& options, const MockRequest& request,
                         const PromptFacts& facts) {
  switch (options.dialect) {
    case Dialect::kVllmNixl:
    case Dialect::kVllmNixlPush:
    case Dialect::kVllmMooncake:
    case Dialect::kVllmMoriio:
    case Dialect::kVllmMoriioWrite:
      return facts.tokens - 1;
    case Dialect::kTrtllm: {
      const JsonValue* const params = request.body.find("disaggregated_params");
      const JsonValue* const usage = params == nullptr ? nullptr : params->find("ctx_usage");
      const JsonValue* const details =
          usage == nullptr ? nullptr : usage->find("prompt_tokens_details");
      const JsonValue* const cached = details == nullptr ? nullptr : details->find("cached_tokens");
      return cached == nullptr ? 0 : cached->as_integer().value_or(0);
    }
    default:
      return facts.cached;
  }
}

}  // namespace tandem::mock
