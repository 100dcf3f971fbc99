// A small MessagePack writer and a bounded reader
// (https://github.com/msgpack/msgpack/blob/master/spec.md): nil, booleans, integers, floating point
// numbers, strings, binary, arrays, maps; extensions can be skipped. The reader never allocates
// more than the input is long and never reads outside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tandem::protocol {

class MsgpackWriter {
 public:
  void nil();
  void unsigned_integer(uint64_t value);
  void integer(int64_t value);
  void real(double value);
  void boolean(bool value);
  void string(std::string_view text);
  void binary(std::span<const std::byte> bytes);
  void array(size_t count);
  void map(size_t count);
  void raw(std::string_view encoded) { out_ += encoded; }  // values that are encoded already
  size_t size() const { return out_.size(); }
  std::string take() { return std::move(out_); }

 private:
  void head(uint8_t type, uint64_t value, int bytes);
  std::string out_;
};

// Every call returns false (and the reader stays failed) when the next value is of another kind or
// cut short.
class MsgpackReader {
 public:
  enum class Kind : uint8_t {
    kEnd,  // no value: the end, or failed
    kNil,
    kBoolean,
    kInteger,
    kReal,
    kString,
    kBinary,
    kArray,
    kMap,
    kExtension,
  };
  explicit MsgpackReader(std::string_view bytes) : bytes_(bytes) {}
  Kind kind() const;  // of the next value
  bool nil();
  bool unsigned_integer(uint64_t& value);
  bool integer(int64_t& value);
  bool any_integer(uint64_t& value);  // signed ones as their two's complement
  bool real(double& value);           // integers too
  bool boolean(bool& value);
  bool string(std::string_view& text);
  bool binary(std::string_view& bytes);
  bool array(size_t& count);  // count <= remaining bytes
  bool map(size_t& count);
  bool skip();                            // one whole value, nested to at most 16 levels
  bool whole(std::string_view& encoded);  // as skip(); its bytes
  bool at_end() const { return ok_ && at_ == bytes_.size(); }
  bool ok() const { return ok_; }

 private:
  bool fail();
  bool take(size_t count, std::string_view& out);
  bool big_endian(int bytes, uint64_t& value);
  bool peek(uint8_t& type);
  bool skip_extension();
  bool skip_value(int depth);

  std::string_view bytes_;
  size_t at_ = 0;
  bool ok_ = true;
};

}  // namespace tandem::protocol
