// ModuleThread: the one thread that calls a transport module. Internal to module_transport.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "kv/transfer/transport.h"
#include "kv/transfer/transport_abi.h"

namespace tandem::kv {

// Strings of a module end in 0 or at the array's end.
std::string module_message(const tandem_transport_error& error);

class ModuleThread {
 public:
  struct Peer;
  // Its end disconnects every peer and closes the engine; on the thread itself it happens later.
  static std::shared_ptr<ModuleThread> start(const tandem_transport_v1& module,
                                             tandem_transport_engine* engine,
                                             uint64_t max_bytes_in_flight);
  ModuleThread(const ModuleThread&) = delete;
  ModuleThread& operator=(const ModuleThread&) = delete;

  // Runs `command` on the thread, with the engine; call() waits for its end.
  void enqueue(std::function<void(tandem_transport_engine*)> command);
  void call(std::function<void(tandem_transport_engine*)> command);

  // On the thread.
  std::shared_ptr<Peer> adopt(tandem_transport_peer* peer);
  // Any thread.
  TransferStatus post(const std::shared_ptr<Peer>& peer, std::span<const Read> reads,
                      Duration limit, Remote::Done done);
  void disconnect(const std::shared_ptr<Peer>& peer);
  // For the last handle: waits only when something may still be written for it.
  void release(const std::shared_ptr<Peer>& peer);
  uint64_t bytes_in_flight(const Peer& peer);
  const tandem_transport_v1& module() const { return module_; }

 private:
  struct Batch {
    std::shared_ptr<Peer> peer;
    std::vector<tandem_transport_read> reads;
    uint64_t bytes = 0;
    TimePoint deadline;
    Remote::Done done;
  };
  ModuleThread(const tandem_transport_v1& module, tandem_transport_engine* engine,
               uint64_t max_bytes_in_flight)
      : module_(module), engine_(engine), max_bytes_in_flight_(max_bytes_in_flight) {}
  ~ModuleThread() = default;
  void end();  // of the last handle
  void run();
  void submit(Batch batch);
  bool try_submit(uint64_t id);
  void retry_waiting();
  size_t poll();
  void expire(TimePoint now);
  void finish(uint64_t id, TransferStatus status);
  void drop(const std::shared_ptr<Peer>& peer);

  const tandem_transport_v1& module_;
  tandem_transport_engine* engine_;
  const uint64_t max_bytes_in_flight_;
  // The thread's own.
  uint64_t next_batch_ = 1;
  std::unordered_map<uint64_t, Batch> batches_;
  std::deque<uint64_t> waiting_;  // the module was full
  std::vector<std::shared_ptr<Peer>> peers_;
  TimePoint next_expiry_check_{};

  std::mutex lock_;  // of what follows, and of the peers' counts
  std::deque<std::function<void(tandem_transport_engine*)>> commands_;
  bool stopping_ = false;
  bool orphan_ = false;  // deleted by its own thread
  std::thread thread_;
};

struct ModuleThread::Peer {
  tandem_transport_peer* peer = nullptr;  // the thread's; null once disconnected
  bool closed = false;                    // guarded by the thread's lock, as the rest
  bool posted = false;                    // anything, ever
  bool dropped = false;                   // the module has disconnected it
  uint64_t bytes_in_flight = 0;
};

}  // namespace tandem::kv
