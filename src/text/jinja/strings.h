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

// At most `count` replacements when not negative. An empty `from` matches between characters.
std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    int64_t count);

// str.split(): on runs of white space, or on `separator` (not empty).
std::vector<std::string_view> split(std::string_view text,
                                    std::optional<std::string_view> separator, int64_t limit,
                                    bool from_right);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);

// True when the text is not empty and `predicate` holds for every character.
bool all_characters(std::string_view text, bool (*predicate)(uint32_t));

}  // namespace tandem::text::jinja
