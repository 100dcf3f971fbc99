// The C interface of the UCX module.
#include "ucx_engine.h"

namespace {

int32_t open_engine(const char* settings, tandem_transport_engine** engine,
                    tandem_transport_error* error) {
  auto made = std::make_unique<tandem_transport_engine>();
  const std::string wrong = made->start(settings);
  if (!wrong.empty()) return tandem::modules::say(error, TANDEM_TRANSPORT_FAILED, wrong);
  *engine = made.release();
  return TANDEM_TRANSPORT_OK;
}

constexpr tandem_transport_v1 kModule = {
    TANDEM_TRANSPORT_ABI_VERSION,
    sizeof(tandem_transport_v1),
    "ucx",
    TANDEM_FENCE_CONNECTION,
    0,
    open_engine,
    [](tandem_transport_engine* engine) { delete engine; },
    [](tandem_transport_engine* engine, const void* memory, uint64_t bytes, void* descriptor,
       uint64_t* descriptor_bytes, tandem_transport_error* error) {
      return engine->expose(memory, bytes, descriptor, descriptor_bytes, error);
    },
    [](tandem_transport_engine* engine, void* memory, uint64_t bytes,
       tandem_transport_error* error) { return engine->register_local(memory, bytes, error); },
    [](tandem_transport_engine* engine, const void* descriptor, uint64_t descriptor_bytes,
       uint32_t timeout_ms, tandem_transport_peer** peer, tandem_transport_error* error) {
      return engine->connect(descriptor, descriptor_bytes, timeout_ms, peer, error);
    },
    [](tandem_transport_peer* peer) { peer->engine->disconnect(peer); },
    [](tandem_transport_peer* peer, const tandem_transport_read* reads, uint32_t count,
       uint64_t batch, uint32_t timeout_ms, tandem_transport_error* error) {
      return peer->engine->post(peer, reads, count, batch, timeout_ms, error);
    },
    [](tandem_transport_engine* engine, tandem_transport_completion* completions,
       uint32_t capacity) { return engine->poll(completions, capacity); },
    [](tandem_transport_engine* engine, uint32_t timeout_ms) { engine->wait(timeout_ms); },
    [](tandem_transport_engine* engine) { engine->waker.wake(); },
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const tandem_transport_v1* tandem_transport() {
  return &kModule;
}
