#include <cstdlib>

#include "kv/transfer/local_transport.h"
#include "kv/transfer/memory_module.h"
#include "kv/transfer/module_transport.h"
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
