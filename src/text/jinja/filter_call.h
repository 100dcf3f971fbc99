// What a filter is called with, and the filters over sequences (filters_sequence.cc).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "text/jinja/format.h"
#include "text/jinja/runtime.h"

namespace tandem::text::jinja::filters {

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

Value join_filter(const Call& call);
Value map_filter(const Call& call);
Value select_filter(const Call& call, bool keep, bool by_attribute);
Value edge_item(const Call& call, bool first);
Value sort_filter(const Call& call);
Value dictsort_filter(const Call& call);
Value unique_filter(const Call& call);
Value groupby_filter(const Call& call);
Value sum_filter(const Call& call);
Value extreme_filter(const Call& call, int wanted);
Value reverse_filter(const Call& call);
Value batch_filter(const Call& call);

}  // namespace tandem::text::jinja::filters
