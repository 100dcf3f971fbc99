#include "mooncake_functions.h"

#include <dlfcn.h>

namespace tandem::modules {

std::string MooncakeFunctions::load(const std::string& path) {
  if (path.empty())
    return "it needs the setting library, the path of a libtransfer_engine.so of Mooncake";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays: its threads may outlive us
  if (library == nullptr) return std::string("its library cannot be loaded: ") + dlerror();
  std::string missing;
  const auto find = [&]<typename Function>(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr && missing.empty()) missing = name;
  };
  find(create, "createTransferEngine");
  find(destroy, "destroyTransferEngine");
  find(local_address, "getLocalIpAndPort");
  find(install_transport, "installTransport");
  find(open_segment, "openSegment");
  find(open_segment_fresh, "openSegmentNoCache");
  find(register_memory, "registerLocalMemory");
  find(unregister_memory, "unregisterLocalMemory");
  find(allocate_batch, "allocateBatchID");
  find(submit, "submitTransfer");
  find(status, "getTransferStatus");
  find(free_batch, "freeBatchID");
  return missing.empty() ? "" : path + " does not export " + missing;
}

}  // namespace tandem::modules
