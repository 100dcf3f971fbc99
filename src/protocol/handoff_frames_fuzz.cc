#include <cstdint>

#include "numerics/digest.h"
#include "protocol/handoff_frames.h"

// The digest is computed here, so that the fuzzer reaches the fields instead of stopping at a
// checksum.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem::protocol;
  if (size < 1) return 0;
  const std::string_view payload(reinterpret_cast<const char*>(data) + 1, size - 1);
  FrameHeader header{kHandoffVersion, static_cast<uint16_t>(data[0] % 14),
                     static_cast<uint32_t>(payload.size()),
                     tandem::numerics::xxh3(std::as_bytes(std::span(payload)))};
  if (auto frame = decode_frame_payload(header, payload)) {
    const std::string again = encode_frame(*frame);
    if (!decode_frame_payload(
            *decode_frame_header(std::string_view(again).substr(0, kFrameHeaderBytes)),
            std::string_view(again).substr(kFrameHeaderBytes))) {
      __builtin_trap();
    }
  }
  (void)decode_frame_header(payload.substr(0, kFrameHeaderBytes));
  return 0;
}
