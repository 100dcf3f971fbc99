// The UCX transport module: one UCP worker per engine, one endpoint per peer, ucp_get for reads.
//
// Reads are cut into pieces; a window of pieces is in flight, so that a large batch neither floods
// the peer nor holds up the others, and so that copies which UCX makes inside the call (CMA) give
// the thread back now and then. Endpoints are made with peer error handling: a peer's death fails
// its endpoint, and closing by force ends what is in flight. The fence is the connection:
// disconnect() returns after UCX has let go of every piece, and where UCX does not within
// kCloseLimit the process ends, since exit is the only fence left.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include <ucp/api/ucp.h>

#include "module_support.h"

namespace tandem::modules {

inline constexpr uint64_t kPieceBytes = uint64_t{1} << 20;
inline constexpr uint64_t kWindowBytes = uint64_t{32} << 20;
inline constexpr uint32_t kWindowPieces = 256;
inline constexpr uint64_t kBytesPerPoll = uint64_t{8} << 20;
inline constexpr std::chrono::seconds kCloseLimit{10};

}  // namespace tandem::modules

struct tandem_transport_peer;

// A posted batch, until it has completed and none of its pieces is in flight.
struct UcxBatch {
  tandem_transport_peer* peer = nullptr;
  uint64_t id = 0;
  std::vector<tandem_transport_read> reads;
  size_t next_read = 0;
  uint64_t next_offset = 0;  // within it
  uint64_t bytes = 0;
  uint32_t in_flight = 0;
  bool completed = false;
  tandem::modules::Clock::time_point deadline;

  bool issued() const { return next_read == reads.size(); }
};

struct tandem_transport_peer {
  tandem_transport_engine* engine = nullptr;
  ucp_ep_h endpoint = nullptr;
  ucp_rkey_h memory_key = nullptr;
  ucp_rkey_h token_key = nullptr;
  tandem::modules::ExposedMemory memory;
  bool lost = false;
  uint32_t in_flight = 0;          // pieces
  std::deque<UcxBatch*> to_issue;  // not all of their pieces are posted
  std::unordered_set<UcxBatch*> batches;
};

struct tandem_transport_engine {
  // Owned and called by one thread at a time; `waker` by any.
  ucp_context_h context = nullptr;
  ucp_worker_h worker = nullptr;
  int event_file = -1;
  tandem::modules::Waker waker;
  tandem::modules::Token token;
  ucp_mem_h token_memory = nullptr;
  ucp_mem_h exposed_memory = nullptr;
  tandem::modules::LocalMemory<ucp_mem_h> local;
  uint64_t max_bytes_in_flight = uint64_t{256} << 20;
  uint64_t bytes_in_flight = 0;  // of batches that have not completed
  uint64_t window_bytes = 0;     // of pieces in flight
  uint32_t window_pieces = 0;
  std::vector<tandem_transport_peer*> peers;
  size_t next_peer = 0;  // takes turns
  std::deque<tandem_transport_completion> completions;
  tandem::modules::Clock::time_point next_deadline = tandem::modules::Clock::time_point::max();

  ~tandem_transport_engine();
  // Empty, or what is wrong.
  std::string start(const char* settings);
  int32_t expose(const void* memory, uint64_t bytes, void* descriptor, uint64_t* descriptor_bytes,
                 tandem_transport_error* error);
  int32_t register_local(void* memory, uint64_t bytes, tandem_transport_error* error);
  int32_t connect(const void* descriptor, uint64_t descriptor_bytes, uint32_t timeout_ms,
                  tandem_transport_peer** peer, tandem_transport_error* error);
  void disconnect(tandem_transport_peer* peer);
  int32_t post(tandem_transport_peer* peer, const tandem_transport_read* reads, uint32_t count,
               uint64_t batch, uint32_t timeout_ms, tandem_transport_error* error);
  uint32_t poll(tandem_transport_completion* out, uint32_t capacity);
  void wait(uint32_t timeout_ms);
  void wake() const { waker.wake(); }

  void complete(UcxBatch* batch, int32_t status);
  void piece_ended(UcxBatch* batch, uint64_t bytes, ucs_status_t status);

 private:
  std::string make_worker(ucp_config_t* config);
  ucs_status_t map(const void* memory, uint64_t bytes, unsigned protection, ucp_mem_h* out) const;
  std::string pack_key(ucp_mem_h memory) const;
  int32_t open_endpoint(tandem_transport_peer& peer, tandem_transport_error* error);
  int32_t check_token(tandem_transport_peer& peer, uint32_t timeout_ms,
                      tandem_transport_error* error);
  void close_endpoint(tandem_transport_peer& peer);
  void sleep(int timeout_ms);  // until UCX has something to progress, wake, or the time
  void issue();
  bool issue_piece(tandem_transport_peer& peer, uint64_t& budget);
  void fail_lost_peers();
  void expire();
  bool can_issue() const;
};
