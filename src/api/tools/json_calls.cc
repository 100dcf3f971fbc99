#include "api/tools/json_calls.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/json_value.h"

namespace tandem::api {

namespace {

constexpr std::array<std::string_view, 6> kKeys = {"name",     "arguments", "parameters",
                                                   "function", "type",      "id"};

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

bool holds_arguments(std::string_view key) { return key == "arguments" || key == "parameters"; }

// "" for what is no object of arguments.
std::string object_text(const JsonValue& value) {
  if (value.is_object()) return value.dump();
  if (value.is_null()) return "{}";
  if (!value.is_string()) return "";
  if (value.as_string().empty()) return "{}";
  const auto inner = parse_json(value.as_string());
  return inner && inner->is_object() ? inner->dump() : "";
}

}  // namespace

JsonStream::State CallObject::push(std::string_view text, size_t& used, CallSink& sink) {
  used = 0;
  while (used < text.size() && state_ == JsonStream::State::kMore) {
    const bool reads = place_ == Place::kValue || (place_ == Place::kKey && !text_.empty());
    if (!reads) {
      if (!feed_structure(text[used], sink)) return fail();
      ++used;
      continue;
    }
    if (place_ == Place::kValue && may_stream_) {
      if (is_space(text[used])) {
        ++used;
        continue;
      }
      may_stream_ = false;
      streaming_ = text[used] == '{';
      if (streaming_) sink.begin_call(name_);
    }
    size_t some = 0;
    const JsonStream::State state = stream_.push(text.substr(used), some, text_);
    used += some;
    if (streaming_) sink.arguments(std::exchange(text_, {}));
    if (state == JsonStream::State::kBad) return fail();
    if (state == JsonStream::State::kMore) continue;
    if (place_ == Place::kKey) {
      end_key();
    } else {
      end_value(sink);
    }
  }
  return state_;
}

// The bytes between keys and values.
bool CallObject::feed_structure(char c, CallSink& sink) {
  if (is_space(c)) return true;
  switch (place_) {
    case Place::kOpen:
      place_ = Place::kFirstKey;
      return c == '{';
    case Place::kFirstKey:
    case Place::kKey: {
      if (c == '}' && place_ == Place::kFirstKey) {
        close(sink);
        return true;
      }
      if (c != '"') return false;
      place_ = Place::kKey;
      stream_ = JsonStream();
      text_.clear();
      size_t used = 0;
      stream_.push("\"", used, text_);
      return true;
    }
    case Place::kColon:
      if (c != ':') return false;
      place_ = Place::kValue;
      stream_ = JsonStream();
      text_.clear();
      may_stream_ = sink.live() && !offered_only_ && holds_arguments(key_) && !name_.empty() &&
                    arguments_.empty();
      return true;
    case Place::kNext:
      if (c == '}') {
        close(sink);
        return true;
      }
      place_ = Place::kKey;
      text_.clear();
      return c == ',';
    default:
      return false;
  }
}

void CallObject::end_key() {
  const auto key = parse_json(text_);
  key_ = key ? key->as_string() : "";
  text_.clear();
  place_ = Place::kColon;
  if (offered_only_ && name_.empty() && arguments_.empty() &&
      std::ranges::find(kKeys, key_) == kKeys.end())
    fail();
}

void CallObject::end_value(CallSink& sink) {
  place_ = Place::kNext;
  if (streaming_) {
    streaming_ = false;
    arguments_ = "{}";  // told already
    return;
  }
  const auto value = parse_json(text_);
  text_.clear();
  if (!value) {
    fail();
    return;
  }
  bool fine = true;
  if (key_ == "name" && name_.empty()) {
    name_ = value->as_string();
  } else if (holds_arguments(key_)) {
    arguments_ = object_text(*value);
    fine = !arguments_.empty();
  } else if (key_ == "function" && value->is_object()) {
    fine = take_call(*value);
  } else if (key_ == "function" && name_.empty()) {
    name_ = value->as_string();
  }
  if (!fine) fail();
  (void)sink;
}

bool CallObject::take_call(const JsonValue& function) {
  if (const JsonValue* name = function.find("name")) name_ = name->as_string();
  for (const char* key : {"arguments", "parameters"}) {
    const JsonValue* arguments = function.find(key);
    if (arguments != nullptr) arguments_ = object_text(*arguments);
  }
  return true;
}

void CallObject::close(CallSink& sink) {
  const bool told = sink.in_call();
  const bool call =
      !name_.empty() && (!offered_only_ || (sink.tools().knows(name_) && !arguments_.empty()));
  if (!call) {
    fail();
    return;
  }
  if (!told) {
    sink.begin_call(name_);
    sink.arguments(arguments_.empty() ? "{}" : arguments_);
  }
  sink.end_call();
  state_ = JsonStream::State::kDone;
}

void ArgumentsWriter::begin(CallSink& sink, std::string name) {
  keys_.clear();
  parameters_ = sink.tools().parameters(name);
  sink.begin_call(std::move(name));
}

bool ArgumentsWriter::has(std::string_view name) const {
  return std::ranges::find(keys_, name) != keys_.end();
}

bool ArgumentsWriter::key(CallSink& sink, const std::string& name) {
  ignored_ = has(name);
  if (ignored_) return false;
  std::string text = keys_.empty() ? "{" : ",";
  append_json_string(text, name);
  sink.arguments(text += ':');
  keys_.push_back(name);
  return true;
}

void ArgumentsWriter::value(CallSink& sink, std::string_view json) {
  if (!ignored_) sink.arguments(json);
}

void ArgumentsWriter::begin_text(CallSink& sink) { value(sink, "\""); }

void ArgumentsWriter::text(CallSink& sink, std::string_view raw) {
  std::string escaped;
  append_json_text(escaped, raw);
  value(sink, escaped);
}

void ArgumentsWriter::end_text(CallSink& sink) { value(sink, "\""); }

void ArgumentsWriter::end(CallSink& sink) {
  sink.arguments(keys_.empty() ? "{}" : "}");
  sink.end_call();
}

void RawValue::begin(CallSink& sink, ArgumentsWriter& to, const std::string& key,
                     ArgumentTypes types) {
  types_ = types;
  raw_.clear();
  to.key(sink, key);
  if (types_.only_string()) to.begin_text(sink);
}

void RawValue::add(CallSink& sink, ArgumentsWriter& to, std::string_view raw) {
  if (types_.only_string()) {
    to.text(sink, raw);
  } else {
    raw_ += raw;
  }
}

void RawValue::end(CallSink& sink, ArgumentsWriter& to) {
  if (types_.only_string()) {
    to.end_text(sink);
  } else {
    to.value(sink, argument_json(raw_, types_));
  }
}

}  // namespace tandem::api
