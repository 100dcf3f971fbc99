#include "kv/transfer/module_transport.h"

#include <algorithm>
#include <array>
#include <utility>

#include <dlfcn.h>

#include "kv/transfer/module_thread.h"

namespace tandem::kv {
namespace {

tl::unexpected<Error> refuse(const std::string& where, const std::string& why) {
  return make_error(500, "transport_module",
                    "The transport module " + where + " cannot be used: " + why + ".");
}

Error failed(std::string_view name, int32_t status, const tandem_transport_error& error) {
  return Error{status == TANDEM_TRANSPORT_TIMEOUT ? 504 : 502,
               status == TANDEM_TRANSPORT_TIMEOUT ? "transfer_timeout" : "transfer_failed",
               "The transport " + std::string(name) + " failed: " + module_message(error) + "."};
}

class ModuleRemote final : public Remote {
 public:
  ModuleRemote(std::shared_ptr<ModuleThread> thread, std::shared_ptr<ModuleThread::Peer> peer)
      : thread_(std::move(thread)), peer_(std::move(peer)) {}
  ~ModuleRemote() override { thread_->release(peer_); }
  TransferStatus post(std::span<const Read> reads, Duration limit, Done done) override {
    return thread_->post(peer_, reads, limit, std::move(done));
  }
  void disconnect() override { thread_->disconnect(peer_); }
  uint64_t bytes_in_flight() const override { return thread_->bytes_in_flight(*peer_); }

 private:
  std::shared_ptr<ModuleThread> thread_;
  std::shared_ptr<ModuleThread::Peer> peer_;
};

class ModuleTransport final : public Transport {
 public:
  ModuleTransport(const tandem_transport_v1& module, tandem_transport_engine* engine,
                  const ModuleOptions& options)
      : name_(module.name),
        thread_(ModuleThread::start(module, engine, options.max_bytes_in_flight)) {}

  std::string_view name() const override { return name_; }
  Fence fence() const override {
    switch (thread_->module().fence) {
      case TANDEM_FENCE_LOCAL:  // the adapter gives up late batches that the module still has
      case TANDEM_FENCE_CONNECTION:
        return Fence::kConnection;
      default:
        return Fence::kNone;
    }
  }

  Result<Descriptor> expose(std::span<const std::byte> memory, int /*file*/) override {
    Descriptor descriptor;
    descriptor.bytes.resize(kMaxDescriptorBytes);
    uint64_t size = descriptor.bytes.size();
    tandem_transport_error error{};
    int32_t status = TANDEM_TRANSPORT_FAILED;
    thread_->call([&](tandem_transport_engine* engine) {
      status = thread_->module().expose(engine, memory.data(), memory.size(),
                                        descriptor.bytes.data(), &size, &error);
    });
    if (status != TANDEM_TRANSPORT_OK) return tl::unexpected(failed(name_, status, error));
    descriptor.bytes.resize(std::min<uint64_t>(size, kMaxDescriptorBytes));
    return descriptor;
  }

  Status register_local(std::span<std::byte> memory) override {
    tandem_transport_error error{};
    int32_t status = TANDEM_TRANSPORT_FAILED;
    thread_->call([&](tandem_transport_engine* engine) {
      status = thread_->module().register_local(engine, memory.data(), memory.size_bytes(), &error);
    });
    if (status != TANDEM_TRANSPORT_OK) return tl::unexpected(failed(name_, status, error));
    return {};
  }

  void connect(Descriptor descriptor, const PeerKey& /*key*/, const std::string& /*host*/,
               Duration limit, Connected done) override {
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
    thread_->enqueue([thread = thread_, name = name_, descriptor = std::move(descriptor),
                      ms = static_cast<uint32_t>(std::clamp<int64_t>(ms, 1, UINT32_MAX)),
                      done = std::move(done)](tandem_transport_engine* engine) {
      tandem_transport_peer* peer = nullptr;
      tandem_transport_error error{};
      const int32_t status = thread->module().connect(engine, descriptor.bytes.data(),
                                                      descriptor.bytes.size(), ms, &peer, &error);
      if (status != TANDEM_TRANSPORT_OK || peer == nullptr)
        return done(tl::unexpected(failed(name, status, error)));
      done(std::make_shared<ModuleRemote>(thread, thread->adopt(peer)));
    });
  }

  void finish_connecting() override {
    thread_->call([](auto*) {});
  }

 private:
  std::string name_;
  std::shared_ptr<ModuleThread> thread_;
};

bool is_complete(const tandem_transport_v1& m) {
  return m.name != nullptr && m.open && m.close && m.expose && m.register_local && m.connect &&
         m.disconnect && m.post && m.poll && m.wait && m.wake;
}

}  // namespace

Result<std::unique_ptr<Transport>> adapt_transport_module(const tandem_transport_v1* module,
                                                          const std::string& where,
                                                          const ModuleOptions& options) {
  if (module == nullptr) return refuse(where, "it gives no interface");
  if (module->abi_version != TANDEM_TRANSPORT_ABI_VERSION) {
    return refuse(where, "it speaks version " + std::to_string(module->abi_version) +
                             " of the interface, this program speaks " +
                             std::to_string(TANDEM_TRANSPORT_ABI_VERSION));
  }
  if (module->struct_size < sizeof(tandem_transport_v1)) {
    return refuse(where, "its interface has " + std::to_string(module->struct_size) +
                             " bytes, this program needs " +
                             std::to_string(sizeof(tandem_transport_v1)) + "; build it again");
  }
  if (!is_complete(*module)) return refuse(where, "its interface has gaps");
  tandem_transport_engine* engine = nullptr;
  tandem_transport_error error{};
  if (module->open(options.settings.c_str(), &engine, &error) != TANDEM_TRANSPORT_OK ||
      engine == nullptr) {
    return refuse(where, "it does not start: " + module_message(error));
  }
  return std::make_unique<ModuleTransport>(*module, engine, options);
}

Result<std::unique_ptr<Transport>> load_transport_module(const std::string& path,
                                                         const ModuleOptions& options) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return refuse(path, dlerror());
  auto entry = reinterpret_cast<tandem_transport_entry>(dlsym(library, TANDEM_TRANSPORT_ENTRY));
  if (entry == nullptr) {
    dlclose(library);
    return refuse(path, std::string("it does not export ") + TANDEM_TRANSPORT_ENTRY);
  }
  return adapt_transport_module(entry(), path, options);
}

}  // namespace tandem::kv
