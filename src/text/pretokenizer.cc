#include "text/pretokenizer.h"

#include <cstdint>

#include "text/unicode.h"

namespace tandem::text {

namespace {

// Character classes of ASCII, so that common text never decodes UTF-8.
struct AsciiClasses {
  uint8_t of[128];
  constexpr AsciiClasses() : of() {
    for (int c = 0; c < 128; ++c) {
      const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
      const bool space = c == ' ' || (c >= 9 && c <= 13);
      of[c] = letter ? kLetter : (c >= '0' && c <= '9') ? kNumber : space ? kSpace : kOther;
    }
  }
};
constexpr AsciiClasses kAscii;

struct Classified {
  uint8_t cls;
  uint32_t size;
};

Classified classify(std::string_view text, size_t position) {
  const auto byte = static_cast<uint8_t>(text[position]);
  if (byte < 0x80) return {kAscii.of[byte], 1};
  const Decoded decoded = decode_utf8(text, position);
  return {char_class(decoded.code_point), decoded.size};
}

// End of the run of `cls` that starts at `position`.
size_t run_end(std::string_view text, size_t position, uint8_t cls) {
  while (position < text.size()) {
    const Classified next = classify(text, position);
    if (next.cls != cls) break;
    position += next.size;
  }
  return position;
}

// Length of a contraction ('s 't 're 've 'm 'll 'd) at `position`, or 0.
size_t contraction(std::string_view text, size_t position) {
  const std::string_view rest = text.substr(position + 1, 2);
  if (rest.empty()) return 0;
  switch (rest[0]) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return rest.size() == 2 && rest[1] == 'e' ? 3 : 0;
    case 'l':
      return rest.size() == 2 && rest[1] == 'l' ? 3 : 0;
    default:
      return 0;
  }
}

// `digits_alone`: a number character is a border, as if the text ended before it.
size_t next_gpt2(std::string_view text, size_t position, bool digits_alone) {
  if (text[position] == '\'') {
    if (const size_t length = contraction(text, position)) return position + length;
  }
  const Classified first = classify(text, position);
  size_t start = position;
  uint8_t cls = first.cls;
  if (text[position] == ' ' && position + 1 < text.size()) {
    const Classified second = classify(text, position + 1);
    const bool joins = second.cls != kSpace && !(digits_alone && second.cls == kNumber);
    if (joins) {
      start = position + 1;
      cls = second.cls;
    }
  }
  if (cls == kNumber && digits_alone) return position + first.size;
  if (cls != kSpace) return run_end(text, start, cls);

  // White space: all of it before a border, else all but its last character, which joins what
  // follows.
  size_t last = position;
  size_t end = position;
  bool border = true;
  while (end < text.size()) {
    const Classified next = classify(text, end);
    if (next.cls != kSpace) {
      border = digits_alone && next.cls == kNumber;
      break;
    }
    last = end;
    end += next.size;
  }
  return border || last == position ? end : last;
}

}  // namespace

std::optional<PreTokenizer> find_pre_tokenizer(std::string_view name) {
  if (name == "smollm") return PreTokenizer::kSmollm;
  if (name == "gpt-2" || name == "gpt2" || name == "default" || name.empty()) {
    return PreTokenizer::kGpt2;
  }
  return std::nullopt;
}

size_t next_piece(PreTokenizer kind, std::string_view text, size_t position) {
  return next_gpt2(text, position, kind == PreTokenizer::kSmollm);
}

}  // namespace tandem::text
