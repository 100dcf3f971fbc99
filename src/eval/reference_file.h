// The file of a reference run: for each scored position the likeliest tokens with their
// log-probabilities, the mass of the rest, and what followed.
//
//   "TDMREF01" | u32 length, JSON header | for each window: u32 index, u32 length, payload, u64
//   XXH3 payload, for each position: logprob of what followed | varint likeliest token |
//                               varint count | count x (varint distance from the token before,
//                               logprob) | logprob of all other tokens together (unless count is
//                               the vocabulary)
//
// Integers are little-endian, varints LEB128. A logprob takes 3 bytes in steps of 2^-19 nats, down
// to -32 nats: it is off by at most 1e-6 nats. A file whose last window is torn is good up to it.
#pragma once

#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "base/json_value.h"
#include "base/result.h"

namespace tandem::eval {

struct ReferencePosition {
  double target_logprob = 0;
  int32_t likeliest = 0;
  std::vector<int32_t> tokens;   // ascending
  std::vector<double> logprobs;  // of tokens
  double rest_logprob = 0;       // minus infinity when `tokens` are all
};

// The `top` likeliest tokens of a position (0 or at least the vocabulary: all; lowest ids on ties).
ReferencePosition reference_position(std::span<const float> logits, int32_t target, int32_t top);

std::string encode_positions(std::span<const ReferencePosition> positions, int32_t vocab);
// Checks every length and id. Errors: 400 "invalid_reference".
Result<std::vector<ReferencePosition>> decode_positions(std::string_view payload, int32_t vocab,
                                                        size_t count);

class ReferenceWriter {
 public:
  // A new file, or one with the same header to go on with: its whole windows are kept, a torn one
  // is cut off. A file with another header is refused.
  static Result<ReferenceWriter> open(const std::string& path, const JsonValue& header);
  size_t windows() const { return windows_; }  // already there
  Status append(std::string_view payload);

 private:
  std::string path_;
  std::ofstream out_;
  size_t windows_ = 0;
};

class ReferenceReader {
 public:
  static Result<ReferenceReader> open(const std::string& path);
  const JsonValue& header() const { return header_; }
  size_t windows() const { return offsets_.size(); }
  uint64_t end() const { return end_; }  // bytes up to the last whole window
  Result<std::string> payload(size_t window);

 private:
  std::string path_;
  std::ifstream in_;
  JsonValue header_;
  std::vector<uint64_t> offsets_;
  uint64_t end_ = 0;
};

}  // namespace tandem::eval
