// The C interface of a module over its engine's and its peers' types.
#pragma once

#include <memory>
#include <string>

#include "module_support.h"

namespace tandem::modules {

template <typename Engine>
int32_t open_engine(const char* settings, Engine** engine, tandem_transport_error* error) {
  auto made = std::make_unique<Engine>();
  const std::string wrong = made->start(settings);
  if (!wrong.empty()) return say(error, TANDEM_TRANSPORT_FAILED, wrong);
  *engine = made.release();
  return TANDEM_TRANSPORT_OK;
}

// For tandem_transport_engine and tandem_transport_peer, which each module completes.
template <typename Engine, typename Peer>
constexpr tandem_transport_v1 make_interface(const char* name, tandem_transport_fence fence) {
  return {
      TANDEM_TRANSPORT_ABI_VERSION,
      sizeof(tandem_transport_v1),
      name,
      fence,
      0,
      open_engine<Engine>,
      [](Engine* engine) { delete engine; },
      [](Engine* engine, const void* memory, uint64_t bytes, void* descriptor,
         uint64_t* descriptor_bytes, tandem_transport_error* error) {
        return engine->expose(memory, bytes, descriptor, descriptor_bytes, error);
      },
      [](Engine* engine, void* memory, uint64_t bytes, tandem_transport_error* error) {
        return engine->register_local(memory, bytes, error);
      },
      [](Engine* engine, const void* descriptor, uint64_t descriptor_bytes, uint32_t timeout_ms,
         Peer** peer, tandem_transport_error* error) {
        return engine->connect(descriptor, descriptor_bytes, timeout_ms, peer, error);
      },
      [](Peer* peer) { peer->engine->disconnect(peer); },
      [](Peer* peer, const tandem_transport_read* reads, uint32_t count, uint64_t batch,
         uint32_t timeout_ms, tandem_transport_error* error) {
        return peer->engine->post(peer, reads, count, batch, timeout_ms, error);
      },
      [](Engine* engine, tandem_transport_completion* completions, uint32_t capacity) {
        return engine->poll(completions, capacity);
      },
      [](Engine* engine, uint32_t timeout_ms) { engine->wait(timeout_ms); },
      [](Engine* engine) { engine->wake(); },
  };
}

}  // namespace tandem::modules
