// The parsers of data streams: nothing read past the end, and what is accepted is within bounds.
#include <cstdlib>

#include "kv/transfer/tcp_wire.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void requests(std::string_view bytes) {
  using namespace tandem::kv::tcp;
  const auto header = decode_request_header(bytes.substr(0, kHeaderBytes));
  if (!header) return;
  const auto ranges =
      decode_ranges(*header, bytes.substr(kHeaderBytes, size_t{header->count} * kRangeBytes));
  if (!ranges) return;
  uint64_t total = 0;
  constexpr uint64_t kExposed = uint64_t{1} << 30;
  const bool good = inside(*ranges, kExposed);
  for (const Range& range : *ranges) {
    total += range.bytes;
    if (good) require(range.offset < kExposed && range.offset + range.bytes <= kExposed);
  }
  require(total == header->bytes && total <= kMaxRequestBytes && ranges->size() <= kMaxRanges);
  constexpr tandem::kv::SourceViews::Shape kView{512, 256};
  if (!inside(*ranges, kExposed, kView)) return;
  for (const Range& range : *ranges) {
    require(range.bytes == kView.bytes && range.offset <= kExposed - kView.source_bytes &&
            range.offset % tandem::kv::SourceViews::kAlignment == 0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem::kv::tcp;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  requests(bytes);
  (void)decode_address(bytes);
  (void)decode_challenge(bytes);
  (void)decode_welcome(bytes);
  if (const auto attach = decode_attach(bytes)) {
    require(encode_attach(*attach) == bytes);
  }
  if (const auto response = decode_response_header(bytes.substr(0, kHeaderBytes)))
    require(response->bytes <= kMaxRequestBytes);
  return 0;
}
