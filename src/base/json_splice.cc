#include "base/json_splice.h"

#include "base/json_value.h"

namespace tandem {
namespace {

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

size_t skip_space(std::string_view text, size_t at) {
  while (at < text.size() && is_space(text[at])) ++at;
  return at;
}

// One past the closing quote of the string that opens at `at`, or npos.
size_t skip_string(std::string_view text, size_t at) {
  for (++at; at < text.size(); ++at) {
    if (text[at] == '\\') {
      ++at;
    } else if (text[at] == '"') {
      return at + 1;
    }
  }
  return std::string_view::npos;
}

// One past the value at `at`, or npos. Iterative: nesting is a count, not a stack.
size_t skip_value(std::string_view text, size_t at) {
  size_t depth = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '"') {
      at = skip_string(text, at);
      if (at == std::string_view::npos) return at;
    } else if (c == '{' || c == '[') {
      ++depth;
      ++at;
      continue;
    } else if (c == '}' || c == ']') {
      if (depth == 0) return std::string_view::npos;
      --depth;
      ++at;
    } else if (c == ',' || c == ':' || is_space(c)) {
      ++at;
      continue;
    } else {
      while (at < text.size() && !is_space(text[at]) && text[at] != ',' && text[at] != '}' &&
             text[at] != ']')
        ++at;
    }
    if (depth == 0) return at;
  }
  return std::string_view::npos;
}

tl::unexpected<Error> not_an_object() {
  return make_error(400, "invalid_json", "The JSON body must be an object.");
}

}  // namespace

Result<std::vector<JsonMemberSpan>> json_top_level(std::string_view text) {
  std::vector<JsonMemberSpan> members;
  size_t at = skip_space(text, 0);
  if (at >= text.size() || text[at] != '{') return not_an_object();
  at = skip_space(text, at + 1);
  if (at < text.size() && text[at] == '}') return members;
  while (at < text.size()) {
    if (text[at] != '"') return not_an_object();
    JsonMemberSpan member;
    member.key_begin = at;
    const size_t key_end = skip_string(text, at);
    if (key_end == std::string_view::npos) return not_an_object();
    member.key = std::string(text.substr(at + 1, key_end - at - 2));
    if (member.key.find('\\') != std::string::npos) {
      if (auto parsed = parse_json(text.substr(at, key_end - at)); parsed && parsed->is_string()) {
        member.key = parsed->as_string();
      }
    }
    at = skip_space(text, key_end);
    if (at >= text.size() || text[at] != ':') return not_an_object();
    member.value_begin = skip_space(text, at + 1);
    member.value_end = skip_value(text, member.value_begin);
    if (member.value_end == std::string_view::npos) return not_an_object();
    at = skip_space(text, member.value_end);
    members.push_back(std::move(member));
    if (at < text.size() && text[at] == '}') return members;
    if (at >= text.size() || text[at] != ',') return not_an_object();
    at = skip_space(text, at + 1);
  }
  return not_an_object();
}

Result<std::string> json_insert_member(std::string_view text, std::string_view key,
                                       std::string_view value) {
  const size_t brace = skip_space(text, 0);
  if (brace >= text.size() || text[brace] != '{') return not_an_object();
  const size_t next = skip_space(text, brace + 1);
  const bool empty = next < text.size() && text[next] == '}';
  std::string out;
  out.reserve(text.size() + key.size() + value.size() + 8);
  out.append(text.substr(0, brace + 1));
  append_json_string(out, key);
  out += ':';
  out.append(value);
  if (!empty) out += ',';
  out.append(text.substr(brace + 1));
  return out;
}

Result<std::string> json_erase_member(std::string_view text, std::string_view key) {
  TANDEM_TRY(members, json_top_level(text));
  std::string out(text);
  for (size_t i = members.size(); i-- > 0;) {
    if (members[i].key != key) continue;
    // With the comma before it, or, for the first member, the comma after it.
    size_t begin = members[i].key_begin;
    size_t end = members[i].value_end;
    if (i > 0) {
      begin = members[i - 1].value_end;
    } else if (const size_t comma = out.find_first_not_of(" \n\r\t", end);
               comma != std::string::npos && out[comma] == ',') {
      end = comma + 1;
    }
    out.erase(begin, end - begin);
    TANDEM_TRY(rest, json_top_level(out));
    members = std::move(rest);
    i = std::min(i, members.size());
  }
  return out;
}

Result<std::string> json_replace_member(std::string_view text, std::string_view key,
                                        std::string_view value) {
  TANDEM_TRY(members, json_top_level(text));
  for (size_t i = members.size(); i-- > 0;) {
    if (members[i].key != key) continue;
    std::string out(text.substr(0, members[i].value_begin));
    out.append(value);
    out.append(text.substr(members[i].value_end));
    return out;
  }
  return json_insert_member(text, key, value);
}

}  // namespace tandem
