// Streams of any bytes in any pieces: counts stay in their bounds, whatever is claimed.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "loadgen/client/answer_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tandem::loadgen::AnswerReader;
  if (size == 0) return 0;
  const size_t piece = 1 + data[0];
  std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  AnswerReader reader(true);
  double now = 0;
  int64_t told = 0;
  while (!bytes.empty()) {
    const std::string_view some = bytes.substr(0, piece);
    bytes.remove_prefix(some.size());
    const bool wanted = reader.feed(some, now += 0.25);
    told += reader.take_new_pieces();
    if (!wanted) break;
  }
  tandem::loadgen::RequestRecord record;
  reader.finish(record);
  if (record.pieces != told || record.output_tokens < 0 || record.input_tokens < 0 ||
      record.cached_tokens < 0)
    std::abort();
  if (record.pieces > 0 && record.last < record.first) std::abort();
  if (record.pieces > 0 && reader.gaps().size() != static_cast<size_t>(record.pieces - 1))
    std::abort();
  return 0;
}
