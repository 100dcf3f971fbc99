// Filters: `value | name(arguments)`. Those over single values are here, with the table of all.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "text/jinja/filter_call.h"
#include "text/jinja/strings.h"

namespace tandem::text::jinja {

namespace {

using namespace filters;

Value to_json_filter(const Call& call) {
  JsonStyle style;
  style.sentinel = call.runtime.options().sentinel;
  style.ensure_ascii = call.flag(0, "ensure_ascii");
  if (const Value* indent = call.find(1, "indent"); indent && !indent->is_none()) {
    if (indent->is_integral()) {
      style.indent =
          std::string(static_cast<size_t>(std::clamp<int64_t>(indent->as_int(), 0, 32)), ' ');
    } else if (indent->is_string() && indent->str().size() <= 32) {
      style.indent = indent->str();
    } else {
      return call.runtime.fail("tojson: indent must be an integer or a short string");
    }
    style.item_separator = ",";
  }
  if (const Value* separators = call.find(2, "separators"); separators && !separators->is_none()) {
    const List* pair = separators->as_list();
    if (!pair || pair->items.size() != 2 || !pair->items[0].is_string() ||
        !pair->items[1].is_string()) {
      return call.runtime.fail("tojson: separators must be two strings");
    }
    style.item_separator = pair->items[0].str();
    style.key_separator = pair->items[1].str();
  }
  style.sort_keys = call.flag(3, "sort_keys");
  std::optional<std::string> text = to_json(call.input, style);
  if (!text) return call.runtime.fail("tojson: the value has something JSON cannot hold");
  return call.runtime.make_string(std::move(*text));
}

Value length_filter(const Call& call) {
  const Value& v = call.input;
  if (v.is_string()) return Value::integer(static_cast<int64_t>(call.runtime.length_of(v.str())));
  if (const List* list = v.as_list(); list && !list->lazy)
    return Value::integer(static_cast<int64_t>(list->items.size()));
  if (const Dict* dict = v.as_dict())
    return Value::integer(static_cast<int64_t>(dict->items.size()));
  if (v.is_undefined()) return Value::integer(0);
  return call.runtime.fail("a value of type " + std::string(v.type_name()) + " has no length");
}

Value int_filter(const Call& call) {
  const Value& v = call.input;
  const Value* fallback = call.find(0, "default");
  if (v.is_integral()) return Value::integer(v.as_int());
  if (v.is<BigInteger>()) return v;
  if (v.is<double>() && std::abs(v.as<double>()) < 9.0e18) {
    return Value::integer(static_cast<int64_t>(v.as<double>()));
  }
  if (v.is_string()) {
    const std::string text(strip(v.str(), std::nullopt, Side::kBoth));
    const char* begin = text.c_str() + (text.starts_with("+") ? 1 : 0);
    int64_t number = 0;
    const auto base = static_cast<int>(call.integer(1, "base", 10));
    if (base >= 2 && base <= 36) {
      const auto end = std::from_chars(begin, text.c_str() + text.size(), number, base);
      if (end.ec == std::errc() && *end.ptr == '\0' && !text.empty()) return Value::integer(number);
    }
    char* stop = nullptr;
    const double real = std::strtod(text.c_str(), &stop);
    if (!text.empty() && *stop == '\0' && std::abs(real) < 9.0e18) {
      return Value::integer(static_cast<int64_t>(real));
    }
  }
  return fallback ? *fallback : Value::integer(0);
}

Value float_filter(const Call& call) {
  const Value& v = call.input;
  if (v.is_number()) return Value(v.as_real());
  if (v.is_string()) {
    const std::string text(strip(v.str(), std::nullopt, Side::kBoth));
    char* stop = nullptr;
    const double real = std::strtod(text.c_str(), &stop);
    if (!text.empty() && *stop == '\0') return Value(real);
  }
  const Value* fallback = call.find(0, "default");
  return fallback ? *fallback : Value(0.0);
}

Value round_filter(const Call& call) {
  if (!call.input.is_number()) return call.runtime.fail("round needs a number");
  const double scale = std::pow(10.0, static_cast<double>(call.integer(0, "precision", 0)));
  const std::string method = call.string(1, "method", "common");
  const double scaled = call.input.as_real() * scale;
  const double rounded = method == "ceil"    ? std::ceil(scaled)
                         : method == "floor" ? std::floor(scaled)
                                             : std::nearbyint(scaled);
  return Value(rounded / scale);
}

Value default_filter(const Call& call) {
  const Value* fallback = call.find(0, "default_value");
  const bool use = call.input.is_undefined() || (call.flag(1, "boolean") && !call.input.truthy());
  if (!use) return call.input;
  return fallback ? *fallback : Value::string("");
}

Value indent_filter(const Call& call) {
  std::string indention = "    ";
  if (const Value* width = call.find(0, "width")) {
    if (width->is_string()) {
      indention = width->str();
    } else {
      indention.assign(
          static_cast<size_t>(std::clamp<int64_t>(call.integer(0, "width", 4), 0, 1024)), ' ');
    }
  }
  const bool first = call.flag(1, "first");
  const bool blank = call.flag(2, "blank");
  // As the reference: a final line break is kept, empty lines stay empty unless asked.
  const std::string text = call.text() + "\n";
  std::vector<std::string_view> lines = split_lines(text, false);
  std::string out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    const bool indented = i == 0 ? first : blank || !lines[i].empty();
    if (indented) out += indention;
    out += lines[i];
    if (out.size() > call.runtime.options().limits.string_bytes) break;
  }
  return call.runtime.make_string(std::move(out));
}

Value items_filter(const Call& call) {
  if (call.input.is_undefined()) return Value::lazy({});
  if (!call.input.as_dict()) return call.runtime.fail("items needs a dict");
  const Value items = call.runtime.method(call.input, "items", {});
  return items.as_list() == nullptr ? items : Value::lazy(items.as_list()->items);
}

Value escape_filter(const Call& call) {
  if (call.input.is_markup()) return call.input;
  return call.runtime.make_string(escape_html(call.text())).as_markup();
}

Value safe_filter(const Call& call) {
  return (call.input.is_string() ? call.input : call.runtime.make_string(call.text())).as_markup();
}

Value trim_filter(const Call& call) {
  const Value* characters = call.find(0, "chars");
  const std::string text = call.text();
  std::optional<std::string_view> set;
  if (characters && characters->is_string()) set = characters->str();
  return call.runtime.make_string(std::string(strip(text, set, Side::kBoth)));
}

Value replace_filter(const Call& call) {
  Arguments arguments;
  arguments.positional = {Value::string(call.string(0, "old", "")),
                          Value::string(call.string(1, "new", ""))};
  if (const Value* count = call.find(2, "count"); count && !count->is_none()) {
    arguments.positional.push_back(*count);
  }
  return call.runtime.method(Value::string(call.text()), "replace", arguments);
}

Value abs_filter(const Call& call) {
  if (!call.input.is_number()) return call.runtime.fail("abs needs a number");
  if (call.input.is_integral()) {
    return call.input.as_int() < 0 ? call.runtime.negate(call.input)
                                   : Value::integer(call.input.as_int());
  }
  return Value(std::abs(call.input.as_real()));
}

Value attr_filter(const Call& call) {
  const Value* name = call.find(0, "name");
  if (!name || !name->is_string()) return call.runtime.fail("attr needs a name");
  // Attributes only, never a dict's items.
  if (call.input.as_dict() && !is_method(call.input, name->str())) {
    return Value::undefined(name->str());
  }
  return call.runtime.attribute(call.input, name->str());
}

Value list_filter(const Call& call) {
  return call.runtime.checked_list(call.runtime.iterate(call.input));
}

Value mapped_text(const Call& call, std::string (*map)(std::string_view)) {
  return call.runtime.make_string(map(call.text()));
}

using FilterFunction = Value (*)(const Call&);

struct NamedFilter {
  std::string_view name;
  FilterFunction function;
};

constexpr NamedFilter kFilters[] = {
    {"tojson", to_json_filter},
    {"length", length_filter},
    {"count", length_filter},
    {"int", int_filter},
    {"float", float_filter},
    {"round", round_filter},
    {"abs", abs_filter},
    {"default", default_filter},
    {"d", default_filter},
    {"join", join_filter},
    {"map", map_filter},
    {"select", [](const Call& c) { return select_filter(c, true, false); }},
    {"reject", [](const Call& c) { return select_filter(c, false, false); }},
    {"selectattr", [](const Call& c) { return select_filter(c, true, true); }},
    {"rejectattr", [](const Call& c) { return select_filter(c, false, true); }},
    {"first", [](const Call& c) { return edge_item(c, true); }},
    {"last", [](const Call& c) { return edge_item(c, false); }},
    {"sort", sort_filter},
    {"dictsort", dictsort_filter},
    {"unique", unique_filter},
    {"groupby", groupby_filter},
    {"sum", sum_filter},
    {"min", [](const Call& c) { return extreme_filter(c, -1); }},
    {"max", [](const Call& c) { return extreme_filter(c, 1); }},
    {"indent", indent_filter},
    {"reverse", reverse_filter},
    {"items", items_filter},
    {"batch", batch_filter},
    {"list", list_filter},
    {"attr", attr_filter},
    {"escape", escape_filter},
    {"e", escape_filter},
    {"trim", trim_filter},
    {"replace", replace_filter},
    {"upper", [](const Call& c) { return mapped_text(c, upper); }},
    {"lower", [](const Call& c) { return mapped_text(c, lower); }},
    {"title", [](const Call& c) { return mapped_text(c, title); }},
    {"capitalize", [](const Call& c) { return mapped_text(c, capitalize); }},
    {"string",
     [](const Call& c) { return c.input.is_string() ? c.input : c.runtime.make_string(c.text()); }},
    {"safe", safe_filter},
    {"format",
     [](const Call& c) { return c.runtime.format_percent(c.text(), c.arguments.positional); }},
};

const NamedFilter* find_filter(std::string_view name) {
  const auto* found = std::find_if(std::begin(kFilters), std::end(kFilters),
                                   [&](const NamedFilter& f) { return f.name == name; });
  return found == std::end(kFilters) ? nullptr : found;
}

}  // namespace

bool is_filter(std::string_view name) { return find_filter(name) != nullptr; }

Value Runtime::filter(std::string_view name, const Value& input, const Arguments& arguments) {
  if (!charge(1 + (input.is_string() ? input.str().size() / 32 : 0))) return {};
  const NamedFilter* found = find_filter(name);
  if (!found) return fail("unknown filter '" + std::string(name) + "'");
  if (filter_depth_ >= 16)
    return fail("filters apply one another too deeply");  // map('map', 'map', ...)
  ++filter_depth_;
  Value result = found->function({*this, input, arguments});
  --filter_depth_;
  return result;
}

}  // namespace tandem::text::jinja
