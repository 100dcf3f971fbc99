#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#include <algorithm>
#include <sstream>

#include <toml++/toml.h>

#include "config/options.h"

namespace tandem::config {
namespace {

std::string at(const toml::source_region& where) {
  return "line " + std::to_string(where.begin.line);
}

// A TOML scalar as the words that the same flag would have had.
std::optional<std::string> scalar_text(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  if (const auto* real = node.as_floating_point()) {
    std::ostringstream out;
    out << real->get();
    return out.str();
  }
  return std::nullopt;
}

std::optional<std::vector<std::string>> words_of(const toml::node& node) {
  std::vector<std::string> words;
  if (const auto* array = node.as_array()) {
    for (const auto& element : *array) {
      const auto text = scalar_text(element);
      if (!text) return std::nullopt;
      words.push_back(*text);
    }
    return words.empty() ? std::nullopt : std::optional(words);
  }
  const auto text = scalar_text(node);
  if (!text) return std::nullopt;
  words.push_back(*text);
  return words;
}

}  // namespace

Status Options::read_file(const std::string& path) {
  const auto parsed = toml::parse_file(path);
  if (!parsed) {
    return make_error(400, "invalid_config",
                      path + ", " + at(parsed.error().source()) + ": " +
                          std::string(parsed.error().description()));
  }
  const auto fail = [&](const toml::node& node, const std::string& message) {
    return make_error(400, "invalid_config", path + ", " + at(node.source()) + ": " + message);
  };
  const auto read_tables = [&](const std::string& name, const toml::array& list) -> Status {
    const auto found = std::ranges::find(
        tables_, name, &std::pair<std::string, std::function<Status(const Table&)>>::first);
    if (found == tables_.end())
      return fail(list, "[[" + name + "]] is nothing that tandem " + command_ + " knows");
    for (const auto& element : list) {
      Table table;
      for (const auto& [key, node] : *element.as_table()) {
        const auto text = scalar_text(node);
        if (!text) return fail(node, "\"" + std::string(key.str()) + "\" is not a value");
        table.emplace_back(std::string(key.str()), *text);
      }
      if (auto added = found->second(table); !added)
        return fail(element, "[[" + name + "]]: " + added.error().message);
    }
    return {};
  };
  const auto apply = [&](const toml::table& table) -> Status {
    for (const auto& [key, node] : table) {
      if (node.is_table()) continue;
      if (const auto* list = node.as_array(); list != nullptr && node.is_array_of_tables()) {
        TANDEM_CHECK(read_tables(std::string(key.str()), *list));
        continue;
      }
      const Spec* spec = find(key.str());
      if (spec == nullptr)
        return fail(node,
                    "\"" + std::string(key.str()) + "\" is not an option of tandem " + command_);
      const auto words = words_of(node);
      if (!words)
        return fail(node, "\"" + spec->name + "\" is neither a value nor a list of values");
      if (spec->kind != Kind::kList && node.is_array())
        return fail(node, "\"" + spec->name + "\" takes one value, not a list");
      if (auto set = spec->set(*words); !set)
        return fail(node, spec->name + ": " + set.error().message);
    }
    return {};
  };
  // Tables of other commands are theirs: one file may configure them all.
  const toml::table& root = parsed.table();
  const toml::table* own = root[command_].as_table();
  TANDEM_CHECK(apply(root));
  return own == nullptr ? Status{} : apply(*own);
}

}  // namespace tandem::config
