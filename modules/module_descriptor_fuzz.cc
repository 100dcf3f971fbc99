// Descriptors of peers: nothing read past the end, what is accepted is whole and encodes to the
// same bytes again. The digest would keep a fuzzer out, so the input is also tried with a right
// one.
#include <cstdlib>

#include "module_support.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void decode(std::string_view text) {
  using namespace tandem::modules;
  for (const std::string_view kind : {"tandem-ucx-1\n", "tandem-mooncake-1\n"}) {
    for (const uint32_t parts : {0U, 1U, 3U, kMaxParts, kMaxParts + 1}) {
      const auto memory = decode_descriptor(kind, text, parts);
      if (!memory) continue;
      require(memory->parts.size() == parts && parts <= kMaxParts);
      require(memory->base + memory->bytes >= memory->base);
      require(encode_descriptor(kind, *memory) == text);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  decode(text);
  const size_t kind = text.find('\n');
  if (kind == std::string_view::npos) return 0;
  std::string right(text.substr(0, kind + 1));
  const std::string_view rest = text.substr(std::min(size, kind + 1 + sizeof(uint64_t)));
  tandem::modules::detail::append(right, tandem::modules::detail::digest(rest));
  decode(right.append(rest));
  return 0;
}
