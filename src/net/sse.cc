#include "net/sse.h"

#include <cstring>
#include <utility>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace tandem::net {

namespace {

// The first CR or LF from `from` on.
size_t end_of_line(std::string_view text, size_t from) {
#if defined(__SSE2__)
  const __m128i carriages = _mm_set1_epi8('\r');
  const __m128i feeds = _mm_set1_epi8('\n');
  for (; from + 16 <= text.size(); from += 16) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(text.data() + from));
    const int found = _mm_movemask_epi8(
        _mm_or_si128(_mm_cmpeq_epi8(bytes, carriages), _mm_cmpeq_epi8(bytes, feeds)));
    if (found != 0) return from + static_cast<size_t>(__builtin_ctz(static_cast<unsigned>(found)));
  }
#endif
  const size_t feed = text.find('\n', from);
  const size_t end = feed == std::string_view::npos ? text.size() : feed;
  const void* const carriage = std::memchr(text.data() + from, '\r', end - from);
  if (carriage == nullptr) return feed;
  return static_cast<size_t>(static_cast<const char*>(carriage) - text.data());
}

// Calls `visit` with each line of a frame, endings removed.
template <typename Visit>
void for_each_line(std::string_view raw, Visit visit) {
  size_t begin = 0;
  while (begin < raw.size()) {
    const size_t end = end_of_line(raw, begin);
    visit(raw.substr(begin, end == std::string_view::npos ? std::string_view::npos : end - begin));
    if (end == std::string_view::npos) break;
    begin = end + 1;
    if (raw[end] == '\r' && begin < raw.size() && raw[begin] == '\n') ++begin;
  }
}

// A line's data, if it is a data line.
std::optional<std::string_view> data_of(std::string_view line) {
  if (line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
  if (!line.starts_with("data")) return std::nullopt;
  line.remove_prefix(4);
  if (line.starts_with(":")) {
    line.remove_prefix(1);
    if (line.starts_with(" ")) line.remove_prefix(1);
  } else if (!line.empty()) {
    return std::nullopt;  // another field's name
  }
  return line;
}

void read_data(SseView& frame, std::string& joined) {
  size_t lines = 0;
  for_each_line(frame.raw, [&](std::string_view line) {
    const auto data = data_of(line);
    if (!data) return;
    frame.has_data = true;
    if (++lines == 1) {
      frame.data = *data;
      return;
    }
    if (lines == 2) joined.assign(frame.data);
    joined += '\n';
    joined.append(*data);
  });
  if (lines > 1) frame.data = joined;
}

}  // namespace

void SseFramer::drop_taken() {
  buffer_.erase(0, begin_);
  scan_ -= begin_;
  line_start_ -= begin_;
  if (first_end_ > 0) {
    first_end_ -= begin_;
    second_line_ -= begin_;
  }
  begin_ = 0;
}

void SseFramer::trim() {
  drop_taken();
  joined_ = std::string();
  if (buffer_.capacity() > 2 * buffer_.size() + 512) buffer_.shrink_to_fit();
}

Status SseFramer::take(std::string bytes) {
  if (begin_ > 0 && (begin_ == buffer_.size() || begin_ >= 64UL << 10)) drop_taken();
  // What is left after the caller drained next() is one unfinished frame: the bound holds to within
  // one feed.
  if (buffered() > limit_) {
    return make_error(502, "sse_frame_too_large", "an event of the upstream's stream is too large");
  }
  if (buffer_.empty()) {
    buffer_ = std::move(bytes);
  } else {
    buffer_.append(bytes);
  }
  return {};
}

std::optional<SseFrame> SseFramer::next() {
  const auto view = next_view();
  if (!view) return std::nullopt;
  return SseFrame{std::string(view->raw), std::string(view->data), view->has_data};
}

std::optional<SseView> SseFramer::next_view() {
  while (scan_ < buffer_.size()) {
    if (after_cr_) {
      after_cr_ = false;
      if (buffer_[scan_] == '\n') {
        line_start_ = ++scan_;
        continue;
      }
    }
    const size_t end = end_of_line(buffer_, scan_);
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
    if (!blank) {
      if (first_end_ == 0) {
        first_end_ = end;
        second_line_ = scan_;
      }
      continue;
    }
    SseView frame;
    frame.raw = std::string_view(buffer_).substr(begin_, scan_ - begin_);
    // Nearly always one line of data.
    const bool lone = first_end_ > begin_ && second_line_ == end;
    std::optional<std::string_view> data;
    if (lone) data = data_of(std::string_view(buffer_).substr(begin_, first_end_ - begin_));
    begin_ = scan_;
    first_end_ = 0;
    if (data) {
      frame.has_data = true;
      frame.data = *data;
    } else {
      read_data(frame, joined_);
    }
    return frame;
  }
  return std::nullopt;
}

std::string SseFramer::take_rest() {
  std::string rest = buffer_.substr(begin_);
  buffer_.clear();
  begin_ = scan_ = line_start_ = first_end_ = second_line_ = 0;
  after_cr_ = false;
  return rest;
}

}  // namespace tandem::net
