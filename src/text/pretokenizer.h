// Pre-tokenizers: hand-made scanners that cut text into the pieces byte-level BPE merges within.
// Each is one linear pass: no recursion, no backtracking over more than one character (hundreds of
// thousands of equal characters, cost the same per byte as any other text).
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace tandem::text {

enum class PreTokenizer {
  kGpt2,    // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  kSmollm,  // every \p{N} character alone, then kGpt2 within what lies between
};

// By the name a GGUF gives in tokenizer.ggml.pre ("default" and "gpt-2" mean kGpt2).
std::optional<PreTokenizer> find_pre_tokenizer(std::string_view name);

// End of the piece that starts at `position` (< text.size()); always greater than `position`.
size_t next_piece(PreTokenizer kind, std::string_view text, size_t position);

}  // namespace tandem::text
