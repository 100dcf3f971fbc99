// JsonStream: one JSON value, in any cuts, to its canonical spelling while it arrives: compact, no
// needless escapes. Knows where the value ends, so a marker's letters inside a string are text.
// Lenient where models are: raw control characters in strings, escapes that JSON lacks.
// One owner; at most kJsonMaxDepth levels.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::api {

class JsonStream {
 public:
  enum class State : uint8_t { kMore, kDone, kBad };

  // Reads from the front of `text`; `used` gets how much of it belongs to the value. A number ends
  // only with the byte behind it, so a value that is one needs finish().
  State push(std::string_view text, size_t& used, std::string& out);
  // The text ends here.
  State finish(std::string& out);
  State state() const { return state_; }

 private:
  enum class Expect : uint8_t { kValue, kFirstItem, kFirstKey, kKey, kColon, kNext };

  bool feed(char c, std::string& out);  // false: the byte is not part of the value
  void begin_value(char c, std::string& out);
  void end_value();
  void close(char c, std::string& out);
  void in_string(char c, std::string& out);
  void escape(char c, std::string& out);
  void hex(char c, std::string& out);
  void flush_surrogate(std::string& out);
  void end_word(std::string& out);

  State state_ = State::kMore;
  Expect expect_ = Expect::kValue;
  std::string stack_;  // '{' and '['
  bool string_ = false;
  bool key_ = false;  // the string is a key
  bool escaped_ = false;
  int hex_left_ = 0;
  uint32_t code_ = 0;
  uint32_t high_ = 0;  // a high surrogate that waits for its low one
  std::string word_;   // of a number or literal
};

// Appends text as the inside of a JSON string.
void append_json_text(std::string& out, std::string_view text);

}  // namespace tandem::api
