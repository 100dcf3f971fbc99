/* tandem_transport_v1: the C interface of transport modules (UCX, Mooncake, yours), loaded at run
 * time.
 *
 * Every operation is a one-sided READ posted by the worker that receives KV, after its peer has
 * said (PUSH) that pages are final. So nobody ever writes into another process's memory: a peer
 * that was stopped, restarted or fenced can at worst read bytes that have changed meanwhile, and
 * the reader finds that out by reading the page's generation afterwards.
 *
 * A module exports `const tandem_transport_v1* tandem_transport(void)`. `abi_version` and
 * `struct_size` come first and never move; a module built against a shorter struct is refused with
 * a sentence. No C++ types cross, nothing throws, strings and arrays are not kept after a call.
 *
 * Threads: the functions of one engine, and of its peers, are called by one thread at a time, but
 * for wake. Nothing blocks but open, connect and wait, and those no longer than their deadline.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TANDEM_TRANSPORT_ABI_VERSION 1U

typedef struct tandem_transport_engine tandem_transport_engine;
typedef struct tandem_transport_peer tandem_transport_peer;

typedef enum tandem_transport_status {
  TANDEM_TRANSPORT_OK = 0,
  TANDEM_TRANSPORT_FULL = 1, /* bytes in flight are at the bound: post again after a completion */
  TANDEM_TRANSPORT_LOST = 2, /* the peer is gone; only disconnect helps */
  TANDEM_TRANSPORT_TIMEOUT = 3, /* a deadline passed; local memory may still be written until
                                   disconnect returns */
  TANDEM_TRANSPORT_INVALID = 4, /* an argument, or a range outside the exposed memory */
  TANDEM_TRANSPORT_FAILED = 5   /* anything else; `error` says what */
} tandem_transport_status;

/* What makes it sure that an operation on a peer has ended. */
typedef enum tandem_transport_fence {
  TANDEM_FENCE_LOCAL = 0,      /* the copy is made by the caller's own thread */
  TANDEM_FENCE_CONNECTION = 1, /* disconnect returns only when nothing is written any more */
  TANDEM_FENCE_NONE = 2        /* local pages of a batch that did not end must be quarantined */
} tandem_transport_fence;

typedef struct tandem_transport_error {
  char message[256]; /* ends in 0; empty when there is nothing to say */
} tandem_transport_error;

typedef struct tandem_transport_read {
  uint64_t offset; /* from the start of the peer's exposed memory */
  void* into;      /* inside memory that was registered here */
  uint64_t bytes;
} tandem_transport_read;

typedef struct tandem_transport_completion {
  uint64_t batch; /* the caller's number of it */
  int32_t status; /* tandem_transport_status; OK: every byte of the batch is there */
  int32_t reserved;
} tandem_transport_completion;

typedef struct tandem_transport_v1 {
  uint32_t abi_version; /* TANDEM_TRANSPORT_ABI_VERSION */
  uint32_t struct_size; /* sizeof(tandem_transport_v1) of the module's build */
  const char* name;     /* "ucx", "mooncake" */
  int32_t fence;        /* tandem_transport_fence */
  int32_t reserved;

  /* `settings` is "key=value" lines, known to the module ("bind_host", "max_bytes_in_flight", and
   * its own). */
  int32_t (*open)(const char* settings, tandem_transport_engine** engine,
                  tandem_transport_error* error);
  void (*close)(tandem_transport_engine* engine); /* all peers are disconnected before */

  /* Memory that peers may read. Writes at most *descriptor_bytes bytes of an opaque descriptor and
   * sets *descriptor_bytes to its size. Once per engine. */
  int32_t (*expose)(tandem_transport_engine* engine, const void* memory, uint64_t bytes,
                    void* descriptor, uint64_t* descriptor_bytes, tandem_transport_error* error);
  /* Memory that reads may go into. Kept until close. */
  int32_t (*register_local)(tandem_transport_engine* engine, void* memory, uint64_t bytes,
                            tandem_transport_error* error);

  int32_t (*connect)(tandem_transport_engine* engine, const void* descriptor,
                     uint64_t descriptor_bytes, uint32_t timeout_ms, tandem_transport_peer** peer,
                     tandem_transport_error* error);
  void (*disconnect)(
      tandem_transport_peer* peer); /* drops what is in flight, without completions */

  /* All or nothing. `batch` is the caller's; each posted batch completes exactly once. */
  int32_t (*post)(tandem_transport_peer* peer, const tandem_transport_read* reads, uint32_t count,
                  uint64_t batch, uint32_t timeout_ms, tandem_transport_error* error);
  /* Makes progress (also for peers that read from here) and returns how many completions of any
   * peer it wrote. */
  uint32_t (*poll)(tandem_transport_engine* engine, tandem_transport_completion* completions,
                   uint32_t capacity);
  /* Returns when poll may find something, after `wake`, or after `timeout_ms`. */
  void (*wait)(tandem_transport_engine* engine, uint32_t timeout_ms);
  /* From any thread: ends the wait that goes on, or else the next one. */
  void (*wake)(tandem_transport_engine* engine);
} tandem_transport_v1;

typedef const tandem_transport_v1* (*tandem_transport_entry)(void);
#define TANDEM_TRANSPORT_ENTRY "tandem_transport"

#ifdef __cplusplus
} /* extern "C" */
#endif
