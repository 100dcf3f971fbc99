// A tokenizer.json of any bytes: refused, or usable; and what it makes survives the trip as JSON.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/json_value.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  const auto json = parse_json(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!json) return 0;
  auto spec = text::tokenizer_spec_of_tokenizer_json(*json);
  if (!spec) return 0;
  const auto again = text::tokenizer_spec_from_json(text::tokenizer_spec_to_json(*spec));
  const auto tokenizer = text::Tokenizer::create(std::move(*spec));
  if (!tokenizer) return 0;
  if (!again) std::abort();
  const auto tokens =
      (*tokenizer)->encode("a <b> 12 \xFF \u00e9 A\u0301\u0327 word", {.parse_special = true});
  (void)(*tokenizer)->decode(tokens, true);
  return 0;
}
