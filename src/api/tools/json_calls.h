// Pieces that families with JSON calls share.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api/tools/call_sink.h"
#include "api/tools/json_stream.h"

namespace tandem::api {

// {"name": NAME, "arguments": {...}} in any cuts; also "parameters", a name under "function", the
// whole under "function", arguments as a string of JSON. `offered_only`: only what names an offered
// function is a call, and an object that begins with another key is none at once.
class CallObject {
 public:
  explicit CallObject(bool offered_only) : offered_only_(offered_only) {}
  JsonStream::State push(std::string_view text, size_t& used, CallSink& sink);

 private:
  enum class Place : uint8_t { kOpen, kFirstKey, kKey, kColon, kValue, kNext };

  bool feed_structure(char c, CallSink& sink);
  void end_key();
  void end_value(CallSink& sink);
  bool take_call(const JsonValue& function);
  void close(CallSink& sink);
  JsonStream::State fail() { return state_ = JsonStream::State::kBad; }

  bool offered_only_;
  JsonStream::State state_ = JsonStream::State::kMore;
  Place place_ = Place::kOpen;
  JsonStream stream_;
  std::string text_;  // of the key or value being read
  std::string key_;
  std::string name_;
  std::string arguments_;
  bool may_stream_ = false;  // ... if they turn out to be an object
  bool streaming_ = false;   // the arguments go to the sink as they come
};

// The arguments of a call whose format is not JSON, put together one by one.
class ArgumentsWriter {
 public:
  void begin(CallSink& sink, std::string name);
  // False: the key was there already, its value is to be ignored.
  bool key(CallSink& sink, const std::string& name);
  bool has(std::string_view name) const;
  void value(CallSink& sink, std::string_view json);
  // A string in pieces.
  void begin_text(CallSink& sink);
  void text(CallSink& sink, std::string_view raw);
  void end_text(CallSink& sink);
  void end(CallSink& sink);
  const JsonValue* parameters() const { return parameters_; }

 private:
  std::vector<std::string> keys_;
  const JsonValue* parameters_ = nullptr;
  bool ignored_ = false;
};

// One value as raw text: streamed when its type can only be a string, else read when it is whole.
class RawValue {
 public:
  void begin(CallSink& sink, ArgumentsWriter& to, const std::string& key, ArgumentTypes types);
  void add(CallSink& sink, ArgumentsWriter& to, std::string_view raw);
  void end(CallSink& sink, ArgumentsWriter& to);

 private:
  ArgumentTypes types_;
  std::string raw_;
};

}  // namespace tandem::api
