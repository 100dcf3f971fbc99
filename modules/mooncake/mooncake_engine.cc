#include "mooncake_engine.h"

using namespace tandem::modules;

namespace {

constexpr std::string_view kKind = "tandem-mooncake-1\n";
constexpr std::chrono::microseconds kWatchEvery{100};

bool is_final(int state) {
  return state == kCompleted || state == kFailed || state == kTimeout || state == kCanceled ||
         state == kInvalid;
}

}  // namespace

std::string tandem_transport_engine::start(const char* text) {
  Settings settings(text);
  const std::string library = settings.take("library");
  const std::string metadata = settings.take("metadata", "P2PHANDSHAKE");
  const std::string host = settings.take("bind_host", "127.0.0.1");
  const std::string protocol = settings.take("protocol", "tcp");
  const uint64_t port = settings.take_number("port", 12345);  // unused when peers shake hands
  location_ = settings.take("location", "cpu:0");
  max_bytes_in_flight_ = settings.take_number("max_bytes_in_flight", max_bytes_in_flight_);
  if (const std::string wrong = settings.complaint(); !wrong.empty()) return wrong;
  if (const std::string wrong = mooncake_.load(library); !wrong.empty()) return wrong;
  const std::string name = host + ":" + std::to_string(port);
  engine_ = mooncake_.create(metadata.c_str(), name.c_str(), host.c_str(), port, 0);
  if (engine_ == nullptr) return "Mooncake's engine does not start; its own log says why";
  if (mooncake_.install_transport(engine_, protocol.c_str(), nullptr) == nullptr)
    return "Mooncake has no transport " + protocol + " here; its own log says why";
  landings_.resize(kLandings);
  for (size_t i = 0; i < kLandings; ++i) free_landings_.push_back(static_cast<int32_t>(i));
  if (mooncake_.register_memory(engine_, landings_.data(), kLandings * Token::kSize,
                                location_.c_str(), 0) != 0)
    return "Mooncake cannot register memory";
  return {};
}

tandem_transport_engine::~tandem_transport_engine() {
  token_.bytes.fill(0);
  for (auto& parting : parting_) parting.thread.join();
  if (engine_ != nullptr) mooncake_.destroy(engine_);
}

int32_t tandem_transport_engine::expose(const void* memory, uint64_t bytes, void* descriptor,
                                        uint64_t* descriptor_bytes, tandem_transport_error* error) {
  if (exposed_ || memory == nullptr || bytes == 0)
    return say(error, TANDEM_TRANSPORT_INVALID, "memory is exposed once, and not empty");
  void* at = const_cast<void*>(memory);
  // Mooncake takes no region twice: one that reads go into already is given anew.
  for (const Region& region : regions_) {
    if (region.memory == at) mooncake_.unregister_memory(engine_, at);
  }
  if (mooncake_.register_memory(engine_, at, bytes, location_.c_str(), 1) != 0 ||
      mooncake_.register_memory(engine_, token_.bytes.data(), token_.bytes.size(),
                                location_.c_str(), 1) != 0)
    return say(error, TANDEM_TRANSPORT_FAILED, "Mooncake cannot register the memory");
  regions_.push_back({at, bytes, true});
  exposed_ = true;
  char name[256] = {};
  if (mooncake_.local_address(engine_, name, sizeof name) != 0 || name[0] == 0)
    return say(error, TANDEM_TRANSPORT_FAILED, "Mooncake does not know its own address");
  return write_descriptor(kKind, memory, bytes, token_, {name}, descriptor, descriptor_bytes,
                          error);
}

int32_t tandem_transport_engine::register_local(void* memory, uint64_t bytes,
                                                tandem_transport_error* error) {
  if (memory == nullptr || bytes == 0)
    return say(error, TANDEM_TRANSPORT_INVALID, "there is no memory to register");
  const bool known = std::ranges::any_of(
      regions_, [&](const Region& r) { return r.memory == memory && r.bytes == bytes; });
  if (!known && mooncake_.register_memory(engine_, memory, bytes, location_.c_str(), 0) != 0)
    return say(error, TANDEM_TRANSPORT_FAILED, "Mooncake cannot register the memory");
  if (!known) regions_.push_back({memory, bytes, false});
  local_.add(memory, bytes, true);
  return TANDEM_TRANSPORT_OK;
}

template <typename Work>
MooncakeThread tandem_transport_engine::run(Work work) {
  MooncakeThread out;
  out.ended = std::make_shared<std::atomic<bool>>(false);
  out.thread = std::thread([work = std::move(work), ended = out.ended] {
    work();
    *ended = true;
  });
  return out;
}

void tandem_transport_engine::sweep_threads() {
  std::erase_if(parting_, [](MooncakeThread& parting) {
    if (!*parting.ended) return false;
    parting.thread.join();
    return true;
  });
}

// Asks the peer for its memory's description, which may take Mooncake longer than we wait.
int32_t tandem_transport_engine::open_segment(const std::string& name, Clock::time_point until) {
  struct Opening {
    std::mutex lock;
    std::condition_variable changed;
    bool ended = false;
    int32_t segment = -1;
  };
  auto opening = std::make_shared<Opening>();
  parting_.push_back(run([this, opening, name] {
    const int32_t segment = mooncake_.open_segment_fresh(engine_, name.c_str());
    const std::lock_guard guard(opening->lock);
    opening->segment = segment;
    opening->ended = true;
    opening->changed.notify_one();
  }));
  std::unique_lock guard(opening->lock);
  opening->changed.wait_until(guard, until, [&] { return opening->ended; });
  return opening->segment;
}

int32_t tandem_transport_engine::connect(const void* descriptor, uint64_t descriptor_bytes,
                                         uint32_t timeout_ms, tandem_transport_peer** peer,
                                         tandem_transport_error* error) {
  const Clock::time_point until = Clock::now() + std::chrono::milliseconds(timeout_ms);
  auto memory =
      decode_descriptor(kKind, {static_cast<const char*>(descriptor), descriptor_bytes}, 1);
  if (!memory)
    return say(error, TANDEM_TRANSPORT_INVALID, "the descriptor is not one of this module");
  sweep_threads();
  auto made = std::make_unique<tandem_transport_peer>();
  made->engine = this;
  made->memory = std::move(*memory);
  made->state = std::make_shared<State>();
  made->state->segment = open_segment(made->memory.parts[0], until);
  if (made->state->segment < 0) {
    return Clock::now() >= until
               ? say(error, TANDEM_TRANSPORT_TIMEOUT, "the peer did not answer in time")
               : say(error, TANDEM_TRANSPORT_LOST, "Mooncake cannot reach the peer");
  }
  {
    const std::lock_guard guard(lock_);
    states_.push_back(made->state);
  }
  made->thread = run([this, state = made->state] { submit_loop(*state); });
  const int32_t status = check_token(*made, until, error);
  if (status != TANDEM_TRANSPORT_OK) {
    disconnect(made.release());
    return status;
  }
  *peer = made.release();
  return TANDEM_TRANSPORT_OK;
}

int32_t tandem_transport_engine::check_token(tandem_transport_peer& peer, Clock::time_point until,
                                             tandem_transport_error* error) {
  auto batch = std::make_shared<MooncakeBatch>();
  batch->deadline = until;
  {
    std::unique_lock guard(lock_);
    if (free_landings_.empty())
      return say(error, TANDEM_TRANSPORT_FAILED, "too many peers do not answer");
    batch->landing = free_landings_.back();
    free_landings_.pop_back();
    batch->requests.push_back({kOpcodeRead, landings_[static_cast<size_t>(batch->landing)].data(),
                               peer.state->segment, peer.memory.token_at, Token::kSize});
    enqueue(*peer.state, batch);
    while (!batch->completed) {
      advance();
      if (!batch->completed) changed_.wait_for(guard, kWatchEvery);
    }
  }
  if (batch->status == TANDEM_TRANSPORT_TIMEOUT)
    return say(error, TANDEM_TRANSPORT_TIMEOUT, "the peer did not answer in time");
  if (batch->status != TANDEM_TRANSPORT_OK)
    return say(error, TANDEM_TRANSPORT_LOST, "the peer cannot be read");
  if (landings_[static_cast<size_t>(batch->landing)] != peer.memory.token)
    return say(error, TANDEM_TRANSPORT_LOST, "the peer is another one than the descriptor's");
  return TANDEM_TRANSPORT_OK;
}

void tandem_transport_engine::disconnect(tandem_transport_peer* peer) {
  const std::unique_ptr<tandem_transport_peer> owned(peer);
  {
    const std::lock_guard guard(lock_);
    State& state = *peer->state;
    for (const Batch& batch : state.open) {
      if (!batch->completed) bytes_in_flight_ -= batch->bytes;
      batch->completed = true;  // without a completion
      batch->next = batch->requests.size();
    }
    state.open.clear();
    state.queue.clear();
    state.stopping = true;
    state.changed.notify_one();
  }
  parting_.push_back(std::move(peer->thread));
  sweep_threads();
}

int32_t tandem_transport_engine::post(tandem_transport_peer* peer,
                                      const tandem_transport_read* reads, uint32_t count,
                                      uint64_t id, uint32_t timeout_ms,
                                      tandem_transport_error* error) {
  uint64_t bytes = 0;
  if (!reads_are_inside(reads, count, peer->memory.bytes, local_, bytes))
    return say(error, TANDEM_TRANSPORT_INVALID, "a read is outside the memory");
  auto batch = std::make_shared<MooncakeBatch>();
  batch->id = id;
  batch->bytes = bytes;
  batch->deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  for (uint32_t i = 0; i < count; ++i) {
    for (uint64_t done = 0; done < reads[i].bytes; done += kRequestBytes) {
      batch->requests.push_back({kOpcodeRead, static_cast<std::byte*>(reads[i].into) + done,
                                 peer->state->segment, peer->memory.base + reads[i].offset + done,
                                 std::min(kRequestBytes, reads[i].bytes - done)});
    }
  }
  const std::lock_guard guard(lock_);
  if (bytes_in_flight_ > 0 && bytes_in_flight_ + bytes > max_bytes_in_flight_)
    return TANDEM_TRANSPORT_FULL;
  bytes_in_flight_ += bytes;
  enqueue(*peer->state, std::move(batch));
  return TANDEM_TRANSPORT_OK;
}

void tandem_transport_engine::enqueue(State& state, Batch batch) {
  state.open.push_back(batch);
  state.queue.push_back(std::move(batch));
  state.changed.notify_one();
}

void tandem_transport_engine::submit_loop(State& state) {
  std::unique_lock guard(lock_);
  while (true) {
    state.changed.wait(guard, [&] {
      return state.stopping ||
             (!state.queue.empty() && state.requests_under_way < kRequestsUnderWay);
    });
    if (state.stopping) return;
    submit_next(state, guard);
  }
}

void tandem_transport_engine::submit_next(State& state, std::unique_lock<std::mutex>& guard) {
  const Batch batch = state.queue.front();
  const size_t count = std::min({kRequestsPerSubmit, kRequestsUnderWay - state.requests_under_way,
                                 batch->requests.size() - batch->next});
  if (batch->completed || count == 0) {
    state.queue.pop_front();
    return;
  }
  std::vector<MooncakeRequest> requests(
      batch->requests.begin() + static_cast<std::ptrdiff_t>(batch->next),
      batch->requests.begin() + static_cast<std::ptrdiff_t>(batch->next + count));
  batch->next += count;
  if (batch->next == batch->requests.size()) state.queue.pop_front();
  ++batch->under_way;
  state.requests_under_way += count;
  state.submitting = true;
  guard.unlock();
  MooncakeSubmit submit{batch, mooncake_.allocate_batch(engine_, count), count};
  if (submit.handle != kNoBatch)
    submit.failed = mooncake_.submit(engine_, submit.handle, requests.data(), count) != 0;
  guard.lock();
  state.submitting = false;
  // What failed may still have begun in part: it is watched like the rest, until it can be freed.
  submit.failed |= submit.handle == kNoBatch;
  state.submits.push_back(std::move(submit));
  changed_.notify_one();
}

// Whether nothing of the submit is under way any more; it is then freed.
bool tandem_transport_engine::has_ended(MooncakeSubmit& submit) {
  if (submit.handle == kNoBatch) return true;
  while (submit.ended < submit.requests) {
    MooncakeStatus status{kWaiting, 0};
    if (mooncake_.status(engine_, submit.handle, submit.ended, &status) != 0) {
      if (!submit.failed) return false;
      status.status = kInvalid;  // was never begun
    }
    if (!is_final(status.status)) return false;
    submit.failed |= status.status != kCompleted;
    ++submit.ended;
  }
  return mooncake_.free_batch(engine_, submit.handle) == 0;
}

void tandem_transport_engine::watch(State& state) {
  for (auto at = state.submits.begin(); at != state.submits.end();) {
    const Batch& batch = at->batch;
    const bool ended = has_ended(*at);
    if (at->failed) {
      batch->next = batch->requests.size();  // the rest is not begun
      complete(state, batch, TANDEM_TRANSPORT_FAILED);
    }
    if (!ended) {
      ++at;
      continue;
    }
    --batch->under_way;
    state.requests_under_way -= at->requests;
    state.changed.notify_one();
    if (batch->under_way == 0 && batch->next == batch->requests.size()) {
      complete(state, batch, TANDEM_TRANSPORT_OK);
      if (batch->landing >= 0) free_landings_.push_back(batch->landing);
    }
    at = state.submits.erase(at);
  }
}

void tandem_transport_engine::complete(State& state, const Batch& batch, int32_t status) {
  if (batch->completed) return;
  batch->completed = true;
  batch->status = status;
  bytes_in_flight_ -= batch->bytes;
  std::erase(state.open, batch);
  if (batch->landing < 0) completions_.push_back({batch->id, status, 0});
}

void tandem_transport_engine::expire(State& state, Clock::time_point now) {
  for (size_t i = 0; i < state.open.size();) {
    const Batch batch = state.open[i];
    if (now < batch->deadline) {
      ++i;
      continue;
    }
    const bool begun = batch->under_way > 0;
    if (!begun && batch->landing >= 0) free_landings_.push_back(batch->landing);
    batch->next = batch->requests.size();
    std::erase(state.queue, batch);
    complete(state, batch, TANDEM_TRANSPORT_TIMEOUT);
  }
}

void tandem_transport_engine::advance() {
  const Clock::time_point now = Clock::now();
  for (const auto& state : states_) {
    watch(*state);
    expire(*state, now);
  }
  std::erase_if(states_, [](const auto& state) {
    return state->stopping && !state->submitting && state->submits.empty();
  });
}

uint32_t tandem_transport_engine::poll(tandem_transport_completion* out, uint32_t capacity) {
  const std::lock_guard guard(lock_);
  advance();
  const auto count = static_cast<uint32_t>(std::min<size_t>(capacity, completions_.size()));
  std::copy_n(completions_.begin(), count, out);
  completions_.erase(completions_.begin(), completions_.begin() + count);
  return count;
}

bool tandem_transport_engine::is_busy() const {
  return std::ranges::any_of(states_, [](const auto& state) { return !state->submits.empty(); });
}

void tandem_transport_engine::wait(uint32_t timeout_ms) {
  std::unique_lock guard(lock_);
  if (!completions_.empty()) return;
  if (is_busy()) {  // Mooncake tells nobody that a transfer has ended: look again soon
    changed_.wait_for(guard, kWatchEvery, [&] { return woken_; });
  } else {
    Clock::time_point until = Clock::now() + std::chrono::milliseconds(timeout_ms);
    for (const auto& state : states_) {
      for (const Batch& batch : state->open) until = std::min(until, batch->deadline);
    }
    changed_.wait_until(guard, until, [&] { return woken_ || is_busy(); });
  }
  woken_ = false;
}

void tandem_transport_engine::wake() {
  const std::lock_guard guard(lock_);
  woken_ = true;
  changed_.notify_one();
}
