// Any bytes through byte-level vocabularies with every scanner and a regular expression, and
// through a vocabulary of characters with byte fallback: what is decoded is what was encoded.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_value.h"
#include "text/detokenizer.h"
#include "text/tiktoken_file.h"
#include "text/tokenizer.h"

namespace {

using namespace tandem;
using TokenizerPtr = std::shared_ptr<const text::Tokenizer>;

TokenizerPtr make(text::TokenizerSpec spec) {
  spec.tokens.emplace_back("<|x|>");
  spec.types.push_back(3);
  auto made = text::Tokenizer::create(std::move(spec));
  if (!made) std::abort();
  return *made;
}

TokenizerPtr byte_level(const char* pre) {
  text::TokenizerSpec spec;
  spec.kind = "bpe";
  spec.pre = pre;
  for (int byte = 0; byte < 256; ++byte) {
    spec.tokens.push_back(text::printable_bytes(std::string(1, static_cast<char>(byte))));
  }
  for (const auto& [left, right] :
       {std::pair{"a", "a"}, {"aa", "aa"}, {"a", "b"}, {"\u0120", "a"}, {"\u010A", "\u010A"}}) {
    spec.tokens.push_back(std::string(left) + right);
    spec.merges.push_back(std::string(left) + " " + right);
  }
  spec.types.assign(spec.tokens.size(), 1);
  return make(std::move(spec));
}

TokenizerPtr with_regex() {
  text::TokenizerSpec spec = byte_level("gpt-2")->spec();
  spec.tokens.pop_back();
  spec.types.pop_back();
  spec.pre_tokenizer = *parse_json(
      R"({"type":"Split","pattern":{"Regex":"\\p{Lu}?\\p{Ll}+|\\d{1,2}|\\s+(?!\\S)|[^\\w\\s]+"},)"
      R"("behavior":"MergedWithPrevious"})");
  return make(std::move(spec));
}

TokenizerPtr characters(const char* kind) {
  text::TokenizerSpec spec;
  spec.kind = kind;
  for (int byte = 0; byte < 256; ++byte) {
    char spelling[8];
    std::snprintf(spelling, sizeof spelling, "<0x%02X>", static_cast<unsigned>(byte));
    spec.tokens.emplace_back(spelling);
    spec.types.push_back(6);
    spec.scores.push_back(0);
  }
  for (const char* piece : {"a", "b", "aa", "ab", "\u00e9", "\u00e9a", "\u6f22\u5b57", "  "}) {
    spec.tokens.emplace_back(piece);
    spec.types.push_back(1);
    spec.scores.push_back(-static_cast<double>(spec.scores.size()));
  }
  spec.scores.push_back(0);  // of make()'s token
  return make(std::move(spec));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<TokenizerPtr> tokenizers = [] {
    std::vector<TokenizerPtr> made;
    for (const char* pre : {"gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "gpt-4o", "tekken",
                            "kimi-k2", "deepseek-v3", "deepseek-coder", "falcon"}) {
      made.push_back(byte_level(pre));
    }
    made.push_back(with_regex());
    made.push_back(characters("spm"));
    made.push_back(characters("unigram"));
    return made;
  }();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const TokenizerPtr& tokenizer : tokenizers) {
    for (const bool special : {false, true}) {
      std::string back;
      for (const int32_t token : tokenizer->encode(text, {.parse_special = special})) {
        back += tokenizer->token_bytes(token);
      }
      if (back != text) std::abort();
    }
    const auto tokens = tokenizer->encode(text);
    const std::string whole = tokenizer->decode(tokens, true);
    if (whole != sanitize_utf8(text)) std::abort();
    text::Detokenizer stream(tokenizer, {.keep_special = true});
    std::string streamed;
    for (const int32_t token : tokens) streamed += stream.push(token);
    if (streamed + stream.finish() != whole) std::abort();
  }
  return 0;
}
