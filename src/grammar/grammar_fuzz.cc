// A grammar of any kind (the first byte says which) of any bytes: refused with a 400, or compiled;
// then a text is written with it, where masks and accept() must agree and taking back must lead to
// the same place.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "grammar/grammar.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  using namespace tandem::grammar;
  if (size < 1) return 0;
  static const auto vocabulary = [] {
    VocabularyTable table;
    for (int byte = 0; byte < 256; ++byte) table.bytes.emplace_back(1, static_cast<char>(byte));
    table.bytes.resize(258);
    for (const char* text : {"{\"", "\": ", "\"}", "ab", "aab", "12", "\\n", "\xC3\xA9"})
      table.bytes.emplace_back(text);
    table.special = {{"<|a|>", 256}};
    table.end_of_generation = {257};
    return std::make_shared<const Vocabulary>(std::move(table));
  }();
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const protocol::GrammarSpec spec{.kind = static_cast<protocol::GrammarKind>((data[0] >> 1) % 6),
                                   .text = std::string(text),
                                   .strict = (data[0] & 1) != 0};
  CompileLimits limits;
  limits.text = 1 << 14;
  limits.size = 50'000;
  limits.time = std::chrono::milliseconds(500);
  limits.machine = {.work = 20'000, .memory = size_t{16} << 20};
  const auto grammar = compile(spec, vocabulary, limits);
  if (!grammar) {
    if (grammar.error().status != 400 || grammar.error().message.empty()) std::abort();
    return 0;
  }
  Matcher matcher(*grammar);
  TokenMask mask;
  for (size_t step = 0; step < 24 && !matcher.finished(); ++step) {
    if (!matcher.mask(mask)) return 0;
    const size_t start = data[step % size] * size_t{31} + step;
    int32_t chosen = -1;
    for (size_t i = 0; i < mask.tokens() && chosen < 0; ++i) {
      const auto token = static_cast<int32_t>((start + i) % mask.tokens());
      if (mask.has(token)) chosen = token;
    }
    Matcher copy = matcher;
    if (!matcher.accept(chosen)) return 0;  // only past a limit
    if (copy.accepting() != mask.has(257)) std::abort();
    const std::string forced = copy.forced(8);
    if (!forced.empty() && !vocabulary->bytes(chosen).empty() &&
        vocabulary->bytes(chosen).front() != forced.front())
      std::abort();
    matcher.rollback(1);
    if (matcher.point().config != copy.point().config) std::abort();
    if (!matcher.accept(chosen)) std::abort();
  }
  return 0;
}
