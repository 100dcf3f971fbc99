#include "text/marker_breaker.h"

#include <algorithm>
#include <array>
#include <utility>

#include "text/unicode.h"

namespace tandem::text {

namespace {

void lower_ascii(std::string& text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  }
}

void note_used(std::string_view text, bool (&used)[32]) {
  // U+FDD0..U+FDEF are EF B7 90 .. EF B7 AF.
  for (size_t i = text.find("\xEF\xB7"); i != std::string_view::npos;
       i = text.find("\xEF\xB7", i + 2)) {
    if (i + 2 >= text.size()) break;
    const auto third = static_cast<uint8_t>(text[i + 2]);
    if (third >= 0x90 && third <= 0xAF) used[third - 0x90] = true;
  }
}

void note_used(const JsonValue& value, bool (&used)[32]) {
  if (value.is_string()) note_used(std::string_view(value.as_string()), used);
  for (const JsonValue& item : value.items()) note_used(item, used);
  for (const auto& [key, item] : value.members()) {
    note_used(std::string_view(key), used);
    note_used(item, used);
  }
}

bool is_marker(std::string_view spelling, std::string_view template_source) {
  if (!is_marker_spelling(spelling)) return false;
  const bool framed = (spelling.starts_with("<|") && spelling.ends_with("|>")) ||
                      (spelling.starts_with("<\uFF5C") && spelling.ends_with("\uFF5C>"));
  return framed || template_source.find(spelling) != std::string_view::npos;
}

// Names that templates look up by themselves, and roles that they write between the brackets of a
// marker ("<|" + role + "|>"): whole, these stay as they are.
bool is_known_name(std::string_view text) {
  static constexpr std::array kNames = {"role",
                                        "content",
                                        "type",
                                        "text",
                                        "name",
                                        "function",
                                        "arguments",
                                        "parameters",
                                        "description",
                                        "properties",
                                        "required",
                                        "items",
                                        "enum",
                                        "default",
                                        "tool_calls",
                                        "tool_call_id",
                                        "id",
                                        "index",
                                        "reasoning",
                                        "reasoning_content",
                                        "thinking",
                                        "additionalProperties",
                                        "input_schema",
                                        "anyOf",
                                        "oneOf",
                                        "allOf",
                                        "$defs",
                                        "$ref",
                                        "return",
                                        "nullable",
                                        "format",
                                        "title",
                                        "strict",
                                        "refusal",
                                        "tools",
                                        "response",
                                        "result",
                                        "tool_name",
                                        "arguments_json"};
  return std::ranges::find(kNames, text) != kNames.end();
}

bool is_known_role(std::string_view text) {
  static constexpr std::array kRoles = {"system",    "user", "assistant",
                                        "developer", "tool", "function"};
  return std::ranges::find(kRoles, text) != kRoles.end();
}

bool is_number(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

MarkerBreaker::MarkerBreaker(const Tokenizer& tokenizer, std::string_view template_source) {
  for (const int32_t id : tokenizer.special_tokens()) {
    std::string spelling = tokenizer.spec().tokens[static_cast<size_t>(id)];
    if (!tokenizer.is_control(id) && !is_marker(spelling, template_source)) continue;
    lower_ascii(spelling);
    if (spelling.size() < 2) continue;
    first_[static_cast<uint8_t>(spelling.front())] = true;
    longest_ = std::max(longest_, spelling.size());
    whole_.add(spelling, id, {});
    // A single letter would put sentinels into ordinary words; what precedes it must be ours to
    // match.
    for (size_t size = 1; size + 1 < spelling.size(); ++size) {
      tails_.add(std::string_view(spelling).substr(size), id, {});
    }
    inner_.append(spelling, 1, spelling.size() - 2).push_back('\0');
    spellings_.push_back(std::move(spelling));
  }
}

bool MarkerBreaker::choose(const JsonValue& value) {
  bool used[32] = {};
  note_used(value, used);
  const auto* const free = std::find(std::begin(used), std::end(used), false);
  if (free == std::end(used)) return false;
  sentinel_.clear();
  append_utf8(sentinel_, 0xFDD0 + static_cast<uint32_t>(free - std::begin(used)));
  return true;
}

void MarkerBreaker::apply(JsonValue& variables) const {
  for (auto& [name, value] : variables.members()) apply_value(value);
}

void MarkerBreaker::apply_value(JsonValue& value) const {
  switch (value.kind()) {
    case JsonValue::Kind::kString: {
      std::string broken = value.as_string();
      if (apply_text(broken)) value = JsonValue::string(std::move(broken));
      break;
    }
    case JsonValue::Kind::kArray:
      for (JsonValue& item : value.items()) apply_value(item);
      break;
    case JsonValue::Kind::kObject:
      for (auto& [key, item] : value.members()) {
        const bool role = key == "role" && item.is_string() && is_known_role(item.as_string());
        if (!is_known_name(key)) apply_text(key);
        if (!role) apply_value(item);
      }
      break;
    default:
      break;
  }
}

// The template could write the begin and the end of a spelling around it ("<" + key + ">").
bool MarkerBreaker::lies_within(std::string_view text) const {
  return text.size() >= 2 && text.size() + 2 <= longest_ && !is_number(text) &&
         text.find('\0') == std::string_view::npos && inner_.find(text) != std::string::npos;
}

bool MarkerBreaker::apply_text(std::string& text) const {
  if (text.empty()) return false;
  std::string lowered = text;
  lower_ascii(lowered);
  const std::string_view view = lowered;
  std::vector<size_t> cuts;  // a sentinel goes before each of these
  if (lies_within(view) || tails_.match_at(view, 0, true).token >= 0) cuts.push_back(0);
  for (size_t i = 0; i < view.size(); ++i) {
    if (!first_[static_cast<uint8_t>(view[i])]) continue;
    const std::string_view rest = view.substr(i);
    const bool begins =
        rest.size() < longest_ &&
        std::ranges::any_of(
            spellings_, [&](auto& s) { return std::string_view(s).starts_with(rest); });
    const size_t end = whole_.match_at(view, i, true).end;
    if (!begins && end == 0) continue;
    // Behind a whole character, unless it is all of the marker.
    const size_t size = decode_utf8(view, i).size;
    cuts.push_back(end == i + size ? i + 1 : i + size);
  }
  if (cuts.empty()) return false;
  std::string broken;
  size_t from = 0;
  for (const size_t cut : cuts) {
    broken.append(text, from, cut - from).append(sentinel_);
    from = cut;
  }
  broken.append(text, from);
  text = std::move(broken);
  return true;
}

}  // namespace tandem::text
