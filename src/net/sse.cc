#include "net/sse.h"

namespace tandem::net {

namespace {

// Calls `visit` with each line of a frame, endings removed.
template <typename Visit>
void for_each_line(std::string_view raw, Visit visit) {
  size_t begin = 0;
  while (begin < raw.size()) {
    const size_t end = raw.find_first_of("\r\n", begin);
    visit(raw.substr(begin, end == std::string_view::npos ? std::string_view::npos : end - begin));
    if (end == std::string_view::npos) break;
    begin = end + 1;
    if (raw[end] == '\r' && begin < raw.size() && raw[begin] == '\n') ++begin;
  }
}

void read_data(SseFrame& frame) {
  for_each_line(frame.raw, [&](std::string_view line) {
    if (line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
    if (!line.starts_with("data")) return;
    line.remove_prefix(4);
    if (line.starts_with(":")) {
      line.remove_prefix(1);
      if (line.starts_with(" ")) line.remove_prefix(1);
    } else if (!line.empty()) {
      return;  // another field's name
    }
    if (frame.has_data) frame.data += '\n';
    frame.has_data = true;
    frame.data.append(line);
  });
}

}  // namespace

Status SseFramer::feed(std::string_view bytes) {
  if (begin_ > 0 && (begin_ == buffer_.size() || begin_ >= 64UL << 10)) {
    buffer_.erase(0, begin_);
    scan_ -= begin_;
    line_start_ -= begin_;
    begin_ = 0;
  }
  // What is left after the caller drained next() is one unfinished frame: the bound holds to within
  // one feed.
  if (buffered() > limit_) {
    return make_error(502, "sse_frame_too_large", "an event of the upstream's stream is too large");
  }
  buffer_.append(bytes);
  return {};
}

std::optional<SseFrame> SseFramer::next() {
  while (scan_ < buffer_.size()) {
    if (after_cr_) {
      after_cr_ = false;
      if (buffer_[scan_] == '\n') {
        line_start_ = ++scan_;
        continue;
      }
    }
    const size_t end = buffer_.find_first_of("\r\n", scan_);
    if (end == std::string::npos) {
      scan_ = buffer_.size();
      return std::nullopt;
    }
    const bool blank = end == line_start_;
    scan_ = end + 1;
    if (buffer_[end] == '\r') {
      if (scan_ == buffer_.size()) {
        after_cr_ = true;
      } else if (buffer_[scan_] == '\n') {
        ++scan_;
      }
    }
    line_start_ = scan_;
    if (!blank) continue;
    SseFrame frame;
    frame.raw = buffer_.substr(begin_, scan_ - begin_);
    begin_ = scan_;
    read_data(frame);
    return frame;
  }
  return std::nullopt;
}

std::string SseFramer::take_rest() {
  std::string rest = buffer_.substr(begin_);
  buffer_.clear();
  begin_ = scan_ = line_start_ = 0;
  after_cr_ = false;
  return rest;
}

}  // namespace tandem::net
