// Python's string operations on UTF-8, shared by methods and filters. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::text::jinja {

enum class Side { kBoth, kLeft, kRight };
// `characters`: which to strip; nothing: white space.
std::string_view strip(std::string_view text, std::optional<std::string_view> characters,
                       Side side);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string title(std::string_view text);
std::string capitalize(std::string_view text);

// A place in a text; begin is npos when there is none.
struct Place {
  size_t begin = std::string_view::npos;
  size_t end = 0;
};
std::string without(std::string_view text, std::string_view sentinel);  // empty sentinel: as it is
// First place at or behind `from` (`last`: last place) that spells `what`, sentinels between its
// characters passed over.
Place find_place(std::string_view text, std::string_view what, std::string_view sentinel,
                 size_t from = 0, bool last = false);

// At most `count` replacements when not negative. An empty `from` matches between characters.
// Whether a word would run from one text into the other; then a sentinel keeps apart what a
// template joins.
bool grow_together(std::string_view left, std::string_view right);
// Where a replacement by nothing joins two parts, `sentinel` keeps them apart.
std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    int64_t count, std::string_view sentinel = {});

// str.split(): on runs of white space, or on `separator` (not empty).
std::vector<std::string_view> split(std::string_view text,
                                    std::optional<std::string_view> separator, int64_t limit,
                                    bool from_right, std::string_view sentinel = {});
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);

// True when the text is not empty and `predicate` holds for every character.
bool all_characters(std::string_view text, bool (*predicate)(uint32_t));

}  // namespace tandem::text::jinja
