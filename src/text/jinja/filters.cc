// Filters: `value | name(arguments)`.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "text/jinja/format.h"
#include "text/jinja/runtime.h"
#include "text/jinja/strings.h"
#include "text/unicode.h"

namespace tandem::text::jinja {

namespace {

struct Call {
  Runtime& runtime;
  const Value& input;
  const Arguments& arguments;

  std::string text() const { return to_str(input); }
  const Value* find(size_t index, std::string_view name) const {
    return arguments.find(index, name);
  }
  bool flag(size_t index, std::string_view name, bool fallback = false) const {
    const Value* value = find(index, name);
    return value ? value->truthy() : fallback;
  }
  int64_t integer(size_t index, std::string_view name, int64_t fallback) const {
    const Value* value = find(index, name);
    if (!value) return fallback;
    if (value->is_integral()) return value->as_int();
    runtime.fail("argument '" + std::string(name) + "' must be an integer");
    return fallback;
  }
  std::string string(size_t index, std::string_view name, std::string fallback) const {
    const Value* value = find(index, name);
    return value && !value->is_none() ? to_str(*value) : std::move(fallback);
  }
};

// Looks up "a.b.0" step by step, as attribute= arguments do.
Value dotted(Runtime& runtime, const Value& value, const Value& path) {
  if (path.is_integral()) return runtime.item(value, path);
  Value at = value;
  const std::string steps = to_str(path);
  for (const std::string_view part : split(steps, ".", -1, false)) {
    int64_t index = 0;
    const auto end = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number = end.ec == std::errc() && end.ptr == part.data() + part.size();
    at = runtime.item(at, number ? Value::integer(index) : Value::string(std::string(part)));
  }
  return at;
}

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
  if (const List* list = v.as_list())
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

Value join_filter(const Call& call) {
  const std::string separator = call.string(0, "d", "");
  const Value* attribute = call.find(1, "attribute");
  std::string out;
  bool first = true;
  for (const Value& value : call.runtime.iterate(call.input)) {
    if (!first) out += separator;
    first = false;
    out += to_str(attribute ? dotted(call.runtime, value, *attribute) : value);
    if (out.size() > call.runtime.options().limits.string_bytes || call.runtime.failed()) break;
  }
  return call.runtime.make_string(std::move(out));
}

Value map_filter(const Call& call) {
  std::vector<Value> out;
  const Value* attribute = nullptr;
  const Value* fallback = nullptr;
  for (const auto& [key, value] : call.arguments.keywords) {
    if (key == "attribute") attribute = &value;
    if (key == "default") fallback = &value;
  }
  const auto& positional = call.arguments.positional;
  if (!attribute && (positional.empty() || !positional[0].is_string())) {
    return call.runtime.fail("map needs a filter's name or attribute=");
  }
  Arguments rest;
  if (!attribute) {
    rest.positional.assign(positional.begin() + 1, positional.end());
    rest.keywords = call.arguments.keywords;
  }
  for (const Value& value : call.runtime.iterate(call.input)) {
    if (call.runtime.failed()) break;
    Value mapped = attribute ? dotted(call.runtime, value, *attribute)
                             : call.runtime.filter(positional[0].str(), value, rest);
    if (attribute && fallback && mapped.is_undefined()) mapped = *fallback;
    out.push_back(std::move(mapped));
  }
  return call.runtime.checked_list(std::move(out));
}

// select, reject, selectattr, rejectattr.
Value select_filter(const Call& call, bool keep, bool by_attribute) {
  const auto& positional = call.arguments.positional;
  size_t used = 0;
  if (by_attribute && positional.empty())
    return call.runtime.fail("an attribute's name is missing");
  const Value* attribute = by_attribute ? &positional[used++] : nullptr;
  const Value* test = used < positional.size() ? &positional[used++] : nullptr;
  if (test && !test->is_string()) return call.runtime.fail("a test's name must be a string");
  Arguments rest;
  rest.positional.assign(positional.begin() + static_cast<ptrdiff_t>(used), positional.end());
  rest.keywords = call.arguments.keywords;
  std::vector<Value> out;
  for (const Value& value : call.runtime.iterate(call.input)) {
    if (call.runtime.failed()) break;
    const Value subject = attribute ? dotted(call.runtime, value, *attribute) : value;
    const bool holds = test ? call.runtime.test(test->str(), subject, rest) : subject.truthy();
    if (holds == keep) out.push_back(value);
  }
  return call.runtime.checked_list(std::move(out));
}

Value edge_item(const Call& call, bool first) {
  const std::vector<Value> items = call.runtime.iterate(call.input);
  if (items.empty()) return Value::undefined("an element of an empty sequence");
  return first ? items.front() : items.back();
}

// What sort, unique and dictsort compare: letters' case ignored unless asked.
Value sort_key(const Value& value, bool case_sensitive) {
  return value.is_string() && !case_sensitive ? Value::string(lower(value.str())) : value;
}

Value sorted(Runtime& runtime, std::vector<std::pair<Value, Value>> keyed, bool reverse) {
  // Insertion by binary search: tolerates an inconsistent order after a failed comparison, unlike
  // std::sort.
  std::vector<Value> keys;
  std::vector<Value> out;
  for (auto& [key, value] : keyed) {
    size_t low = 0;
    size_t high = keys.size();
    while (low < high && !runtime.failed()) {
      const size_t middle = (low + high) / 2;
      const int result = runtime.order(key, keys[middle]);
      if (reverse ? result <= 0 : result >= 0) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    if (!runtime.charge(1 + (keys.size() - low) / 8)) return {};
    keys.insert(keys.begin() + static_cast<ptrdiff_t>(low), std::move(key));
    out.insert(out.begin() + static_cast<ptrdiff_t>(low), std::move(value));
  }
  return runtime.checked_list(std::move(out));
}

Value sort_filter(const Call& call) {
  const bool case_sensitive = call.flag(1, "case_sensitive");
  const Value* attribute = call.find(2, "attribute");
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& value : call.runtime.iterate(call.input)) {
    const Value key = attribute ? dotted(call.runtime, value, *attribute) : value;
    keyed.emplace_back(sort_key(key, case_sensitive), std::move(value));
  }
  return sorted(call.runtime, std::move(keyed), call.flag(0, "reverse"));
}

Value dictsort_filter(const Call& call) {
  const Dict* dict = call.input.as_dict();
  if (!dict) return call.runtime.fail("dictsort needs a dict");
  const bool case_sensitive = call.flag(0, "case_sensitive");
  const bool by_value = call.string(1, "by", "key") == "value";
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : dict->items) {
    const Value name = Value::string(key);
    keyed.emplace_back(sort_key(by_value ? value : name, case_sensitive),
                       Value::list({name, value}, true));
  }
  return sorted(call.runtime, std::move(keyed), call.flag(2, "reverse"));
}

Value unique_filter(const Call& call) {
  const bool case_sensitive = call.flag(0, "case_sensitive");
  const Value* attribute = call.find(1, "attribute");
  std::vector<Value> keys;
  std::vector<Value> out;
  for (const Value& value : call.runtime.iterate(call.input)) {
    if (!call.runtime.charge(1 + keys.size())) break;
    Value key =
        sort_key(attribute ? dotted(call.runtime, value, *attribute) : value, case_sensitive);
    if (std::any_of(keys.begin(), keys.end(), [&](const Value& k) { return equals(k, key); }))
      continue;
    keys.push_back(std::move(key));
    out.push_back(value);
  }
  return call.runtime.checked_list(std::move(out));
}

Value groupby_filter(const Call& call) {
  const Value* attribute = call.find(0, "attribute");
  if (!attribute) return call.runtime.fail("groupby needs an attribute");
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& value : call.runtime.iterate(call.input)) {
    keyed.emplace_back(dotted(call.runtime, value, *attribute), std::move(value));
  }
  const Value all = sorted(call.runtime, std::move(keyed), false);
  if (call.runtime.failed()) return {};
  std::vector<Value> groups;
  std::vector<Value> members;
  Value key;
  const auto close = [&] {
    if (members.empty()) return;
    groups.push_back(Value::list({key, Value::list(std::move(members))}, true));
    members.clear();
  };
  for (const Value& value : all.as_list()->items) {
    Value next = dotted(call.runtime, value, *attribute);
    if (!members.empty() && !equals(next, key)) close();
    key = std::move(next);
    members.push_back(value);
  }
  close();
  return call.runtime.checked_list(std::move(groups));
}

Value sum_filter(const Call& call) {
  const Value* attribute = call.find(0, "attribute");
  const Value* start = call.find(1, "start");
  Value total = start ? *start : Value::integer(0);
  for (const Value& value : call.runtime.iterate(call.input)) {
    total = call.runtime.binary("+", total,
                                attribute ? dotted(call.runtime, value, *attribute) : value);
  }
  return total;
}

Value extreme_filter(const Call& call, int wanted) {
  const bool case_sensitive = call.flag(0, "case_sensitive");
  const Value* attribute = call.find(1, "attribute");
  Value best = Value::undefined("an element of an empty sequence");
  Value best_key;
  for (const Value& value : call.runtime.iterate(call.input)) {
    Value key =
        sort_key(attribute ? dotted(call.runtime, value, *attribute) : value, case_sensitive);
    if (!best.is_undefined() && call.runtime.order(key, best_key) != wanted) continue;
    best = value;
    best_key = std::move(key);
  }
  return best;
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

Value reverse_filter(const Call& call) {
  if (call.input.is_string()) {
    const Value step = Value::integer(-1);
    return call.runtime.slice(call.input, nullptr, nullptr, &step);
  }
  std::vector<Value> items = call.runtime.iterate(call.input);
  std::reverse(items.begin(), items.end());
  return call.runtime.checked_list(std::move(items));
}

Value items_filter(const Call& call) {
  if (call.input.is_undefined()) return Value::list({});
  if (!call.input.as_dict()) return call.runtime.fail("items needs a dict");
  return call.runtime.method(call.input, "items", {});
}

Value batch_filter(const Call& call) {
  const int64_t size = call.integer(0, "linecount", 0);
  if (size <= 0) return call.runtime.fail("batch needs a positive size");
  const Value* fill = call.find(1, "fill_with");
  std::vector<Value> batches;
  std::vector<Value> row;
  for (const Value& value : call.runtime.iterate(call.input)) {
    row.push_back(value);
    if (static_cast<int64_t>(row.size()) < size) continue;
    batches.push_back(Value::list(std::move(row)));
    row.clear();
  }
  if (!row.empty()) {
    while (fill && static_cast<int64_t>(row.size()) < size && call.runtime.charge(1))
      row.push_back(*fill);
    batches.push_back(Value::list(std::move(row)));
  }
  return call.runtime.checked_list(std::move(batches));
}

Value escape_filter(const Call& call) {
  std::string out;
  for (const char c : call.text()) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return call.runtime.make_string(std::move(out));
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
    {"safe",
     [](const Call& c) { return c.input.is_string() ? c.input : c.runtime.make_string(c.text()); }},
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

Value Runtime::format_percent(std::string_view format, const std::vector<Value>& values) {
  std::string out;
  size_t used = 0;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    std::string spec = "%";
    for (++i; i < format.size() &&
              std::string_view("-+ #0123456789.").find(format[i]) != std::string_view::npos;
         ++i) {
      spec += format[i];
    }
    if (i >= format.size() || spec.size() > 8) return fail("a broken % format");
    const char kind = format[i];
    if (kind == '%') {
      out += '%';
      continue;
    }
    if (used >= values.size()) return fail("not enough arguments for the format string");
    const Value& value = values[used++];
    char buffer[512];
    if (kind == 's' || kind == 'r') {
      std::string text = kind == 's' ? to_str(value) : to_repr(value);
      const int width =
          std::abs(std::atoi(spec.c_str() + (spec.size() > 1 && spec[1] == '-' ? 2 : 1)));
      const auto length = static_cast<int>(count_code_points(text));
      const std::string padding(static_cast<size_t>(std::clamp(width - length, 0, 4096)), ' ');
      out += spec.starts_with("%-") ? text + padding : padding + text;
    } else if ((kind == 'd' || kind == 'i' || kind == 'x' || kind == 'X' || kind == 'o') &&
               value.is_number()) {
      const double real = value.as_real();
      if (!value.is_integral() && std::abs(real) >= 9.0e18)
        return fail("a number is too large for %d");
      const int64_t number = value.is_integral() ? value.as_int() : static_cast<int64_t>(real);
      spec += "ll";
      spec += kind;
      const int size =
          std::snprintf(buffer, sizeof buffer, spec.c_str(), static_cast<long long>(number));
      if (size < 0 || size >= static_cast<int>(sizeof buffer))
        return fail("a % format is too wide");
      out += buffer;
    } else if ((kind == 'f' || kind == 'g' || kind == 'e') && value.is_number()) {
      spec += kind;
      const int size = std::snprintf(buffer, sizeof buffer, spec.c_str(), value.as_real());
      if (size < 0 || size >= static_cast<int>(sizeof buffer))
        return fail("a % format is too wide");
      out += buffer;
    } else {
      return fail(std::string("unsupported % format '") + kind + "'");
    }
  }
  if (used < values.size() && !(used == 0 && values.size() == 1 && values[0].as_dict())) {
    return fail("not all arguments were used by the format string");
  }
  return make_string(std::move(out));
}

}  // namespace tandem::text::jinja
