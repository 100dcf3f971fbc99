// ChunkDecoder: takes the chunked transfer coding apart (RFC 9112 §7.1), strictly: two readers that
// disagree about where a body ends are how requests are smuggled. Pure; one message, then reset().
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::net {

class ChunkDecoder {
 public:
  enum class Outcome { kMore, kDone, kMalformed, kTooLarge, kTrailersTooLarge };

  // `data_limit`: bytes of all chunks; `trailer_limit`: bytes of the trailer section, which is
  // checked and dropped.
  ChunkDecoder(uint64_t data_limit, size_t trailer_limit)
      : data_limit_(data_limit), trailer_limit_(trailer_limit) {}

  void reset();
  // Takes bytes, appends data to `out` and returns how many were used. Stops at the end and at an
  // error.
  size_t feed(std::string_view bytes, std::string& out);
  Outcome outcome() const { return outcome_; }

 private:
  enum class State {
    kSizeStart,  // the first digit
    kSize,
    kSizeSpace,
    kExtension,
    kSizeLf,
    kData,
    kDataCr,
    kDataLf,
    kTrailerStart,
    kTrailer,
    kTrailerLf,
    kLastLf,
  };
  void take(char c);
  void malformed() { outcome_ = Outcome::kMalformed; }
  void size_digit(char c);
  void end_of_size_line();

  uint64_t data_limit_;
  size_t trailer_limit_;
  State state_ = State::kSizeStart;
  Outcome outcome_ = Outcome::kMore;
  uint64_t left_ = 0;       // of the chunk
  uint64_t total_ = 0;      // data so far
  size_t line_bytes_ = 0;   // of a size line
  size_t extra_bytes_ = 0;  // trailers
};

}  // namespace tandem::net
