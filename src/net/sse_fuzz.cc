#include <cstdint>
#include <cstdlib>
#include <vector>

#include "net/sse.h"

namespace {

struct Outcome {
  std::vector<std::string> data;
  std::string raw;
  bool operator==(const Outcome&) const = default;
};

Outcome cut(std::string_view bytes, size_t piece) {
  tandem::net::SseFramer framer;
  Outcome outcome;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    if (!framer.feed(bytes.substr(at, piece))) std::abort();
    while (auto frame = framer.next()) {
      outcome.raw += frame->raw;
      if (frame->has_data) outcome.data.push_back(frame->data);
    }
  }
  outcome.raw += framer.take_rest();
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  const Outcome whole = cut(bytes, bytes.size());
  if (whole.raw != bytes || !(cut(bytes, static_cast<size_t>(data[0]) + 1) == whole)) std::abort();
  return 0;
}
