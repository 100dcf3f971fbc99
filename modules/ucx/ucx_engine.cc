#include "ucx_engine.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>

using tandem::modules::Clock;
using tandem::modules::ExposedMemory;
using tandem::modules::say;
using tandem::modules::Token;

namespace {

constexpr std::string_view kKind = "tandem-ucx-1\n";

// The network interface that has this address; empty when none has.
std::string interface_of(const std::string& host) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  std::string found;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    char text[INET6_ADDRSTRLEN] = {};
    if (at->ifa_addr == nullptr) continue;
    if (at->ifa_addr->sa_family == AF_INET) {
      inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(at->ifa_addr)->sin_addr, text,
                sizeof text);
    } else if (at->ifa_addr->sa_family == AF_INET6) {
      inet_ntop(AF_INET6, &reinterpret_cast<sockaddr_in6*>(at->ifa_addr)->sin6_addr, text,
                sizeof text);
    }
    if (host == text) found = at->ifa_name;
  }
  freeifaddrs(list);
  return found;
}

// A request that one place waits for.
struct Awaited {
  bool ended = false;
  ucs_status_t status = UCS_OK;
};
void awaited_ended(void* request, ucs_status_t status, void* user_data) {
  auto* awaited = static_cast<Awaited*>(user_data);
  awaited->ended = true;
  awaited->status = status;
  ucp_request_free(request);
}

struct Piece {
  UcxBatch* batch;
  uint64_t bytes;
};
void piece_callback(void* request, ucs_status_t status, void* user_data) {
  const std::unique_ptr<Piece> piece(static_cast<Piece*>(user_data));
  piece->batch->peer->engine->piece_ended(piece->batch, piece->bytes, status);
  ucp_request_free(request);
}

void endpoint_failed(void* argument, ucp_ep_h /*endpoint*/, ucs_status_t /*status*/) {
  static_cast<tandem_transport_peer*>(argument)->lost = true;
}

}  // namespace

std::string tandem_transport_engine::start(const char* text) {
  tandem::modules::Settings settings(text);
  max_bytes_in_flight = settings.take_number("max_bytes_in_flight", max_bytes_in_flight);
  const std::string bind_host = settings.take("bind_host");
  auto of_ucx = settings.take_prefix("ucx.");
  // Dead peers are to be noticed sooner than after UCX's own 20 s.
  of_ucx.try_emplace("KEEPALIVE_INTERVAL", settings.take("keepalive_seconds", "2") + "s");
  if (const std::string wrong = settings.complaint(); !wrong.empty()) return wrong;
  if (!bind_host.empty() && !of_ucx.contains("NET_DEVICES")) {
    const std::string device = interface_of(bind_host);
    if (device.empty()) return "no network interface has the address " + bind_host;
    of_ucx["NET_DEVICES"] = device;
  }
  ucp_config_t* config = nullptr;
  if (const ucs_status_t status = ucp_config_read(nullptr, nullptr, &config); status != UCS_OK)
    return std::string("UCX has no configuration: ") + ucs_status_string(status);
  std::string wrong;
  for (const auto& [name, value] : of_ucx) {
    const ucs_status_t status = ucp_config_modify(config, name.c_str(), value.c_str());
    if (status != UCS_OK && wrong.empty())
      wrong.append("UCX does not take ")
          .append(name)
          .append("=")
          .append(value)
          .append(": ")
          .append(ucs_status_string(status));
  }
  if (wrong.empty()) wrong = make_worker(config);
  ucp_config_release(config);
  return wrong;
}

std::string tandem_transport_engine::make_worker(ucp_config_t* config) {
  ucp_params_t parameters{};
  parameters.field_mask = UCP_PARAM_FIELD_FEATURES;
  parameters.features = UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP;
  ucs_status_t status = ucp_init(&parameters, config, &context);
  if (status != UCS_OK) return std::string("UCX does not start: ") + ucs_status_string(status);
  ucp_worker_params_t worker_parameters{};
  worker_parameters.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_parameters.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  status = ucp_worker_create(context, &worker_parameters, &worker);
  if (status == UCS_OK) status = ucp_worker_get_efd(worker, &event_file);
  if (status == UCS_OK)
    status = map(token.bytes.data(), token.bytes.size(),
                 UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_REMOTE_READ, &token_memory);
  return status == UCS_OK ? "" : std::string("UCX has no worker: ") + ucs_status_string(status);
}

tandem_transport_engine::~tandem_transport_engine() {
  token.bytes.fill(0);
  local.each([this](std::byte*, ucp_mem_h memory) { ucp_mem_unmap(context, memory); });
  if (exposed_memory != nullptr) ucp_mem_unmap(context, exposed_memory);
  if (token_memory != nullptr) ucp_mem_unmap(context, token_memory);
  if (worker != nullptr) ucp_worker_destroy(worker);
  if (context != nullptr) ucp_cleanup(context);
}

ucs_status_t tandem_transport_engine::map(const void* memory, uint64_t bytes, unsigned protection,
                                          ucp_mem_h* out) const {
  ucp_mem_map_params_t parameters{};
  parameters.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                          UCP_MEM_MAP_PARAM_FIELD_PROT;
  parameters.address = const_cast<void*>(memory);
  parameters.length = bytes;
  parameters.prot = protection;
  return ucp_mem_map(context, &parameters, out);
}

std::string tandem_transport_engine::pack_key(ucp_mem_h memory) const {
  void* packed = nullptr;
  size_t size = 0;
  if (ucp_rkey_pack(context, memory, &packed, &size) != UCS_OK) return {};
  std::string out(static_cast<const char*>(packed), size);
  ucp_rkey_buffer_release(packed);
  return out;
}

int32_t tandem_transport_engine::expose(const void* memory, uint64_t bytes, void* descriptor,
                                        uint64_t* descriptor_bytes, tandem_transport_error* error) {
  if (exposed_memory != nullptr || memory == nullptr || bytes == 0)
    return say(error, TANDEM_TRANSPORT_INVALID, "memory is exposed once, and not empty");
  const ucs_status_t status = map(
      memory, bytes, UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_REMOTE_READ, &exposed_memory);
  if (status != UCS_OK)
    return say(error, TANDEM_TRANSPORT_FAILED,
               std::string("UCX cannot map the memory: ") + ucs_status_string(status));
  ucp_address_t* address = nullptr;
  size_t address_bytes = 0;
  if (ucp_worker_get_address(worker, &address, &address_bytes) != UCS_OK)
    return say(error, TANDEM_TRANSPORT_FAILED, "UCX has no address");
  std::vector<std::string> parts = {
      std::string(reinterpret_cast<const char*>(address), address_bytes), pack_key(exposed_memory),
      pack_key(token_memory)};
  ucp_worker_release_address(worker, address);
  if (parts[1].empty() || parts[2].empty())
    return say(error, TANDEM_TRANSPORT_FAILED, "UCX has no key for the memory");
  return tandem::modules::write_descriptor(kKind, memory, bytes, token, std::move(parts),
                                           descriptor, descriptor_bytes, error);
}

int32_t tandem_transport_engine::register_local(void* memory, uint64_t bytes,
                                                tandem_transport_error* error) {
  if (memory == nullptr || bytes == 0)
    return say(error, TANDEM_TRANSPORT_INVALID, "there is no memory to register");
  ucp_mem_h handle = nullptr;
  const ucs_status_t status =
      map(memory, bytes, UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_LOCAL_WRITE, &handle);
  if (status != UCS_OK)
    return say(error, TANDEM_TRANSPORT_FAILED,
               std::string("UCX cannot map the memory: ") + ucs_status_string(status));
  local.add(memory, bytes, handle);
  return TANDEM_TRANSPORT_OK;
}

int32_t tandem_transport_engine::open_endpoint(tandem_transport_peer& peer,
                                               tandem_transport_error* error) {
  ucp_ep_params_t parameters{};
  parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                          UCP_EP_PARAM_FIELD_ERR_HANDLER;
  parameters.address = reinterpret_cast<const ucp_address_t*>(peer.memory.parts[0].data());
  parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  parameters.err_handler = {endpoint_failed, &peer};
  ucs_status_t status = ucp_ep_create(worker, &parameters, &peer.endpoint);
  if (status == UCS_OK)
    status = ucp_ep_rkey_unpack(peer.endpoint, peer.memory.parts[1].data(), &peer.memory_key);
  if (status == UCS_OK)
    status = ucp_ep_rkey_unpack(peer.endpoint, peer.memory.parts[2].data(), &peer.token_key);
  if (status != UCS_OK)
    return say(error, TANDEM_TRANSPORT_FAILED,
               std::string("UCX cannot reach the peer: ") + ucs_status_string(status));
  return TANDEM_TRANSPORT_OK;
}

int32_t tandem_transport_engine::check_token(tandem_transport_peer& peer, uint32_t timeout_ms,
                                             tandem_transport_error* error) {
  const Clock::time_point until = Clock::now() + std::chrono::milliseconds(timeout_ms);
  // Shared with the callback, which may come after this function has given up.
  struct Check {
    Awaited awaited;
    std::array<uint8_t, Token::kSize> read{};
  };
  auto check = std::make_unique<Check>();
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  parameters.cb.send = awaited_ended;
  parameters.user_data = &check->awaited;
  const ucs_status_ptr_t request = ucp_get_nbx(peer.endpoint, check->read.data(), Token::kSize,
                                               peer.memory.token_at, peer.token_key, &parameters);
  if (UCS_PTR_IS_ERR(request)) check->awaited = {true, UCS_PTR_STATUS(request)};
  if (request == nullptr) check->awaited.ended = true;
  while (!check->awaited.ended && !peer.lost && Clock::now() < until) {
    if (ucp_worker_progress(worker) == 0) sleep(tandem::modules::milliseconds_until(until, 100));
  }
  const bool in_time = check->awaited.ended;
  if (!in_time) {
    close_endpoint(peer);  // its progress ends the request
    if (!check->awaited.ended) [[maybe_unused]]
      auto* leaked = check.release();
    return peer.lost ? say(error, TANDEM_TRANSPORT_LOST, "the peer is gone")
                     : say(error, TANDEM_TRANSPORT_TIMEOUT, "the peer did not answer in time");
  }
  if (check->awaited.status != UCS_OK)
    return say(error, TANDEM_TRANSPORT_LOST,
               std::string("the peer cannot be read: ") + ucs_status_string(check->awaited.status));
  if (check->read != peer.memory.token)
    return say(error, TANDEM_TRANSPORT_LOST, "the peer is another one than the descriptor's");
  return TANDEM_TRANSPORT_OK;
}

int32_t tandem_transport_engine::connect(const void* descriptor, uint64_t descriptor_bytes,
                                         uint32_t timeout_ms, tandem_transport_peer** peer,
                                         tandem_transport_error* error) {
  auto memory = tandem::modules::decode_descriptor(
      kKind, {static_cast<const char*>(descriptor), descriptor_bytes}, 3);
  if (!memory)
    return say(error, TANDEM_TRANSPORT_INVALID, "the descriptor is not one of this module");
  auto made = std::make_unique<tandem_transport_peer>();
  made->engine = this;
  made->memory = std::move(*memory);
  int32_t status = open_endpoint(*made, error);
  if (status == TANDEM_TRANSPORT_OK) status = check_token(*made, timeout_ms, error);
  if (status != TANDEM_TRANSPORT_OK) {
    close_endpoint(*made);
    return status;
  }
  peers.push_back(made.get());
  *peer = made.release();
  return TANDEM_TRANSPORT_OK;
}

// Ends everything on the endpoint; afterwards UCX holds no pointer into local memory.
void tandem_transport_engine::close_endpoint(tandem_transport_peer& peer) {
  if (peer.endpoint == nullptr) return;
  auto* awaited = new Awaited;
  ucp_request_param_t parameters{};
  parameters.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  parameters.flags = UCP_EP_CLOSE_FLAG_FORCE;
  parameters.cb.send = awaited_ended;
  parameters.user_data = awaited;
  const ucs_status_ptr_t request = ucp_ep_close_nbx(peer.endpoint, &parameters);
  if (request == nullptr || UCS_PTR_IS_ERR(request)) awaited->ended = true;
  const Clock::time_point until = Clock::now() + tandem::modules::kCloseLimit;
  while (!awaited->ended || peer.in_flight > 0) {
    ucp_worker_progress(worker);
    if (Clock::now() > until) {
      std::fprintf(stderr,
                   "tandem_transport_ucx: UCX does not let go of a closed connection; the process "
                   "ends, so that nothing is written into memory that is used again\n");
      std::abort();
    }
  }
  delete awaited;
  if (peer.memory_key != nullptr) ucp_rkey_destroy(peer.memory_key);
  if (peer.token_key != nullptr) ucp_rkey_destroy(peer.token_key);
  peer.endpoint = nullptr;
  peer.memory_key = peer.token_key = nullptr;
}

void tandem_transport_engine::disconnect(tandem_transport_peer* peer) {
  for (UcxBatch* batch : peer->batches) {
    if (!batch->completed) bytes_in_flight -= batch->bytes;
    batch->completed = true;  // without a completion
  }
  peer->to_issue.clear();
  close_endpoint(*peer);
  for (UcxBatch* batch : peer->batches) {
    std::erase_if(completions,
                  [&](const auto& completion) { return completion.batch == batch->id; });
    delete batch;
  }
  std::erase(peers, peer);
  delete peer;
}

int32_t tandem_transport_engine::post(tandem_transport_peer* peer,
                                      const tandem_transport_read* reads, uint32_t count,
                                      uint64_t batch, uint32_t timeout_ms,
                                      tandem_transport_error* error) {
  uint64_t bytes = 0;
  if (!tandem::modules::reads_are_inside(reads, count, peer->memory.bytes, local, bytes))
    return say(error, TANDEM_TRANSPORT_INVALID, "a read is outside the memory");
  if (peer->lost) return say(error, TANDEM_TRANSPORT_LOST, "the peer is gone");
  if (bytes_in_flight > 0 && bytes_in_flight + bytes > max_bytes_in_flight)
    return TANDEM_TRANSPORT_FULL;
  auto made = std::make_unique<UcxBatch>();
  made->peer = peer;
  made->id = batch;
  made->reads.assign(reads, reads + count);
  made->bytes = bytes;
  made->deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  next_deadline = std::min(next_deadline, made->deadline);
  bytes_in_flight += bytes;
  peer->to_issue.push_back(made.get());
  peer->batches.insert(made.release());
  return TANDEM_TRANSPORT_OK;
}

void tandem_transport_engine::complete(UcxBatch* batch, int32_t status) {
  if (!batch->completed) {
    batch->completed = true;
    bytes_in_flight -= batch->bytes;
    completions.push_back({batch->id, status, 0});
  }
  if (!batch->issued()) {
    std::erase(batch->peer->to_issue, batch);
    batch->next_read = batch->reads.size();
  }
  if (batch->in_flight > 0) return;
  batch->peer->batches.erase(batch);
  delete batch;
}

void tandem_transport_engine::piece_ended(UcxBatch* batch, uint64_t bytes, ucs_status_t status) {
  --batch->in_flight;
  --batch->peer->in_flight;
  --window_pieces;
  window_bytes -= bytes;
  if (status != UCS_OK) {
    // Whatever it was, UCX gives no second try on an endpoint with an error.
    batch->peer->lost = true;
    complete(batch, TANDEM_TRANSPORT_LOST);
  } else if (batch->in_flight == 0 && (batch->completed || batch->issued())) {
    complete(batch, TANDEM_TRANSPORT_OK);
  }
}

bool tandem_transport_engine::can_issue() const {
  if (window_pieces >= tandem::modules::kWindowPieces ||
      window_bytes >= tandem::modules::kWindowBytes)
    return false;
  for (const tandem_transport_peer* peer : peers) {
    if (!peer->lost && !peer->to_issue.empty()) return true;
  }
  return false;
}

// Posts the next piece of the peer's first batch. False: there is none.
bool tandem_transport_engine::issue_piece(tandem_transport_peer& peer, uint64_t& budget) {
  if (peer.lost || peer.to_issue.empty()) return false;
  UcxBatch* batch = peer.to_issue.front();
  const tandem_transport_read& read = batch->reads[batch->next_read];
  const uint64_t offset = batch->next_offset;
  const uint64_t bytes = std::min(read.bytes - offset, tandem::modules::kPieceBytes);
  batch->next_offset += bytes;
  if (batch->next_offset == read.bytes) {
    ++batch->next_read;
    batch->next_offset = 0;
  }
  if (batch->issued()) peer.to_issue.pop_front();
  ++batch->in_flight;
  ++peer.in_flight;
  ++window_pieces;
  window_bytes += bytes;
  budget -= std::min(budget, bytes);
  auto piece = std::make_unique<Piece>(Piece{batch, bytes});
  ucp_request_param_t parameters{};
  parameters.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMH;
  parameters.cb.send = piece_callback;
  parameters.user_data = piece.get();
  parameters.memh = *local.find(read.into, read.bytes);
  const ucs_status_ptr_t request =
      ucp_get_nbx(peer.endpoint, static_cast<std::byte*>(read.into) + offset, bytes,
                  peer.memory.base + read.offset + offset, peer.memory_key, &parameters);
  if (request == nullptr) {
    piece_ended(batch, bytes, UCS_OK);
  } else if (UCS_PTR_IS_ERR(request)) {
    piece_ended(batch, bytes, UCS_PTR_STATUS(request));
  } else {
    [[maybe_unused]] auto* given = piece.release();  // to the callback
  }
  return true;
}

void tandem_transport_engine::issue() {
  uint64_t budget = tandem::modules::kBytesPerPoll;
  while (budget > 0 && can_issue()) {
    next_peer = (next_peer + 1) % peers.size();
    issue_piece(*peers[next_peer], budget);
  }
}

void tandem_transport_engine::fail_lost_peers() {
  for (tandem_transport_peer* peer : peers) {
    if (!peer->lost) continue;
    const std::vector<UcxBatch*> batches(peer->batches.begin(), peer->batches.end());
    for (UcxBatch* batch : batches) {
      if (!batch->completed) complete(batch, TANDEM_TRANSPORT_LOST);
    }
  }
}

void tandem_transport_engine::expire() {
  const Clock::time_point now = Clock::now();
  if (now < next_deadline) return;
  next_deadline = Clock::time_point::max();
  for (tandem_transport_peer* peer : peers) {
    const std::vector<UcxBatch*> batches(peer->batches.begin(), peer->batches.end());
    for (UcxBatch* batch : batches) {
      if (batch->completed) continue;
      if (batch->deadline <= now) {
        complete(batch, TANDEM_TRANSPORT_TIMEOUT);
      } else {
        next_deadline = std::min(next_deadline, batch->deadline);
      }
    }
  }
}

uint32_t tandem_transport_engine::poll(tandem_transport_completion* out, uint32_t capacity) {
  issue();
  // A bound, so that a busy worker still hands out what has ended.
  for (int i = 0; i < 64 && ucp_worker_progress(worker) != 0; ++i) {
  }
  fail_lost_peers();
  expire();
  const auto count = static_cast<uint32_t>(std::min<size_t>(capacity, completions.size()));
  std::copy_n(completions.begin(), count, out);
  completions.erase(completions.begin(), completions.begin() + count);
  return count;
}

void tandem_transport_engine::sleep(int timeout_ms) {
  if (ucp_worker_arm(worker) != UCS_OK) return;  // there is something to progress
  pollfd files[2] = {{event_file, POLLIN, 0}, {waker.file(), POLLIN, 0}};
  ::poll(files, 2, timeout_ms);
  if ((files[1].revents & POLLIN) != 0) waker.clear();
}

void tandem_transport_engine::wait(uint32_t timeout_ms) {
  if (!completions.empty() || can_issue() || ucp_worker_progress(worker) != 0) return;
  sleep(tandem::modules::milliseconds_until(next_deadline, timeout_ms));
}
