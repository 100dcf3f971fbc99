// What the conformance suite runs over, and the two ends of a transfer. For tests.
#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "device/shared_arena.h"
#include "kv/transfer/transport.h"

namespace tandem::kv {

struct TransportSubject {
  std::string name;
  // With this bound on the bytes in flight per peer. An error fails the test.
  std::function<Result<std::unique_ptr<Transport>>(uint64_t max_bytes_in_flight)> make;
  // The receiver's end; like `make` unless faults are injected there.
  std::function<Result<std::unique_ptr<Transport>>(uint64_t max_bytes_in_flight)> make_receiver =
      make;
  bool other_process = true;  // can read from another process
  bool needs_owner = true;    // a stopped owner's memory cannot be read
};
// GoogleTest's name.
// NOLINTNEXTLINE(readability-identifier-naming)
inline void PrintTo(const TransportSubject& subject, std::ostream* out) { *out << subject.name; }

// All that this build has, and the module that TANDEM_TRANSPORT_MODULE names.
std::vector<TransportSubject> transport_subjects();
const TransportSubject* find_subject(const std::string& name);

inline PeerKey test_key() { return {"test-peer-000000", std::string(32, 'k')}; }

inline std::byte pattern_byte(uint64_t offset) {
  return static_cast<std::byte>((offset * 2654435761U) >> 13);
}

// The sender: memory full of the pattern, exposed to the holder of test_key().
struct Exposer {
  static constexpr size_t kPages = 8;
  static constexpr size_t kPageBytes = size_t{4} << 20;
  std::unique_ptr<device::SharedArena> arena;
  std::unique_ptr<Transport> transport;
  Descriptor descriptor;

  static std::unique_ptr<Exposer> start(const TransportSubject& subject) {
    auto made = std::make_unique<Exposer>();
    made->arena = std::move(*device::SharedArena::create(kPageBytes, kPages));
    for (uint64_t at = 0; at < made->memory().size(); ++at) made->data()[at] = pattern_byte(at);
    auto transport = subject.make(uint64_t{64} << 20);
    if (!transport) {
      ADD_FAILURE() << transport.error().message;
      return nullptr;
    }
    made->transport = std::move(*transport);
    auto exposed = made->transport->expose(made->memory(), made->arena->read_only_descriptor());
    if (!exposed) {
      ADD_FAILURE() << exposed.error().message;
      return nullptr;
    }
    made->descriptor = *exposed;
    made->transport->admit(test_key());
    return made;
  }
  ~Exposer() { transport.reset(); }

  std::byte* data() const { return arena->pages() - arena->shape().pages_offset; }
  std::span<const std::byte> memory() const { return {data(), arena->shape().segment_bytes}; }
};

// How one posted batch ended: exactly once, or the test fails.
class Ending {
 public:
  Remote::Done done() {
    return [state = state_](TransferStatus status) {
      EXPECT_EQ(state->calls.fetch_add(1), 0) << "a batch completed twice";
      if (state->calls == 1) state->promise.set_value(status);
    };
  }
  bool ready(Duration limit = {}) const {
    return state_->future.wait_for(limit) == std::future_status::ready;
  }
  TransferStatus get(Duration limit = std::chrono::seconds(20)) const {
    if (!ready(limit)) {
      ADD_FAILURE() << "a batch never completed";
      return TransferStatus::kFailed;
    }
    return state_->future.get();
  }

 private:
  struct State {
    std::promise<TransferStatus> promise;
    std::shared_future<TransferStatus> future = promise.get_future().share();
    std::atomic<int> calls = 0;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// The receiver: registered memory and a way to connect.
struct Reader {
  static constexpr size_t kBytes = size_t{32} << 20;
  std::unique_ptr<Transport> transport;
  std::vector<std::byte> memory = std::vector<std::byte>(kBytes);

  static std::unique_ptr<Reader> start(const TransportSubject& subject,
                                       uint64_t max_bytes_in_flight = uint64_t{64} << 20) {
    auto made = std::make_unique<Reader>();
    auto transport = subject.make_receiver(max_bytes_in_flight);
    if (!transport) {
      ADD_FAILURE() << transport.error().message;
      return nullptr;
    }
    made->transport = std::move(*transport);
    const auto registered = made->transport->register_local(made->memory);
    EXPECT_TRUE(registered) << registered.error().message;
    return made;
  }

  Result<std::shared_ptr<Remote>> connect(const Descriptor& descriptor,
                                          const PeerKey& key = test_key(),
                                          Duration limit = std::chrono::seconds(3)) const {
    auto promise = std::make_shared<std::promise<Result<std::shared_ptr<Remote>>>>();
    auto future = promise->get_future();
    Descriptor own = descriptor;
    if (own.file >= 0) own.file = dup(own.file);
    transport->connect(own, key, "127.0.0.1", limit,
                       [promise](auto result) { promise->set_value(std::move(result)); });
    if (future.wait_for(std::chrono::seconds(10)) != std::future_status::ready)
      return internal_error("connect never ended");
    return future.get();
  }

  bool holds(uint64_t at, uint64_t offset, uint64_t bytes) const {
    for (uint64_t i = 0; i < bytes; ++i) {
      if (memory[at + i] != pattern_byte(offset + i)) return false;
    }
    return true;
  }
};

inline TransferStatus read_now(Remote& remote, const std::vector<Read>& reads,
                               Duration limit = std::chrono::seconds(10)) {
  const Ending ending;
  const TransferStatus posted = remote.post(reads, limit, Ending(ending).done());
  return posted == TransferStatus::kOk ? ending.get() : posted;
}

}  // namespace tandem::kv
