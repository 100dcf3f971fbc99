// What a generated text is worth: the final answer in it, shares with confidence intervals.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace tandem::eval {

// The final answer of a GSM8K-style solution: the number that follows the first "####"; without
// one, the last number of the text. Numbers in canonical form: no thousands separators, no plus
// sign, no useless zeros ("1,200.50" is "1200.5"). When "####" is followed by no number, the rest
// of that line, trimmed. Empty when the text holds no answer.
std::string final_answer(std::string_view text);

struct Interval {
  double low = 0;
  double high = 1;
};
// The Wilson score interval of a share at 95 % (E. B. Wilson 1927); [0, 1] for no items.
Interval wilson_interval(size_t right, size_t total);

// The value below which `share` (0..1) of the values lie, by linear interpolation between ranks;
// `sorted` ascending; 0 when empty.
double percentile(std::span<const double> sorted, double share);

}  // namespace tandem::eval
