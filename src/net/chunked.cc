#include "net/chunked.h"

#include <algorithm>

namespace tandem::net {

namespace {

constexpr size_t kSizeLineBytes = 256;  // digits and extension: nobody needs more
constexpr int kNoDigit = -1;

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return kNoDigit;
}

bool is_control(char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f; }

}  // namespace

void ChunkDecoder::reset() { *this = ChunkDecoder(data_limit_, trailer_limit_); }

size_t ChunkDecoder::feed(std::string_view bytes, std::string& out) {
  size_t at = 0;
  while (at < bytes.size() && outcome_ == Outcome::kMore) {
    if (state_ != State::kData) {
      take(bytes[at++]);
      continue;
    }
    const auto step = static_cast<size_t>(std::min<uint64_t>(left_, bytes.size() - at));
    out.append(bytes.substr(at, step));
    at += step;
    left_ -= step;
    if (left_ == 0) state_ = State::kDataCr;
  }
  return at;
}

void ChunkDecoder::take(char c) {
  switch (state_) {
    case State::kSizeStart:
    case State::kSize:
    case State::kSizeSpace:
    case State::kExtension:
      return size_digit(c);
    case State::kSizeLf:
      return c == '\n' ? end_of_size_line() : malformed();
    case State::kDataCr:
      if (c != '\r') return malformed();
      state_ = State::kDataLf;
      return;
    case State::kDataLf:
      if (c != '\n') return malformed();
      state_ = State::kSizeStart;
      return;
    case State::kTrailerStart:
      if (c == '\r') {
        state_ = State::kLastLf;
        return;
      }
      state_ = State::kTrailer;
      [[fallthrough]];
    case State::kTrailer:
      if (++extra_bytes_ > trailer_limit_) {
        outcome_ = Outcome::kTrailersTooLarge;
      } else if (c == '\r') {
        state_ = State::kTrailerLf;
      } else if (is_control(c)) {
        malformed();
      }
      return;
    case State::kTrailerLf:
      if (c != '\n') return malformed();
      state_ = State::kTrailerStart;
      return;
    case State::kLastLf:
      outcome_ = c == '\n' ? Outcome::kDone : Outcome::kMalformed;
      return;
    case State::kData:
      return;
  }
}

void ChunkDecoder::size_digit(char c) {
  if (++line_bytes_ > kSizeLineBytes) return malformed();
  if (state_ == State::kSizeSpace) {  // only an extension or the end: "5 6" is read in two ways
    if (c == ';') {
      state_ = State::kExtension;
    } else if (c == '\r') {
      state_ = State::kSizeLf;
    } else if (c != ' ' && c != '\t') {
      malformed();
    }
    return;
  }
  if (state_ == State::kExtension) {
    if (c == '\r') {
      state_ = State::kSizeLf;
    } else if (is_control(c)) {
      malformed();
    }
    return;
  }
  const int digit = hex_digit(c);
  if (digit == kNoDigit) {
    if (state_ == State::kSizeStart) return malformed();
    if (c == '\r') {
      state_ = State::kSizeLf;
    } else if (c == ';') {
      state_ = State::kExtension;
    } else if (c == ' ' || c == '\t') {
      state_ = State::kSizeSpace;
    } else {
      malformed();
    }
    return;
  }
  if (left_ >> 59 != 0) return malformed();  // the next digit would not fit
  left_ = left_ << 4 | static_cast<uint64_t>(digit);
  state_ = State::kSize;
}

void ChunkDecoder::end_of_size_line() {
  line_bytes_ = 0;
  if (left_ == 0) {
    state_ = State::kTrailerStart;
    return;
  }
  if (left_ > data_limit_ - total_) {
    outcome_ = Outcome::kTooLarge;
    return;
  }
  total_ += left_;
  state_ = State::kData;
}

}  // namespace tandem::net
