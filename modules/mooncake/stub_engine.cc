// A stand-in for Mooncake's libtransfer_engine.so, for tests: the same C functions, reads over TCP
// on loopback between processes, one thread per connection, and faults.
//
// TANDEM_STUB_FAULTS, read when an engine is created, is "name=N" pairs, separated by commas:
//   fail_every     every Nth request ends with FAILED
//   hang_every     every Nth request never ends
//   refuse_every   every Nth submit is refused, after half of its requests have begun
//   slow_ms        each request takes that much longer
//   open_ms        so does opening a segment
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mooncake_functions.h"

using tandem::modules::MooncakeRequest;
using tandem::modules::MooncakeStatus;

namespace {

struct Question {
  uint64_t address;
  uint64_t bytes;
};

// Questions and answers are small and alternate.
void send_at_once(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

bool read_fully(int socket, void* into, size_t bytes) {
  auto* at = static_cast<char*>(into);
  while (bytes > 0) {
    const ssize_t got = read(socket, at, bytes);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}
bool write_fully(int socket, const void* from, size_t bytes) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t put = send(socket, at, bytes, MSG_NOSIGNAL);
    if (put <= 0) return false;
    at += put;
    bytes -= static_cast<size_t>(put);
  }
  return true;
}

class StubEngine {
 public:
  StubEngine() {
    const char* faults = std::getenv("TANDEM_STUB_FAULTS");
    std::string text = faults != nullptr ? faults : "";
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find(',', at), text.size());
      const size_t equals = text.find('=', at);
      if (equals < end) faults_[text.substr(at, equals - at)] = std::atoi(&text[equals + 1]);
      at = end + 1;
    }
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        listen(listener_, 64) != 0)
      std::abort();
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    threads_.emplace_back([this] { accept_loop(); });
    for (int i = 0; i < 2; ++i) threads_.emplace_back([this] { read_loop(); });
  }

  ~StubEngine() {
    {
      const std::lock_guard guard(lock_);
      stopping_ = true;
      for (const int open : sockets_) shutdown(open, SHUT_RDWR);
      changed_.notify_all();
    }
    shutdown(listener_, SHUT_RDWR);
    for (size_t i = 0; i < threads_.size(); ++i) threads_[i].join();
    close(listener_);
    for (const int open : sockets_) close(open);
  }

  uint16_t port() const { return port_; }
  int fault(const char* name) const {
    const auto found = faults_.find(name);
    return found == faults_.end() ? 0 : found->second;
  }
  bool strikes(const char* name, std::atomic<int>& counter) const {
    const int every = fault(name);
    return every > 0 && ++counter % every == 0;
  }

  int add_region(void* address, size_t bytes, bool remote) {
    const std::lock_guard guard(lock_);
    const auto at = reinterpret_cast<uintptr_t>(address);
    for (const auto& [begin, region] : regions_) {
      if (at < begin + region.bytes && begin < at + bytes) return -7;  // as Mooncake: no overlap
    }
    regions_[at] = {bytes, remote};
    return 0;
  }
  int drop_region(void* address) {
    const std::lock_guard guard(lock_);
    return regions_.erase(reinterpret_cast<uintptr_t>(address)) == 1 ? 0 : -3;
  }

  int32_t open_segment(const std::string& name) {
    if (const int ms = fault("open_ms"); ms > 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    const size_t colon = name.rfind(':');
    const int port = colon == std::string::npos ? 0 : std::atoi(&name[colon + 1]);
    const int probe = dial(static_cast<uint16_t>(port));
    if (probe < 0) return -1;
    close(probe);
    const std::lock_guard guard(lock_);
    segments_.push_back(static_cast<uint16_t>(port));
    return static_cast<int32_t>(segments_.size());
  }

  uint64_t allocate_batch(size_t size) {
    const std::lock_guard guard(lock_);
    batches_[++next_batch_].resize(size);
    return next_batch_;
  }
  int submit(uint64_t id, const MooncakeRequest* requests, size_t count) {
    const bool refused = strikes("refuse_every", submits_);
    const std::lock_guard guard(lock_);
    auto& tasks = batches_.at(id);
    const size_t begun = refused ? count / 2 : count;
    if (begun > tasks.size()) return 1;
    for (size_t i = 0; i < begun; ++i) {
      tasks[i] = std::make_shared<Task>(requests[i]);
      queue_.push_back(tasks[i]);
    }
    changed_.notify_all();
    return refused ? 1 : 0;
  }
  int status(uint64_t id, size_t index, MooncakeStatus* out) {
    const std::lock_guard guard(lock_);
    const auto& tasks = batches_.at(id);
    if (index >= tasks.size() || tasks[index] == nullptr) return 1;
    const int state = tasks[index]->state;
    tasks[index]->seen |= state != tandem::modules::kWaiting;
    *out = {state, state == tandem::modules::kCompleted ? tasks[index]->request.length : 0};
    return 0;
  }
  int free_batch(uint64_t id) {
    const std::lock_guard guard(lock_);
    for (const auto& task : batches_.at(id)) {
      if (task != nullptr && !task->seen) return 1;
    }
    batches_.erase(id);
    return 0;
  }

 private:
  struct Region {
    size_t bytes;
    bool remote;
  };
  struct Task {
    explicit Task(const MooncakeRequest& asked) : request(asked) {}
    MooncakeRequest request;
    int state = tandem::modules::kWaiting;
    bool seen = false;
  };

  static int dial(uint16_t port) {
    const int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    if (port != 0 && ::connect(made, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
      send_at_once(made);
      return made;
    }
    close(made);
    return -1;
  }

  // False when the engine is ending: the socket is closed then.
  bool keep(int socket) {
    const std::lock_guard guard(lock_);
    if (stopping_) {
      close(socket);
      return false;
    }
    sockets_.push_back(socket);
    return true;
  }

  void accept_loop() {
    while (true) {
      const int peer = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (peer < 0 || !keep(peer)) return;
      send_at_once(peer);
      threads_.emplace_back([this, peer] { serve(peer); });
    }
  }

  void serve(int peer) {
    Question question{};
    while (read_fully(peer, &question, sizeof question)) {
      uint8_t allowed = 0;
      {
        const std::lock_guard guard(lock_);
        for (const auto& [begin, region] : regions_) {
          const uint64_t into = question.address - begin;
          allowed |= region.remote && question.address >= begin && into <= region.bytes &&
                     question.bytes <= region.bytes - into;
        }
      }
      if (!write_fully(peer, &allowed, 1)) return;
      // NOLINTNEXTLINE(performance-no-int-to-ptr): a peer names memory by its address
      const auto* from = reinterpret_cast<const char*>(question.address);
      if (allowed != 0 && !write_fully(peer, from, static_cast<size_t>(question.bytes))) return;
    }
    shutdown(peer, SHUT_RDWR);
  }

  void read_loop() {
    std::map<uint16_t, int> connections;
    while (true) {
      std::shared_ptr<Task> task;
      uint16_t port = 0;
      {
        std::unique_lock guard(lock_);
        changed_.wait(guard, [&] { return stopping_ || !queue_.empty(); });
        if (stopping_) return;
        task = queue_.front();
        queue_.pop_front();
        const auto segment = static_cast<size_t>(task->request.target_id);
        if (segment >= 1 && segment <= segments_.size()) port = segments_[segment - 1];
      }
      if (strikes("hang_every", requests_)) continue;
      if (const int ms = fault("slow_ms"); ms > 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(ms));
      const bool done =
          !strikes("fail_every", failures_) && fetch(task->request, port, connections);
      const std::lock_guard guard(lock_);
      task->state = done ? tandem::modules::kCompleted : tandem::modules::kFailed;
    }
  }

  bool fetch(const MooncakeRequest& request, uint16_t port, std::map<uint16_t, int>& connections) {
    if (!connections.contains(port)) {
      const int made = dial(port);
      if (made < 0 || !keep(made)) return false;
      connections[port] = made;
    }
    const int socket = connections[port];
    const Question question{request.target_offset, request.length};
    uint8_t allowed = 0;
    if (write_fully(socket, &question, sizeof question) && read_fully(socket, &allowed, 1) &&
        (allowed == 0 || read_fully(socket, request.source, static_cast<size_t>(request.length))))
      return allowed != 0;
    connections.erase(port);  // the next request dials again
    return false;
  }

  std::map<std::string, int> faults_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<int> submits_ = 0, requests_ = 0, failures_ = 0;
  std::mutex lock_;  // of what follows
  std::condition_variable changed_;
  bool stopping_ = false;
  std::map<uintptr_t, Region> regions_;
  std::vector<uint16_t> segments_;
  std::map<uint64_t, std::vector<std::shared_ptr<Task>>> batches_;
  uint64_t next_batch_ = 0;
  std::deque<std::shared_ptr<Task>> queue_;
  std::vector<int> sockets_;
  std::deque<std::thread> threads_;  // grown by the accepting thread, joined after it
};

StubEngine& stub(void* engine) { return *static_cast<StubEngine*>(engine); }

}  // namespace

#define STUB_EXPORT extern "C" __attribute__((visibility("default")))

// The names are the interface's. NOLINTBEGIN(readability-identifier-naming)
STUB_EXPORT void* createTransferEngine(const char* metadata, const char*, const char*, uint64_t,
                                       int) {
  if (std::strcmp(metadata, "P2PHANDSHAKE") != 0) return nullptr;
  return new StubEngine;
}
STUB_EXPORT void destroyTransferEngine(void* engine) { delete &stub(engine); }
STUB_EXPORT int getLocalIpAndPort(void* engine, char* into, size_t bytes) {
  std::snprintf(into, bytes, "127.0.0.1:%d", stub(engine).port());
  return 0;
}
STUB_EXPORT void* installTransport(void* engine, const char* protocol, void**) {
  return std::strcmp(protocol, "tcp") == 0 ? engine : nullptr;
}
STUB_EXPORT int32_t openSegment(void* engine, const char* name) {
  return stub(engine).open_segment(name);
}
STUB_EXPORT int32_t openSegmentNoCache(void* engine, const char* name) {
  return stub(engine).open_segment(name);
}
STUB_EXPORT int registerLocalMemory(void* engine, void* address, size_t bytes, const char*,
                                    int remote) {
  return stub(engine).add_region(address, bytes, remote != 0);
}
STUB_EXPORT int unregisterLocalMemory(void* engine, void* address) {
  return stub(engine).drop_region(address);
}
STUB_EXPORT uint64_t allocateBatchID(void* engine, size_t requests) {
  return stub(engine).allocate_batch(requests);
}
STUB_EXPORT int submitTransfer(void* engine, uint64_t batch, MooncakeRequest* requests,
                               size_t count) {
  return stub(engine).submit(batch, requests, count);
}
STUB_EXPORT int getTransferStatus(void* engine, uint64_t batch, size_t request,
                                  MooncakeStatus* status) {
  return stub(engine).status(batch, request, status);
}
STUB_EXPORT int freeBatchID(void* engine, uint64_t batch) { return stub(engine).free_batch(batch); }
// NOLINTEND(readability-identifier-naming)
