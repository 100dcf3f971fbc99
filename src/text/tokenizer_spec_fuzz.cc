// A tokenizer description of any bytes: refused, or usable.
#include <cstdint>
#include <string_view>

#include "base/json_value.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  const auto json = parse_json(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!json) return 0;
  auto spec = text::tokenizer_spec_from_json(*json);
  if (!spec) return 0;
  const auto tokenizer = text::Tokenizer::create(std::move(*spec));
  if (!tokenizer) return 0;
  const auto tokens =
      (*tokenizer)->encode("a <b> 12 \xFF é", {.parse_special = true, .add_bos = true});
  (void)(*tokenizer)->decode(tokens, true);
  return 0;
}
