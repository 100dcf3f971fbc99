// The module itself, and what only the adapter of modules does.
#include "kv/transfer/memory_module.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <fstream>
#include <future>
#include <map>
#include <mutex>
#include <vector>

#include <gtest/gtest.h>

#include "kv/transfer/module_transport.h"

struct tandem_transport_engine {
  struct Batch {
    tandem_transport_peer* peer;
    std::vector<tandem_transport_read> reads;
    uint64_t id;
  };
  uint64_t key = 0;
  const char* memory = nullptr;
  uint64_t bytes = 0;
  std::deque<Batch> posted;
  std::mutex lock;  // of `woken`
  std::condition_variable changed;
  bool woken = false;
};

struct tandem_transport_peer {
  tandem_transport_engine* engine;
  uint64_t key;  // of the engine read from
};

namespace tandem::kv {
namespace {

struct Exposed {
  std::mutex lock;
  uint64_t next = 1;
  std::map<uint64_t, tandem_transport_engine*> engines;
};
Exposed& exposed() {
  static Exposed all;
  return all;
}

void say(tandem_transport_error* error, const char* text) {
  strncpy(error->message, text, sizeof error->message - 1);
}

int32_t open_engine(const char* settings, tandem_transport_engine** engine,
                    tandem_transport_error* error) {
  if (strstr(settings, "broken=1") != nullptr) {
    say(error, "it was told to be broken");
    return TANDEM_TRANSPORT_FAILED;
  }
  *engine = new tandem_transport_engine;
  return TANDEM_TRANSPORT_OK;
}

void close_engine(tandem_transport_engine* engine) {
  {
    const std::lock_guard guard(exposed().lock);
    exposed().engines.erase(engine->key);
  }
  delete engine;
}

int32_t expose(tandem_transport_engine* engine, const void* memory, uint64_t bytes,
               void* descriptor, uint64_t* descriptor_bytes, tandem_transport_error* error) {
  if (*descriptor_bytes < sizeof engine->key) {
    say(error, "no room for the descriptor");
    return TANDEM_TRANSPORT_INVALID;
  }
  const std::lock_guard guard(exposed().lock);
  engine->key = exposed().next++;
  engine->memory = static_cast<const char*>(memory);
  engine->bytes = bytes;
  exposed().engines[engine->key] = engine;
  memcpy(descriptor, &engine->key, sizeof engine->key);
  *descriptor_bytes = sizeof engine->key;
  return TANDEM_TRANSPORT_OK;
}

int32_t register_local(tandem_transport_engine*, void*, uint64_t, tandem_transport_error*) {
  return TANDEM_TRANSPORT_OK;
}

int32_t connect(tandem_transport_engine* engine, const void* descriptor, uint64_t descriptor_bytes,
                uint32_t, tandem_transport_peer** peer, tandem_transport_error* error) {
  uint64_t key = 0;
  if (descriptor_bytes == sizeof key) memcpy(&key, descriptor, sizeof key);
  const std::lock_guard guard(exposed().lock);
  if (!exposed().engines.contains(key)) {
    say(error, "nobody exposes that");
    return TANDEM_TRANSPORT_LOST;
  }
  *peer = new tandem_transport_peer{engine, key};
  return TANDEM_TRANSPORT_OK;
}

void disconnect(tandem_transport_peer* peer) {
  std::erase_if(peer->engine->posted, [&](const auto& batch) { return batch.peer == peer; });
  delete peer;
}

int32_t post(tandem_transport_peer* peer, const tandem_transport_read* reads, uint32_t count,
             uint64_t batch, uint32_t, tandem_transport_error*) {
  if (peer->engine->posted.size() >= 16) return TANDEM_TRANSPORT_FULL;
  peer->engine->posted.push_back({peer, {reads, reads + count}, batch});
  return TANDEM_TRANSPORT_OK;
}

int32_t perform(const tandem_transport_engine::Batch& batch) {
  const std::lock_guard guard(exposed().lock);  // the engine read from does not go away meanwhile
  const auto at = exposed().engines.find(batch.peer->key);
  if (at == exposed().engines.end()) return TANDEM_TRANSPORT_LOST;
  for (const auto& read : batch.reads) {
    if (read.offset > at->second->bytes || read.bytes > at->second->bytes - read.offset)
      return TANDEM_TRANSPORT_INVALID;
  }
  for (const auto& read : batch.reads)
    memcpy(read.into, at->second->memory + read.offset, read.bytes);
  return TANDEM_TRANSPORT_OK;
}

uint32_t poll(tandem_transport_engine* engine, tandem_transport_completion* completions,
              uint32_t capacity) {
  uint32_t count = 0;
  while (count < capacity && count < 2 && !engine->posted.empty()) {
    const auto batch = std::move(engine->posted.front());
    engine->posted.pop_front();
    completions[count++] = {batch.id, perform(batch), 0};
  }
  return count;
}

void wait(tandem_transport_engine* engine, uint32_t timeout_ms) {
  if (!engine->posted.empty()) return;
  std::unique_lock guard(engine->lock);
  engine->changed.wait_for(guard, std::chrono::milliseconds(timeout_ms),
                           [&] { return engine->woken; });
  engine->woken = false;
}

void wake(tandem_transport_engine* engine) {
  const std::lock_guard guard(engine->lock);
  engine->woken = true;
  engine->changed.notify_one();
}

constexpr tandem_transport_v1 kModule = {
    TANDEM_TRANSPORT_ABI_VERSION,
    sizeof(tandem_transport_v1),
    "memory",
    TANDEM_FENCE_LOCAL,
    0,
    open_engine,
    close_engine,
    expose,
    register_local,
    connect,
    disconnect,
    post,
    poll,
    wait,
    wake,
};

std::string refusal(const tandem_transport_v1* module, const std::string& settings = "") {
  const auto made = adapt_transport_module(module, "m.so", {.settings = settings});
  EXPECT_FALSE(made);
  return made ? "" : made.error().message;
}

TEST(TransportModule, WhatDoesNotFitIsRefusedWithASentence) {
  EXPECT_EQ(refusal(nullptr), "The transport module m.so cannot be used: it gives no interface.");
  tandem_transport_v1 other = kModule;
  other.abi_version = 2;
  EXPECT_NE(refusal(&other).find("speaks version 2"), std::string::npos);
  other = kModule;
  other.struct_size -= 8;
  EXPECT_NE(refusal(&other).find("build it again"), std::string::npos);
  other = kModule;
  other.wake = nullptr;
  EXPECT_NE(refusal(&other).find("gaps"), std::string::npos);
  EXPECT_NE(refusal(&kModule, "broken=1\n").find("told to be broken"), std::string::npos);
}

TEST(TransportModule, FilesThatAreNoModulesAreRefused) {
  const auto load = [](const std::string& path) {
    const auto made = load_transport_module(path, {});
    return made ? "" : made.error().message;
  };
  EXPECT_NE(load("/nowhere/m.so").find("/nowhere/m.so cannot be used"), std::string::npos);
  EXPECT_NE(load("libm.so.6").find("does not export tandem_transport"), std::string::npos);
  const std::string path = ::testing::TempDir() + "tandem-no-module.so";
  std::ofstream(path) << "not a library";
  EXPECT_NE(load(path).find("cannot be used"), std::string::npos);
}

// A module that forgets its batches: the adapter ends them.
TEST(TransportModule, ABatchThatTheModuleForgetsTimesOut) {
  tandem_transport_v1 forgetful = kModule;
  forgetful.poll = [](tandem_transport_engine*, tandem_transport_completion*, uint32_t) {
    return uint32_t{0};
  };
  forgetful.wait = [](tandem_transport_engine*, uint32_t) {};
  auto made = adapt_transport_module(&forgetful, "m.so", {});
  ASSERT_TRUE(made);
  std::vector<std::byte> memory(100);
  auto descriptor = (*made)->expose(memory, -1);
  ASSERT_TRUE(descriptor);
  std::promise<std::shared_ptr<Remote>> connected;
  (*made)->connect(*descriptor, {}, "", std::chrono::seconds(1),
                   [&](auto remote) { connected.set_value(remote ? *remote : nullptr); });
  auto remote = connected.get_future().get();
  ASSERT_TRUE(remote);
  std::promise<TransferStatus> ended;
  const Read read{0, memory.data(), 10};
  ASSERT_EQ(remote->post({&read, 1}, std::chrono::milliseconds(50),
                         [&](TransferStatus status) { ended.set_value(status); }),
            TransferStatus::kOk);
  EXPECT_EQ(ended.get_future().get(), TransferStatus::kTimeout);
}

}  // namespace

const tandem_transport_v1* memory_module() { return &kModule; }

}  // namespace tandem::kv
