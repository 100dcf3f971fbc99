// Any bytes through a byte-level vocabulary with some merges: what is decoded is what was encoded.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "base/json_value.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace {

std::shared_ptr<const tandem::text::Tokenizer> make_tokenizer() {
  tandem::text::TokenizerSpec spec;
  spec.kind = "bpe";
  spec.pre = "smollm";
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    std::string piece;
    tandem::text::append_utf8(piece, printable ? byte : next++);
    spec.tokens.push_back(piece);
  }
  for (const auto& [left, right] :
       {std::pair{"a", "a"}, {"aa", "aa"}, {"a", "b"}, {"\u0120", "a"}, {"\u010A", "\u010A"}}) {
    spec.tokens.push_back(std::string(left) + right);
    spec.merges.push_back(std::string(left) + " " + right);
  }
  spec.tokens.emplace_back("<|x|>");
  spec.types.assign(spec.tokens.size(), 1);
  spec.types.back() = 3;
  return *tandem::text::Tokenizer::create(std::move(spec));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto tokenizer = make_tokenizer();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const bool special : {false, true}) {
    std::string back;
    for (const int32_t token : tokenizer->encode(text, {.parse_special = special})) {
      back += tokenizer->token_bytes(token);
    }
    if (back != text) std::abort();
  }
  const auto tokens = tokenizer->encode(text);
  if (tokenizer->decode(tokens, true) != tandem::sanitize_utf8(text)) std::abort();
  return 0;
}
