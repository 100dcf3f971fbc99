#include "kv/transfer/local_transport.h"

#include <charconv>
#include <map>
#include <shared_mutex>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "device/shared_arena.h"
#include "kv/transfer/copy_pool.h"
#include "numerics/hmac.h"

namespace tandem::kv {
namespace {

class LocalRemote final : public Remote {
 public:
  LocalRemote(std::shared_ptr<CopyPool> pool, std::shared_ptr<CopySource> source)
      : pool_(std::move(pool)), peer_(std::make_shared<CopyPool::Peer>()) {
    peer_->source = std::move(source);
  }
  ~LocalRemote() override { pool_->close(peer_); }

  TransferStatus post(std::span<const Read> reads, Duration limit, Done done) override {
    return pool_->post(peer_, reads, limit, std::move(done));
  }
  void disconnect() override { pool_->close(peer_); }
  uint64_t bytes_in_flight() const override { return pool_->bytes_in_flight(*peer_); }

 private:
  std::shared_ptr<CopyPool> pool_;
  std::shared_ptr<CopyPool::Peer> peer_;
};

class LocalTransport : public Transport {
 public:
  explicit LocalTransport(const LocalTransportOptions& options)
      : pool_(std::make_shared<CopyPool>(options.threads, options.max_bytes_in_flight)) {}
  Fence fence() const override { return Fence::kLocal; }
  Status register_local(std::span<std::byte> /*memory*/) override { return {}; }

 protected:
  std::shared_ptr<Remote> remote(std::shared_ptr<CopySource> source) {
    return std::make_shared<LocalRemote>(pool_, std::move(source));
  }

 private:
  std::shared_ptr<CopyPool> pool_;
};

// Memory exposed within this process. Its owner's end waits for whoever is reading.
class ProcessMemory final : public CopySource {
 public:
  explicit ProcessMemory(std::span<const std::byte> memory) : memory_(memory) {}
  uint64_t bytes() const override { return memory_.size(); }
  const std::byte* pin() override {
    lock_.lock_shared();
    if (open_) return memory_.data();
    lock_.unlock_shared();
    return nullptr;
  }
  void unpin() override { lock_.unlock_shared(); }
  bool alive() override {
    const std::shared_lock guard(lock_);
    return open_;
  }
  void close() {
    const std::unique_lock guard(lock_);
    open_ = false;
  }

 private:
  const std::span<const std::byte> memory_;
  std::shared_mutex lock_;
  bool open_ = true;
};

// What this process has exposed, by descriptor.
struct ProcessRegistry {
  std::mutex lock;
  std::map<std::string, std::shared_ptr<ProcessMemory>> exposed;
};
ProcessRegistry& process_registry() {
  static ProcessRegistry registry;
  return registry;
}

class InProcessTransport final : public LocalTransport {
 public:
  using LocalTransport::LocalTransport;
  ~InProcessTransport() override {
    if (!memory_) return;
    memory_->close();
    auto& registry = process_registry();
    const std::lock_guard guard(registry.lock);
    registry.exposed.erase(id_);
  }
  std::string_view name() const override { return "process"; }
  bool within_process() const override { return true; }

  Result<Descriptor> expose(std::span<const std::byte> memory, int /*file*/) override {
    memory_ = std::make_shared<ProcessMemory>(memory);
    id_ = numerics::random_hex(32);
    auto& registry = process_registry();
    const std::lock_guard guard(registry.lock);
    registry.exposed[id_] = memory_;
    return Descriptor{id_};
  }

  void connect(Descriptor descriptor, const PeerKey& /*key*/, const std::string& /*host*/,
               Duration /*limit*/, Connected done) override {
    std::shared_ptr<ProcessMemory> memory;
    {
      auto& registry = process_registry();
      const std::lock_guard guard(registry.lock);
      if (const auto at = registry.exposed.find(descriptor.bytes); at != registry.exposed.end())
        memory = at->second;
    }
    if (!memory) {
      done(make_error(502, "transfer_lost", "The memory is not exposed in this process."));
      return;
    }
    done(remote(std::move(memory)));
  }

 private:
  std::shared_ptr<ProcessMemory> memory_;
  std::string id_;
};

class SegmentSource final : public CopySource {
 public:
  SegmentSource(std::unique_ptr<device::RemoteSegment> segment, uint64_t bytes)
      : segment_(std::move(segment)), bytes_(bytes) {}
  uint64_t bytes() const override { return bytes_; }
  const std::byte* pin() override { return segment_->bytes().data(); }
  void unpin() override {}
  bool alive() override { return segment_->owner_alive(); }

 private:
  std::unique_ptr<device::RemoteSegment> segment_;
  uint64_t bytes_;
};

class SharedMemoryTransport final : public LocalTransport {
 public:
  using LocalTransport::LocalTransport;
  std::string_view name() const override { return "shm"; }
  bool passes_file() const override { return true; }

  Result<Descriptor> expose(std::span<const std::byte> memory, int file) override {
    if (file < 0) return internal_error("The shared-memory transport needs the memory's file.");
    return Descriptor{std::to_string(memory.size()), file};
  }

  void connect(Descriptor descriptor, const PeerKey& /*key*/, const std::string& /*host*/,
               Duration /*limit*/, Connected done) override {
    const auto refuse = [&](const char* why) {
      if (descriptor.file >= 0) close(descriptor.file);
      done(make_error(502, "handoff_protocol", std::string("The peer's descriptor is ") + why));
    };
    uint64_t bytes = 0;
    const char* end = descriptor.bytes.data() + descriptor.bytes.size();
    const auto parsed = std::from_chars(descriptor.bytes.data(), end, bytes);
    if (parsed.ec != std::errc{} || parsed.ptr != end || bytes == 0)
      return refuse("not one of shared memory.");
    if (descriptor.file < 0) return refuse("without its memory: only a Unix socket passes that.");
    auto segment = device::RemoteSegment::map(descriptor.file);
    if (!segment) return done(tl::unexpected(segment.error()));
    if ((*segment)->bytes().size() < bytes)
      return done(
          make_error(502, "handoff_protocol", "The peer's memory is smaller than it says."));
    if (!(*segment)->owner_alive())
      return done(make_error(502, "transfer_lost", "The memory's owner is gone."));
    done(remote(std::make_shared<SegmentSource>(std::move(*segment), bytes)));
  }
};

}  // namespace

std::unique_ptr<Transport> make_in_process_transport(LocalTransportOptions options) {
  return std::make_unique<InProcessTransport>(options);
}

std::unique_ptr<Transport> make_shared_memory_transport(LocalTransportOptions options) {
  return std::make_unique<SharedMemoryTransport>(options);
}

}  // namespace tandem::kv
