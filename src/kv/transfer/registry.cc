#include "kv/transfer/registry.h"

#include <utility>

#include "kv/transfer/local_transport.h"
#include "kv/transfer/module_transport.h"
#include "kv/transfer/tcp_transport.h"

namespace tandem::kv {
namespace {

using Made = Result<std::unique_ptr<Transport>>;

struct Context {
  const TransportOptions& options;
  const PeerAddress* listen;
  const TlsContext* tls;

  bool listens_on(PeerAddress::Kind kind) const {
    return listen != nullptr && listen->kind == kind;
  }
  LocalTransportOptions local() const {
    return {options.copy_threads, options.max_bytes_in_flight};
  }
  TcpTransportOptions tcp(const TlsContext* with) const {
    TcpTransportOptions out;
    if (listen != nullptr && !listen->host.empty()) out.host = listen->host;
    out.streams = options.streams;
    out.max_bytes_in_flight = options.max_bytes_in_flight;
    out.tls = with;
    return out;
  }
};

// One row for each transport, the most preferred first. `make` gives null when this worker cannot
// have it; `exposes` says whether those who dial `listen` may read through it.
struct Row {
  Made (*make)(const Context&);
  bool (*exposes)(const Context&);
};

constexpr Row kTransports[] = {
    {[](const Context& c) -> Made { return make_in_process_transport(c.local()); },
     [](const Context& c) { return c.listen != nullptr; }},
    {[](const Context& c) -> Made { return make_shared_memory_transport(c.local()); },
     [](const Context& c) { return c.listens_on(PeerAddress::Kind::kUnix); }},
    {[](const Context& c) -> Made {
       if (c.options.module.empty()) return nullptr;
       return load_transport_module(c.options.module,
                                    {c.options.module_settings, c.options.max_bytes_in_flight});
     },
     [](const Context& c) { return c.listen != nullptr; }},
    {[](const Context& c) -> Made {
       if (c.tls == nullptr) return nullptr;
       return make_tcp_transport(c.tcp(c.tls));
     },
     [](const Context& c) { return c.listens_on(PeerAddress::Kind::kTls); }},
    {[](const Context& c) -> Made { return make_tcp_transport(c.tcp(nullptr)); },
     [](const Context& c) {
       return c.listens_on(PeerAddress::Kind::kTcp) ||
              (c.listens_on(PeerAddress::Kind::kUnix) && c.options.choice == "tcp");
     }},
};

bool is_chosen(const std::string& choice, std::string_view name) {
  return choice == "auto" || choice == name || (choice == "tcp" && name == "tls");
}

}  // namespace

Result<TransportSet> make_transports(const TransportOptions& options, const PeerAddress* listen,
                                     const TlsContext* tls, const device::SharedArena& arena) {
  const Context context{options, listen, tls};
  TransportSet set;
  for (const Row& row : kTransports) {
    auto made = row.make(context);
    if (!made) return tl::unexpected(made.error());
    if (*made == nullptr || !is_chosen(options.choice, (*made)->name())) continue;
    if (options.faults.any())
      *made = with_faults(std::move(*made), options.faults, options.max_bytes_in_flight);
    OfferedTransport offered{made->get(), std::nullopt};
    if (row.exposes(context)) {
      if (options.views) (*made)->serve_views(options.views);
      TANDEM_TRY(exposed, (*made)->expose(arena.segment(), arena.read_only_descriptor()));
      offered.exposed = std::move(exposed);
    }
    TANDEM_CHECK((*made)->register_local(arena.segment()));
    set.offered.push_back(std::move(offered));
    set.owned.push_back(std::move(*made));
  }
  if (set.offered.empty()) {
    return make_error(500, "transport_unknown",
                      "There is no KV transport \"" + options.choice +
                          "\" here; a module is loaded with --kv-transport-module.");
  }
  return set;
}

}  // namespace tandem::kv
