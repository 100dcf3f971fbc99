// Any bytes: reads without leaving them, and what was read is written and read again as the same.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "protocol/kv_events.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem::protocol;
  const std::string payload(reinterpret_cast<const char*>(data), size);
  const auto batch = decode_kv_events(payload);
  if (!batch) return 0;
  for (const bool maps : {false, true}) {
    const EventForm form{EventDialect::kVllm, maps};
    const std::string written = encode_kv_events(*batch, form);
    const auto again = decode_kv_events(written);
    if (!again || again->events.size() != batch->events.size() || again->rank != batch->rank)
      std::abort();
    if (encode_kv_events(*again, form) != written) std::abort();
  }
  return 0;
}
