// A SentencePiece model of any bytes: refused, or usable.
#include <cstdint>
#include <string_view>

#include "text/sentencepiece_model.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  auto spec = text::tokenizer_spec_of_sentencepiece(
      std::string_view(reinterpret_cast<const char*>(data), size));
  if (!spec) return 0;
  const auto tokenizer = text::Tokenizer::create(std::move(*spec));
  if (!tokenizer) return 0;
  const auto tokens = (*tokenizer)->encode(" a <b>  12 \xFF \u00e9", {.parse_special = true});
  (void)(*tokenizer)->decode(tokens, true);
  return 0;
}
