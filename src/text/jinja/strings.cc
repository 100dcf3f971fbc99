#include "text/jinja/strings.h"

#include <algorithm>

#include "text/unicode.h"

namespace tandem::text::jinja {

namespace {

// Size of the last character of a non-empty text.
size_t last_size(std::string_view text) {
  size_t size = 1;
  while (size < std::min<size_t>(text.size(), 4) &&
         (static_cast<uint8_t>(text[text.size() - size]) & 0xC0) == 0x80) {
    ++size;
  }
  return size;
}

template <typename Map>
std::string map_characters(std::string_view text, const Map& map) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Decoded decoded = decode_utf8(text, i);
    if (decoded.code_point == kInvalidCodePoint) {
      out.append(text.substr(i, 1));
    } else {
      append_utf8(out, map(decoded.code_point));
    }
    i += decoded.size;
  }
  return out;
}

bool is_letter(uint32_t c) { return (char_class(c) & kLetter) != 0; }

}  // namespace

std::string_view strip(std::string_view text, std::optional<std::string_view> characters,
                       Side side) {
  const auto drop = [&](std::string_view character) {
    if (characters) return characters->find(character) != std::string_view::npos;
    return is_python_space(decode_utf8(character, 0).code_point);
  };
  if (side != Side::kRight) {
    while (!text.empty()) {
      const size_t size = decode_utf8(text, 0).size;
      if (!drop(text.substr(0, size))) break;
      text.remove_prefix(size);
    }
  }
  if (side != Side::kLeft) {
    while (!text.empty()) {
      const size_t size = last_size(text);
      if (!drop(text.substr(text.size() - size))) break;
      text.remove_suffix(size);
    }
  }
  return text;
}

std::string without(std::string_view text, std::string_view sentinel) {
  if (sentinel.empty()) return std::string(text);
  std::string out;
  for (size_t from = 0; from < text.size();) {
    const size_t at = std::min(text.find(sentinel, from), text.size());
    out.append(text.substr(from, at - from));
    from = at + sentinel.size();
  }
  return out;
}

namespace {

// Where `what` (not empty), spelled at `begin`, ends; npos when it is not.
size_t spelled_to(std::string_view text, std::string_view what, std::string_view sentinel,
                  size_t begin) {
  size_t at = begin;
  for (size_t i = 0; i < what.size(); ++i) {
    while (i > 0 && text.substr(at).starts_with(sentinel)) at += sentinel.size();
    if (at >= text.size() || text[at] != what[i]) return std::string_view::npos;
    ++at;
  }
  return at;
}

}  // namespace

Place find_place(std::string_view text, std::string_view what, std::string_view sentinel,
                 size_t from, bool last) {
  std::string plain;
  const bool broken = !sentinel.empty() && text.find(sentinel) != std::string_view::npos;
  if (!sentinel.empty() && what.find(sentinel) != std::string_view::npos) {
    plain = without(what, sentinel);
    what = plain;
  }
  if (!broken || what.empty()) {
    const size_t at = last ? text.rfind(what) : text.find(what, from);
    return at == std::string_view::npos ? Place{} : Place{.begin = at, .end = at + what.size()};
  }
  size_t at = last ? text.rfind(what[0]) : text.find(what[0], from);
  while (at != std::string_view::npos) {
    const size_t end = spelled_to(text, what, sentinel, at);
    if (end != std::string_view::npos) return {.begin = at, .end = end};
    if (last && at == 0) break;
    at = last ? text.rfind(what[0], at - 1) : text.find(what[0], at + 1);
  }
  return {};
}

std::string upper(std::string_view text) {
  // The common letters whose upper case is longer; utf8proc maps one character to one.
  static constexpr std::pair<std::string_view, std::string_view> kLonger[] = {
      {"ß", "SS"}, {"ﬀ", "FF"}, {"ﬁ", "FI"}, {"ﬂ", "FL"}, {"ﬃ", "FFI"}, {"ﬄ", "FFL"}};
  std::string expanded(text);
  for (const auto& [from, to] : kLonger) {
    if (expanded.find(from) != std::string::npos) expanded = replace(expanded, from, to, -1);
  }
  return map_characters(expanded, to_upper);
}
std::string lower(std::string_view text) { return map_characters(text, to_lower); }

std::string title(std::string_view text) {
  bool inside = false;
  return map_characters(text, [&](uint32_t c) {
    const bool letter = is_letter(c);
    const uint32_t mapped = !letter ? c : inside ? to_lower(c) : to_upper(c);
    inside = letter;
    return mapped;
  });
}

std::string capitalize(std::string_view text) {
  bool first = true;
  return map_characters(text, [&](uint32_t c) {
    const uint32_t mapped = first ? to_upper(c) : to_lower(c);
    first = false;
    return mapped;
  });
}

bool grow_together(std::string_view left, std::string_view right) {
  return !left.empty() && !right.empty() && static_cast<uint8_t>(left.back()) > ' ' &&
         static_cast<uint8_t>(right.front()) > ' ';
}

std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    int64_t count, std::string_view sentinel) {
  std::string out;
  size_t at = 0;
  if (from.empty()) {
    for (; at <= text.size() && count != 0; --count) {
      out.append(to);
      if (at == text.size()) return out;
      const size_t size = decode_utf8(text, at).size;
      out.append(text.substr(at, size));
      at += size;
    }
    return out.append(text.substr(std::min(at, text.size())));
  }
  for (; count != 0; --count) {
    const Place found = find_place(text, from, sentinel, at);
    if (found.begin == std::string_view::npos) break;
    out.append(text.substr(at, found.begin - at)).append(to);
    at = found.end;
    if (to.empty() && grow_together(out, text.substr(at))) out.append(sentinel);
  }
  return out.append(text.substr(at));
}

namespace {

std::vector<std::string_view> split_spaces(std::string_view text, int64_t limit, bool from_right) {
  std::vector<std::string_view> parts;
  const Side near = from_right ? Side::kRight : Side::kLeft;
  text = strip(text, std::nullopt, near);
  while (!text.empty() && limit-- != 0) {
    size_t size = 0;  // of the word at the near end
    while (size < text.size()) {
      const std::string_view rest =
          from_right ? text.substr(0, text.size() - size) : text.substr(size);
      const size_t step = from_right ? last_size(rest) : decode_utf8(rest, 0).size;
      const std::string_view character =
          from_right ? rest.substr(rest.size() - step) : rest.substr(0, step);
      if (is_python_space(decode_utf8(character, 0).code_point)) break;
      size += step;
    }
    parts.push_back(from_right ? text.substr(text.size() - size) : text.substr(0, size));
    text = from_right ? text.substr(0, text.size() - size) : text.substr(size);
    text = strip(text, std::nullopt, near);
  }
  if (!text.empty()) parts.push_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace

std::vector<std::string_view> split(std::string_view text,
                                    std::optional<std::string_view> separator, int64_t limit,
                                    bool from_right, std::string_view sentinel) {
  if (!separator) return split_spaces(text, limit, from_right);
  std::vector<std::string_view> parts;
  while (limit-- != 0) {
    const Place at = find_place(text, *separator, sentinel, 0, from_right);
    if (at.begin == std::string_view::npos) break;
    parts.push_back(from_right ? text.substr(at.end) : text.substr(0, at.begin));
    text = from_right ? text.substr(0, at.begin) : text.substr(at.end);
  }
  parts.push_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const Decoded decoded = decode_utf8(text, i);
    const uint32_t c = decoded.code_point;
    const size_t end = i;
    i += decoded.size;
    const bool breaks = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                        c == 0x2028 || c == 0x2029;
    if (!breaks) continue;
    if (c == '\r' && i < text.size() && text[i] == '\n') ++i;
    lines.push_back(text.substr(begin, (keep_ends ? i : end) - begin));
    begin = i;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

bool all_characters(std::string_view text, bool (*predicate)(uint32_t)) {
  if (text.empty()) return false;
  for (size_t i = 0; i < text.size();) {
    const Decoded decoded = decode_utf8(text, i);
    if (!predicate(decoded.code_point)) return false;
    i += decoded.size;
  }
  return true;
}

}  // namespace tandem::text::jinja
