// The C functions of Mooncake's Transfer Engine that the module uses, as its shared library exports
// them: names, argument types and meanings are that interface's (seen on version 0.3.13 and on the
// sources of August 2026). Nothing of it is linked: dlsym finds them in a user's library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tandem::modules {

inline constexpr int kOpcodeRead = 0;

// One transfer; the layout is the C interface's.
struct MooncakeRequest {
  int opcode;
  void* source;  // local address
  int32_t target_id;
  uint64_t target_offset;  // for memory: the address in the peer's process
  uint64_t length;
};
struct MooncakeStatus {
  int status;
  uint64_t transferred_bytes;
};
enum MooncakeState : int {
  kWaiting = 0,
  kPending = 1,
  kInvalid = 2,
  kCanceled = 3,
  kCompleted = 4,
  kTimeout = 5,
  kFailed = 6,
};
inline constexpr uint64_t kNoBatch = UINT64_MAX;

struct MooncakeFunctions {
  void* (*create)(const char* metadata, const char* local_name, const char* host, uint64_t port,
                  int auto_discover);
  void (*destroy)(void* engine);
  int (*local_address)(void* engine, char* into, size_t bytes);
  void* (*install_transport)(void* engine, const char* protocol, void** arguments);
  int32_t (*open_segment)(void* engine, const char* name);
  int32_t (*open_segment_fresh)(void* engine, const char* name);  // asks the peer again
  int (*register_memory)(void* engine, void* address, size_t bytes, const char* location,
                         int remote_accessible);
  int (*unregister_memory)(void* engine, void* address);
  uint64_t (*allocate_batch)(void* engine, size_t requests);
  int (*submit)(void* engine, uint64_t batch, MooncakeRequest* requests, size_t count);
  int (*status)(void* engine, uint64_t batch, size_t request, MooncakeStatus* status);
  int (*free_batch)(void* engine, uint64_t batch);  // refused while a request is not finished

  // Loads the library and finds every function; empty, or what is wrong.
  std::string load(const std::string& path);
};

}  // namespace tandem::modules
