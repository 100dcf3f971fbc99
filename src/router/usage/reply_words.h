// Whether a reply holds a member with a value, without parsing it. May say yes for a member of the
// same name deeper inside; never no for one that is there (as workers spell names: without
// escapes).
#pragma once

#include <cstddef>
#include <cstring>
#include <string_view>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace tandem::router {

// Where `word` (two bytes and more) stands in `text` at or behind `from`; npos: nowhere. Frames are
// short and the words are few: the C library's search takes longer to begin.
inline size_t find_word(std::string_view text, std::string_view word, size_t from = 0) {
#if defined(__SSE2__)
  if (from > text.size() || text.size() - from < word.size()) return std::string_view::npos;
  const __m128i first = _mm_set1_epi8(word[0]);
  const __m128i second = _mm_set1_epi8(word[1]);
  const char* const base = text.data();
  const size_t last = text.size() - word.size();  // where it may begin
  const auto begins = [&](size_t place) {
    const auto at = [&](size_t byte) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(base + byte));
    };
    return _mm_and_si128(_mm_cmpeq_epi8(at(place), first), _mm_cmpeq_epi8(at(place + 1), second));
  };
  const auto whole = [&](size_t at) {
    for (auto found = static_cast<unsigned>(_mm_movemask_epi8(begins(at))); found != 0;
         found &= found - 1) {
      const size_t place = at + static_cast<size_t>(__builtin_ctz(found));
      if (place >= from && place <= last &&
          std::memcmp(base + place, word.data(), word.size()) == 0)
        return place;
    }
    return std::string_view::npos;
  };
  while (from <= last && from + 17 <= text.size()) {
    if (from + 65 <= text.size()) {  // where nothing is, 64 bytes at once
      const __m128i any = _mm_or_si128(_mm_or_si128(begins(from), begins(from + 16)),
                                       _mm_or_si128(begins(from + 32), begins(from + 48)));
      if (_mm_movemask_epi8(any) == 0) {
        from += 64;
        continue;
      }
    }
    if (const size_t place = whole(from); place != std::string_view::npos) return place;
    from += 16;
  }
  if (from > last) return std::string_view::npos;
  if (text.size() >= 17) return whole(text.size() - 17);  // it begins before `from`
#endif
  return text.find(word, from);
}

// `quoted` is the name with its quotes. Null does not count. Inside a string the quotes would be
// escaped, so text never matches.
inline bool holds_member(std::string_view json, std::string_view quoted) {
  size_t from = 0;
  const auto skip_space = [&](size_t at) {
    while (at < json.size() &&
           (json[at] == ' ' || json[at] == '\n' || json[at] == '\r' || json[at] == '\t'))
      ++at;
    return at;
  };
  while (from < json.size()) {
    const size_t found = find_word(json, quoted, from);
    if (found == std::string_view::npos) return false;
    from = found + quoted.size();
    const size_t colon = skip_space(from);
    if (colon >= json.size() || json[colon] != ':') continue;
    const size_t value = skip_space(colon + 1);
    if (value < json.size() && json[value] != 'n') return true;
  }
  return false;
}

}  // namespace tandem::router
