// Filters over lists, dicts and other sequences.
#include <algorithm>
#include <charconv>

#include "text/jinja/filter_call.h"
#include "text/jinja/strings.h"

namespace tandem::text::jinja::filters {

namespace {

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

// A list as checked_list makes it, that only iterates.
Value lazy_list(Runtime& runtime, std::vector<Value> items) {
  const Value made = runtime.checked_list(std::move(items));
  const List* list = made.as_list();
  return list == nullptr ? made : Value::lazy(list->items);
}

}  // namespace

Value join_filter(const Call& call) {
  const std::string separator = call.string(0, "d", "");
  const Value* attribute = call.find(1, "attribute");
  std::string out;
  bool first = true;
  for (const Value& value : call.runtime.iterate(call.input)) {
    const std::string part = to_str(attribute ? dotted(call.runtime, value, *attribute) : value);
    const bool apart = !first && separator.empty() && grow_together(out, part);
    if (!first) out += apart ? call.runtime.options().sentinel : std::string_view(separator);
    first = false;
    out += part;
    if (out.size() > call.runtime.options().limits.string_bytes || call.runtime.failed()) break;
  }
  return call.runtime.make_string(std::move(out));
}

Value map_filter(const Call& call) {
  std::vector<Value> out;
  if (!call.input.truthy()) return Value::lazy({});
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
  return lazy_list(call.runtime, std::move(out));
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
  if (!call.input.truthy()) return Value::lazy({});
  for (const Value& value : call.runtime.iterate(call.input)) {
    if (call.runtime.failed()) break;
    const Value subject = attribute ? dotted(call.runtime, value, *attribute) : value;
    const bool holds = test ? call.runtime.test(test->str(), subject, rest) : subject.truthy();
    if (holds == keep) out.push_back(value);
  }
  return lazy_list(call.runtime, std::move(out));
}

Value edge_item(const Call& call, bool first) {
  const std::vector<Value> items = call.runtime.iterate(call.input);
  if (items.empty()) return Value::undefined("an element of an empty sequence");
  return first ? items.front() : items.back();
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
  keyed.reserve(dict->items.size());
  for (const auto& [key, value] : dict->items) {
    keyed.emplace_back(sort_key(by_value ? value : key, case_sensitive),
                       Value::list({key, value}, true));
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
  return lazy_list(call.runtime, std::move(out));
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

Value reverse_filter(const Call& call) {
  if (call.input.is_string()) {
    const Value step = Value::integer(-1);
    return call.runtime.slice(call.input, nullptr, nullptr, &step);
  }
  std::vector<Value> items = call.runtime.iterate(call.input);
  std::reverse(items.begin(), items.end());
  return lazy_list(call.runtime, std::move(items));
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
  return lazy_list(call.runtime, std::move(batches));
}

}  // namespace tandem::text::jinja::filters
