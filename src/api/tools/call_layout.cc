#include "api/tools/call_layout.h"

#include <algorithm>

namespace tandem::api {

namespace {

std::string quoted_list(const std::vector<std::string>& texts, const char* between) {
  std::string out;
  for (const std::string& text : texts) out += (out.empty() ? "" : between) + lark_text(text);
  return out;
}

}  // namespace

NameRule names_without(std::string_view bytes) {
  constexpr size_t kMaxName = 256;
  return [bytes = std::string(bytes)](std::string_view name) {
    return name.size() <= kMaxName && name.find_first_of(bytes) == std::string_view::npos;
  };
}

NameRule any_name() {
  return [](std::string_view) { return true; };
}

std::string lark_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    constexpr std::string_view kHex = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20) {
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out += '"';
}

std::string json_text(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return lark_text(out);
}

std::string lark_marker(const Marker& marker) {
  return marker.token >= 0 ? "<[" + std::to_string(marker.token) + "]>"
                           : lark_text(marker.spelling);
}

std::string custom_text(const CustomText& text, const char* spelling,
                        const std::vector<std::string>& never) {
  return "%inner@" + text.pointer + " (" + text.syntax + ", " + spelling +
         (never.empty() ? "" : ", never = " + quoted_list(never, " ")) + ") " +
         lark_text(text.definition);
}

namespace {

// How much of a tool's schema is kept to.
const char* degree(const GrammarTool& tool) { return tool.strict ? "!" : "?"; }

}  // namespace

std::string json_arguments(const GrammarTool& tool) {
  if (tool.custom) {
    return lark_text("{\"input\": \"") + " (" + custom_text(*tool.custom, "json") + ") " +
           lark_text("\"}");
  }
  return std::string("%json") + degree(tool) + "@" + tool.pointer + " (object) " +
         tool.parameters.dump();
}

std::string json_call(const GrammarTool& tool, std::string_view key) {
  std::string head = "{\"name\": ";
  append_json_string(head, tool.name);
  head += ", ";
  append_json_string(head, key);
  return lark_text(head + ": ") + " " + json_arguments(tool) + " \"}\"";
}

std::string listed_arguments(const GrammarTool& tool, const ArgumentParts& parts) {
  if (tool.custom) {
    const std::string& before = parts.string.empty() ? parts.value : parts.string;
    const bool raw = parts.flags != "python";
    const std::string text =
        "(" +
        (raw ? custom_text(*tool.custom, "utf8", parts.never) : custom_text(*tool.custom, "json")) +
        ")";
    return parts.open + " \"input\" " + before +
           (raw ? " " + text + " " : " \"\\\"\" " + text + " \"\\\"\" ") + parts.close;
  }
  std::string out = std::string("%arguments") + degree(tool) + "@" + tool.pointer + " (" +
                    parts.flags + ", open = " + parts.open;
  if (!parts.value.empty()) out += ", value = " + parts.value;
  if (!parts.string.empty()) out += ", string = " + parts.string;
  out += parts.typed + ", close = " + parts.close + ", between = " + parts.between;
  if (!parts.never.empty()) out += ", never = " + quoted_list(parts.never, " ");
  return out + ") " + tool.parameters.dump();
}

std::vector<std::string> letters_of(std::initializer_list<const Marker*> markers) {
  std::vector<std::string> out;
  for (const Marker* marker : markers) {
    if (marker->token < 0) out.push_back(marker->spelling);
  }
  return out;
}

void open_with(CallLayout& layout, std::initializer_list<const Marker*> markers) {
  const Marker& first = **markers.begin();
  for (const Marker* marker : markers) layout.markers.push_back(marker->spelling);
  layout.opener = lark_marker(first);
  layout.free = "%without(" + quoted_list(layout.markers, ", ") + ")";
  if (first.token >= 0) {
    layout.before = layout.free + " " + layout.opener;
    return;
  }
  std::vector<std::string> others(layout.markers.begin() + 1, layout.markers.end());
  layout.before = "%until(" + lark_text(first.spelling) +
                  (others.empty() ? "" : " without " + quoted_list(others, " ")) + ")";
}

Status need_tokens(std::string_view family, std::initializer_list<const Marker*> markers) {
  for (const Marker* marker : markers) {
    if (marker->token >= 0) continue;
    return make_error(400, "unsupported_parameter",
                      "calls cannot be kept to a grammar: models of the family '" +
                          std::string(family) + "' write them with the token " + marker->spelling +
                          ", which this model's vocabulary does not have");
  }
  return {};
}

}  // namespace tandem::api
