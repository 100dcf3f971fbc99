#include "kv/transfer/tcp_transport.h"

#include <atomic>
#include <list>
#include <mutex>
#include <thread>
#include <utility>

#include "kv/transfer/tcp_remote.h"
#include "kv/transfer/tcp_server.h"

namespace tandem::kv {
namespace {

class TcpTransport final : public Transport {
 public:
  explicit TcpTransport(TcpTransportOptions options) : options_(std::move(options)) {}
  ~TcpTransport() override { TcpTransport::finish_connecting(); }

  std::string_view name() const override { return options_.tls != nullptr ? "tls" : "tcp"; }
  Fence fence() const override { return Fence::kLocal; }
  Status register_local(std::span<std::byte> /*memory*/) override { return {}; }
  bool serve_views(const std::shared_ptr<const SourceViews>& views) override {
    views_ = views;
    return true;
  }
  bool serves_views() const override { return views_ != nullptr; }

  Result<Descriptor> expose(std::span<const std::byte> memory, int file) override {
    TANDEM_TRY(server, tcp::Server::start({.host = options_.host,
                                           .port = options_.port,
                                           .tls = options_.tls,
                                           .use_file = options_.use_file,
                                           .views = views_},
                                          memory, file));
    server_ = std::move(server);
    return Descriptor{tcp::encode_address(server_->address())};
  }
  void admit(const PeerKey& key) override {
    if (server_) server_->admit(key);
  }
  void expel(const std::string& id) override {
    if (server_) server_->expel(id);
  }

  void connect(Descriptor descriptor, const PeerKey& key, const std::string& host, Duration limit,
               Connected done) override {
    const auto address = tcp::decode_address(descriptor.bytes);
    if (!address) {
      done(make_error(502, "handoff_protocol", "The peer's descriptor is not one of TCP."));
      return;
    }
    const tcp::RemoteOptions options{.streams = options_.streams,
                                     .max_bytes_in_flight = options_.max_bytes_in_flight,
                                     .tls = options_.tls,
                                     .resolver = options_.resolver};
    const TimePoint until = std::chrono::steady_clock::now() + limit;
    const std::lock_guard guard(lock_);
    for (auto at = dials_.begin(); at != dials_.end();) {
      const auto next = std::next(at);
      if (at->ended) {
        at->thread.join();
        dials_.erase(at);
      }
      at = next;
    }
    Dial& dial = dials_.emplace_back();
    dial.thread = std::thread(
        [&dial, address = *address, key, host, options, until, done = std::move(done)]() mutable {
          done(tcp::connect_remote(address, host, key, options, until));
          done = nullptr;
          dial.ended = true;
        });
  }

  void finish_connecting() override {
    std::list<Dial> dials;
    {
      const std::lock_guard guard(lock_);
      dials.swap(dials_);
    }
    for (auto& dial : dials) dial.thread.join();
  }

 private:
  struct Dial {
    std::thread thread;
    std::atomic<bool> ended = false;
  };
  const TcpTransportOptions options_;
  std::shared_ptr<const SourceViews> views_;
  std::unique_ptr<tcp::Server> server_;
  std::mutex lock_;  // of dials_
  std::list<Dial> dials_;
};

}  // namespace

std::unique_ptr<Transport> make_tcp_transport(TcpTransportOptions options) {
  return std::make_unique<TcpTransport>(std::move(options));
}

}  // namespace tandem::kv
