// What expressions do: operators, attributes, methods, filters, tests, global functions. Bounded in
// steps, in depth and in the size of any string.
//
// Errors are noted once (`fail`); from then on every function returns quickly with some value and
// the interpreter unwinds. Python semantics throughout; where the sandbox of the reference
// environment refuses (mutation, private attributes), so does this.
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/jinja/value.h"

namespace tandem::text::jinja {

struct Limits {
  int64_t steps = 5'000'000;               // one per node evaluated, one per 64 bytes made
  size_t string_bytes = size_t{64} << 20;  // any one string, the output included
  int depth = 800;                         // nested evaluations, macro calls included
};

struct RenderOptions {
  Limits limits;
  // A noncharacter put into user strings to break control text: invisible to length and to ASCII
  // escaping.
  std::string_view sentinel = {};
  std::optional<std::time_t> now;  // strftime_now; the system's clock and time zone unless set
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;

  // Argument by position or by name; nullptr when not given.
  const Value* find(size_t index, std::string_view name) const;
};

class Runtime {
 public:
  explicit Runtime(const RenderOptions& options) : options_(options) {}

  // --- errors and limits ---
  bool failed() const { return error_.has_value(); }
  Value fail(std::string message);
  Value raise(std::string message);  // the template's own raise_exception: the message as it is
  bool charge(size_t steps);         // false when failed or out of steps
  Value make_string(std::string text);
  void set_line(int line) { line_ = line; }
  Error take_error() { return std::move(*error_); }
  const RenderOptions& options() const { return options_; }

  // --- operators (operators.cc) ---
  Value binary(std::string_view op, const Value& left, const Value& right);
  bool compare(std::string_view op, const Value& left, const Value& right);
  bool contains(const Value& container, const Value& item);
  bool same(const Value& left, const Value& right) const;
  // -1, 0, 1; fails for kinds without an order.
  int order(const Value& left, const Value& right);
  Value negate(const Value& value);
  Value attribute(const Value& value, std::string_view name);  // value.name
  Value item(const Value& value, const Value& key);            // value[key]
  Value slice(const Value& value, const Value* start, const Value* stop, const Value* step);
  // What a `for` walks over: items, characters, keys.
  std::vector<Value> iterate(const Value& value);
  Value checked_list(std::vector<Value> items, bool tuple = false);
  Value checked_dict(std::vector<std::pair<Value, Value>> items);

  // --- callables ---
  Value method(const Value& self, std::string_view name, const Arguments& arguments);  // methods.cc
  Value filter(std::string_view name, const Value& input,
               const Arguments& arguments);  // filters.cc
  bool test(std::string_view name, const Value& input,
            const Arguments& arguments);                            // predicates.cc
  Value global(std::string_view name, const Arguments& arguments);  // globals.cc

  // printf-style formatting with %.
  // Python's str.format with plain fields: {}, {0}, {name}, {name.attribute}, {0[key]}, !r, !s.
  Value format_braces(std::string_view format, const Arguments& arguments);
  Value format_percent(std::string_view format, const std::vector<Value>& values);
  size_t length_of(std::string_view text) const;  // characters, without sentinels

 protected:
  std::vector<std::shared_ptr<Namespace>> namespaces_;  // emptied at the end: they may form cycles

 private:
  const RenderOptions& options_;
  std::optional<Error> error_;
  int64_t steps_ = 0;
  int line_ = 0;
  int filter_depth_ = 0;
};

bool is_method(const Value& self, std::string_view name);
bool is_global(std::string_view name);
bool is_filter(std::string_view name);
bool is_test(std::string_view name);

}  // namespace tandem::text::jinja
