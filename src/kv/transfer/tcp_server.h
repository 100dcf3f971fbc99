// The sender's half of the TCP transport: a listening socket, and a thread for each data stream
// that answers its requests from the exposed memory. Internal to tcp_transport.
#pragma once

#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "kv/transfer/data_socket.h"
#include "kv/transfer/tcp_wire.h"
#include "kv/transfer/transport.h"

namespace tandem::kv::tcp {

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: the system picks
  const TlsContext* tls = nullptr;
  size_t max_streams = 512;
  bool use_file = true;  // large ranges leave by sendfile, without a copy on this side
  std::shared_ptr<const SourceViews> views;  // null: none
};

class Server {
 public:
  // Error 500 "listen_failed".
  static Result<std::unique_ptr<Server>> start(const ServerOptions& options,
                                               std::span<const std::byte> memory, int file);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  Address address() const { return {port_, epoch_, memory_.size()}; }
  void admit(const PeerKey& key);
  void expel(const std::string& id);  // returns when its streams have let go of the memory

 private:
  struct Stream {
    explicit Stream(int file) : socket(file) {}
    DataSocket socket;
    std::vector<std::byte> turned;  // pieces as a view has them
    std::string peer;               // empty: not attached yet
    bool ended = false;
    std::thread thread;
  };
  Server(const ServerOptions& options, std::span<const std::byte> memory, int file);
  void accept_loop();
  void add_stream(int file);
  void reap();
  void serve(Stream& stream);
  bool attach(Stream& stream);
  bool answer_request(Stream& stream);
  Refusal refusal(const RequestHeader& header, const std::vector<Range>& ranges) const;
  bool send_view(Stream& stream, const std::string& head, const std::vector<Range>& ranges,
                 uint16_t view);
  bool send_ranges(DataSocket& socket, std::string held, const std::vector<Range>& ranges);
  void append(std::string& held, const Range& range) const;
  bool send_range(DataSocket& socket, const Range& range, bool last);

  const ServerOptions options_;
  const std::span<const std::byte> memory_;
  const int file_;
  uint64_t epoch_ = 0;
  uint16_t port_ = 0;
  int listening_ = -1;
  std::thread acceptor_;

  std::mutex lock_;
  std::condition_variable ended_;
  bool stopping_ = false;
  std::map<std::string, std::string> keys_;  // of admitted peers, by id
  std::list<std::unique_ptr<Stream>> streams_;
};

}  // namespace tandem::kv::tcp
