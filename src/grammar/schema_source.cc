#include "grammar/schema_source.h"

#include <algorithm>
#include <vector>

#include "base/json_pointer.h"

namespace tandem::grammar {
namespace {

struct Uri {
  std::string scheme;     // with its colon
  std::string authority;  // with its slashes
  std::string path;
  std::string query;
};

Uri split(std::string_view text) {
  Uri out;
  const size_t colon = text.find(':');
  const size_t slash = text.find_first_of("/?#");
  if (colon != std::string_view::npos && (slash == std::string_view::npos || colon < slash)) {
    out.scheme = text.substr(0, colon + 1);
    text.remove_prefix(colon + 1);
  }
  if (text.starts_with("//")) {
    const size_t end = std::min(text.find_first_of("/?#", 2), text.size());
    out.authority = text.substr(0, end);
    text.remove_prefix(end);
  }
  const size_t query = std::min(text.find('?'), text.size());
  out.path = text.substr(0, query);
  out.query = text.substr(query);
  return out;
}

std::string tidy_path(std::string_view path) {
  std::vector<std::string_view> parts;
  size_t at = 0;
  bool directory = false;
  while (at <= path.size()) {
    const size_t end = std::min(path.find('/', at), path.size());
    const std::string_view part = path.substr(at, end - at);
    directory = part == "." || part == "..";
    if (part == "..") {
      if (parts.size() > 1) parts.pop_back();
    } else if (part != ".") {
      parts.push_back(part);
    }
    at = end + 1;
  }
  if (directory) parts.emplace_back();
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) out += (i > 0 ? "/" : "") + std::string(parts[i]);
  return out;
}

// RFC 3986, 5.2; without a fragment.
std::string join(const std::string& base, std::string_view reference) {
  Uri to = split(reference);
  if (!to.scheme.empty()) return std::string(reference);
  const Uri from = split(base);
  if (to.authority.empty()) {
    to.authority = from.authority;
    if (to.path.empty()) {
      to.path = from.path;
      if (to.query.empty()) to.query = from.query;
    } else if (!to.path.starts_with('/')) {
      const size_t slash = from.path.rfind('/');
      to.path =
          tidy_path((slash == std::string::npos ? "" : from.path.substr(0, slash + 1)) + to.path);
    } else {
      to.path = tidy_path(to.path);
    }
  }
  return from.scheme + to.authority + to.path + to.query;
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c = static_cast<char>(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 &&
        digit(text[i + 2]) >= 0) {
      out += static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::pair<std::string_view, std::string_view> split_fragment(std::string_view uri) {
  const size_t hash = uri.find('#');
  if (hash == std::string_view::npos) return {uri, {}};
  return {uri.substr(0, hash), uri.substr(hash + 1)};
}

}  // namespace

void SchemaSource::index(const JsonValue& value, const std::string& pointer, std::string base) {
  if (value.is_array()) {
    for (size_t i = 0; i < value.items().size(); ++i)
      index(value.items()[i], pointer_to(pointer, i), base);
    return;
  }
  if (value.is_object()) {
    const JsonValue* id = value.find("$id");
    const JsonValue* ref = value.find("$ref");
    const bool ignored = ref_alone_ && ref != nullptr && ref->is_string();
    if (id != nullptr && id->is_string() && !ignored) {
      const auto [uri, fragment] = split_fragment(id->as_string());
      if (!uri.empty()) {
        base = join(base, uri);
        resources_.emplace(base, &value);
      }
      if (!fragment.empty()) resources_.emplace(base + "#" + std::string(fragment), &value);
    }
    for (const char* keyword : {"$anchor", "$dynamicAnchor"}) {
      const JsonValue* anchor = value.find(keyword);
      if (anchor != nullptr && anchor->is_string())
        resources_.emplace(base + "#" + anchor->as_string(), &value);
    }
    for (const auto& [key, member] : value.members()) {
      if (key.starts_with("unevaluated")) uses_unevaluated_ = true;
      // What is there is data, not schemas.
      if (key == "enum" || key == "const" || key == "default" || key == "examples") {
        const bool schema =
            member.is_object() && (pointer.ends_with("/properties") || pointer.ends_with("/$defs"));
        if (!schema) continue;
      }
      index(member, pointer_to(pointer, key), base);
    }
  }
  places_.emplace(&value, Place{pointer, std::move(base)});
}

Result<SchemaSource> SchemaSource::read(const JsonValue& root, const std::string& pointer) {
  SchemaSource out;
  out.root_ = &root;
  const JsonValue* dialect = root.find("$schema");
  if (dialect != nullptr && dialect->is_string()) {
    std::string_view name = dialect->as_string();
    for (const std::string_view prefix : {"https://", "http://"}) {
      if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
    }
    if (!name.starts_with("json-schema.org/")) {
      return make_error(400, "unsupported_grammar",
                        "The schema's dialect " + dialect->as_string() + " is not supported.",
                        pointer + "/$schema");
    }
    out.ref_alone_ = name.find("draft-0") != std::string_view::npos;
  }
  out.resources_.emplace("", &root);
  out.index(root, pointer, "");
  return out;
}

std::string SchemaSource::pointer(const JsonValue& schema) const {
  const auto at = places_.find(&schema);
  return at == places_.end() ? "" : at->second.pointer;
}

std::string SchemaSource::pointer(const JsonValue& schema, std::string_view keyword) const {
  return pointer_to(pointer(schema), keyword);
}

Result<const JsonValue*> SchemaSource::resolve(const JsonValue& schema,
                                               const std::string& reference) const {
  const auto place = places_.find(&schema);
  const std::string base = place == places_.end() ? "" : place->second.base;
  const auto [uri, encoded] = split_fragment(reference);
  const std::string target = uri.empty() ? base : join(base, uri);
  const auto resource = resources_.find(target);
  if (resource == resources_.end()) {
    return make_error(400, "unsupported_grammar",
                      "References to other documents are not supported: " + reference + ".",
                      pointer(schema, "$ref"));
  }
  const std::string fragment = percent_decoded(encoded);
  const JsonValue* found = resource->second;
  if (fragment.starts_with('/')) {
    found = find_at(*found, fragment);
  } else if (!fragment.empty()) {
    const auto anchor = resources_.find(target + "#" + fragment);
    found = anchor == resources_.end() ? nullptr : anchor->second;
  }
  if (found == nullptr || !(found->is_object() || found->is_bool())) {
    return make_error(400, "invalid_grammar", "There is no schema at " + reference + ".",
                      pointer(schema, "$ref"));
  }
  return found;
}

}  // namespace tandem::grammar
