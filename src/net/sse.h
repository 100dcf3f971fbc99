// Server-sent events: cuts a byte stream into frames at any split, byte-exact.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tandem::net {

// `raw` is every byte of the frame, its blank line included; concatenating the raw of all frames
// and take_rest() gives the input back. `data` is the data lines joined by '\n' (empty for comments
// and other fields).
struct SseFrame {
  std::string raw;
  std::string data;
  bool has_data = false;
  bool done() const { return has_data && data == "[DONE]"; }
};

// The same without copies: `raw` lies in the framer's buffer and is good until the next feed();
// `data` until the next frame is asked for.
struct SseView {
  std::string_view raw;
  std::string_view data;
  bool has_data = false;
  bool done() const { return has_data && data == "[DONE]"; }
};

// Lines end with LF, CRLF or CR. A CR that ends a frame closes it at once; an LF that then follows
// belongs to the next frame's raw bytes, so a frame never waits for one more byte.
class SseFramer {
 public:
  explicit SseFramer(size_t max_frame_bytes = 8ULL << 20) : limit_(max_frame_bytes) {}

  // Takes bytes; error 502 "sse_frame_too_large" when a frame outgrew the bound. Call next() until
  // it gives nothing between two feeds.
  Status feed(std::string_view bytes) { return take(std::string(bytes)); }
  Status take(std::string bytes);  // the same without a copy, where nothing is left over
  // The next whole frame, or nothing.
  std::optional<SseView> next_view();
  std::optional<SseFrame> next();
  // At the stream's end: bytes after the last whole frame.
  std::string take_rest();
  size_t buffered() const { return buffer_.size() - begin_; }
  // Gives memory back that frames which were taken no longer need; their views end.
  void trim();

 private:
  void drop_taken();

  std::string buffer_;
  std::string joined_;  // data of several lines
  size_t limit_;
  size_t begin_ = 0;        // start of the frame being read
  size_t scan_ = 0;         // first byte not yet looked at
  size_t line_start_ = 0;   // start of the line being read
  size_t first_end_ = 0;    // of that frame's first line, once it is read
  size_t second_line_ = 0;  // where the line behind it starts
  bool after_cr_ = false;   // the byte before scan_ was a CR
};

}  // namespace tandem::net
