// The receiver's half of the TCP transport: some data streams to one peer, with a thread each.
// Internal to tcp_transport.
//
// A batch is cut into chunks (of one view, whose pieces stay whole); each stream takes the next
// chunk when it has room for one more request, so a slow stream gets less. A stream keeps two
// requests on their way. A batch completes when all of its chunks have ended, each on the stream
// that read it: by its bytes, by the deadline (what still arrives is then thrown away) or by the
// stream's end. So no memory of a completed batch is written into: the fence is local.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kv/transfer/data_socket.h"
#include "kv/transfer/host_lookup.h"
#include "kv/transfer/tcp_wire.h"
#include "kv/transfer/transport.h"

namespace tandem::kv::tcp {

struct RemoteOptions {
  int streams = 4;
  uint64_t chunk_bytes = uint64_t{1} << 20;
  uint64_t max_bytes_in_flight = uint64_t{256} << 20;
  const TlsContext* tls = nullptr;
  HostResolver resolver = {};
};

// Blocks until all streams are attached. Errors: 502 "transfer_lost", "transfer_refused"; 504
// "transfer_timeout".
Result<std::shared_ptr<Remote>> connect_remote(const Address& address, const std::string& host,
                                               const PeerKey& key, const RemoteOptions& options,
                                               TimePoint until);

class TcpRemote final : public Remote {
 public:
  TcpRemote(uint64_t exposed, const RemoteOptions& options,
            std::vector<std::unique_ptr<DataSocket>> sockets);
  ~TcpRemote() override { disconnect(); }
  TransferStatus post(std::span<const Read> reads, Duration limit, Done done) override;
  void disconnect() override;
  uint64_t bytes_in_flight() const override;

 private:
  struct Batch {  // guarded by lock_
    uint64_t bytes = 0;
    TimePoint deadline;
    Done done;
    size_t chunks_left = 0;
    TransferStatus status = TransferStatus::kOk;
  };
  struct Chunk {
    std::shared_ptr<Batch> batch;
    std::vector<Read> reads;
    uint64_t bytes = 0;
  };
  void cut(std::span<const Read> reads, const std::shared_ptr<Batch>& batch,
           std::vector<Chunk>& chunks) const;
  void run(DataSocket& socket);
  bool take(std::deque<Chunk>& outstanding, Chunk& next);
  bool send_request(DataSocket& socket, const Chunk& chunk);
  bool receive(DataSocket& socket, std::deque<Chunk>& outstanding);
  bool receive_bytes(DataSocket& socket, std::deque<Chunk>& outstanding);
  bool discard(DataSocket& socket, std::deque<Chunk>& outstanding, uint64_t bytes);
  bool is_late(const Chunk& chunk) const;
  void expire(std::deque<Chunk>& outstanding);
  void finish(Chunk& chunk, TransferStatus status);
  void lose();

  const uint64_t exposed_;
  const RemoteOptions options_;
  std::vector<std::unique_ptr<DataSocket>> sockets_;
  std::vector<std::thread> threads_;
  std::mutex joining_;
  std::atomic<bool> lost_ = false;

  mutable std::mutex lock_;
  std::condition_variable work_;
  std::deque<Chunk> waiting_;
  uint64_t bytes_in_flight_ = 0;
};

}  // namespace tandem::kv::tcp
