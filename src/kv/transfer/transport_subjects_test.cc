#include <cstdlib>

#include "kv/transfer/fault_transport.h"
#include "kv/transfer/local_transport.h"
#include "kv/transfer/memory_module.h"
#include "kv/transfer/module_transport.h"
#include "kv/transfer/tcp_transport.h"
#include "kv/transfer/test_certificate.h"
#include "kv/transfer/transport_subject.h"

namespace tandem::kv {
namespace {

using Made = Result<std::unique_ptr<Transport>>;

std::vector<TransportSubject> make_subjects() {
  std::vector<TransportSubject> all;
  const auto add = [&](TransportSubject subject) {
    if (!subject.make_receiver) subject.make_receiver = subject.make;
    all.push_back(std::move(subject));
  };
  add({.name = "process",
       .make = [](uint64_t bound) -> Made {
         return make_in_process_transport({.threads = 2, .max_bytes_in_flight = bound});
       },
       .make_receiver = {},
       .other_process = false,
       .needs_owner = false});
  add({.name = "shm",
       .make = [](uint64_t bound) -> Made {
         return make_shared_memory_transport({.threads = 1, .max_bytes_in_flight = bound});
       },
       .make_receiver = {},
       .needs_owner = false});
  add({.name = "memory_module",
       .make =
           [](uint64_t bound) {
             return adapt_transport_module(memory_module(), "memory",
                                           {.settings = "", .max_bytes_in_flight = bound});
           },
       .make_receiver = {},
       .other_process = false});
  for (const int streams : {1, 4}) {
    add({.name = "tcp" + std::to_string(streams),
         .make = [streams](uint64_t bound) -> Made {
           return make_tcp_transport({.streams = streams, .max_bytes_in_flight = bound});
         },
         .make_receiver = {}});
  }
  add({.name = "tls",
       .make = [](uint64_t bound) -> Made {
         const TlsContext* tls = test_tls();
         if (tls == nullptr) return internal_error("no certificate could be made");
         return make_tcp_transport({.streams = 2, .max_bytes_in_flight = bound, .tls = tls});
       },
       .make_receiver = {}});
  // What a transport promises holds for a bad line too.
  const auto troubled = [](auto make) {
    return [make](uint64_t bound) -> Made {
      return with_faults(make(bound),
                         {.seed = 9,
                          .delay = 0.3,
                          .duplicate = 0.3,
                          .reorder = 0.5,
                          .longest_delay = std::chrono::milliseconds(4)},
                         bound);
    };
  };
  const auto shm = [](uint64_t bound) {
    return make_shared_memory_transport({.threads = 1, .max_bytes_in_flight = bound});
  };
  const auto tcp = [](uint64_t bound) {
    return make_tcp_transport({.streams = 2, .max_bytes_in_flight = bound});
  };
  add({.name = "troubled_shm",
       .make = [shm](uint64_t bound) -> Made { return shm(bound); },
       .make_receiver = troubled(shm),
       .needs_owner = false});
  add({.name = "troubled_tcp",
       .make = [tcp](uint64_t bound) -> Made { return tcp(bound); },
       .make_receiver = troubled(tcp)});
  // A module under test: TANDEM_TRANSPORT_MODULE=path, settings in
  // TANDEM_TRANSPORT_MODULE_SETTINGS; "passive" in TANDEM_TRANSPORT_MODULE_KIND when it reads
  // without its peer's help.
  if (const char* path = std::getenv("TANDEM_TRANSPORT_MODULE"); path != nullptr) {
    const char* settings = std::getenv("TANDEM_TRANSPORT_MODULE_SETTINGS");
    const char* kind = std::getenv("TANDEM_TRANSPORT_MODULE_KIND");
    add({.name = "module",
         .make =
             [path, settings](uint64_t bound) {
               return load_transport_module(path, {.settings = settings != nullptr ? settings : "",
                                                   .max_bytes_in_flight = bound});
             },
         .make_receiver = {},
         .needs_owner = kind == nullptr || std::string(kind) != "passive"});
  }
  return all;
}

}  // namespace

std::vector<TransportSubject> transport_subjects() { return make_subjects(); }

const TransportSubject* find_subject(const std::string& name) {
  static const std::vector<TransportSubject> all = make_subjects();
  for (const auto& subject : all) {
    if (subject.name == name) return &subject;
  }
  return nullptr;
}

}  // namespace tandem::kv
