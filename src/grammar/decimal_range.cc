#include "grammar/decimal_range.h"

#include <algorithm>

namespace tandem::grammar {
namespace {

constexpr int kMostShift = 400;

RegexId digit_range(RegexStore& store, char first, char last) {
  if (first > last) return kNoMatch;
  return store.bytes(ByteSet::range(static_cast<uint8_t>(first), static_cast<uint8_t>(last)));
}
RegexId digits(RegexStore& store, uint32_t min, uint32_t max) {
  return store.repeat(digit_range(store, '0', '9'), min, max);
}
RegexId one(RegexStore& store, char c) { return digit_range(store, c, c); }

// Texts of as many digits as `low`, at least it.
RegexId same_length_from(RegexStore& store, std::string_view low) {
  RegexId out = kEpsilon;
  for (size_t i = low.size(); i-- > 0;) {
    const auto rest = static_cast<uint32_t>(low.size() - i - 1);
    out = store.either({store.concat(one(store, low[i]), out),
                        store.concat(digit_range(store, static_cast<char>(low[i] + 1), '9'),
                                     digits(store, rest, rest))});
  }
  return out;
}
RegexId same_length_to(RegexStore& store, std::string_view high) {
  RegexId out = kEpsilon;
  for (size_t i = high.size(); i-- > 0;) {
    const auto rest = static_cast<uint32_t>(high.size() - i - 1);
    out = store.either({store.concat(one(store, high[i]), out),
                        store.concat(digit_range(store, '0', static_cast<char>(high[i] - 1)),
                                     digits(store, rest, rest))});
  }
  return out;
}
RegexId same_length(RegexStore& store, std::string_view low, std::string_view high) {
  size_t common = 0;
  while (common < low.size() && low[common] == high[common]) ++common;
  if (common == low.size()) return store.literal(low);
  const auto rest = static_cast<uint32_t>(low.size() - common - 1);
  const RegexId differs = store.either(
      {store.concat(one(store, low[common]), same_length_from(store, low.substr(common + 1))),
       store.concat(digit_range(store, static_cast<char>(low[common] + 1),
                                static_cast<char>(high[common] - 1)),
                    digits(store, rest, rest)),
       store.concat(one(store, high[common]), same_length_to(store, high.substr(common + 1)))});
  return store.concat(store.literal(low.substr(0, common)), differs);
}

int compare_whole(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
  return a.compare(b);
}

// Whole numbers without needless zeros between two, both included.
RegexId whole_range(RegexStore& store, const std::string& low, const std::string& high) {
  if (compare_whole(low, high) > 0) return kNoMatch;
  std::vector<RegexId> parts;
  for (size_t size = low.size(); size <= high.size(); ++size) {
    const std::string from = size == low.size() ? low : "1" + std::string(size - 1, '0');
    const std::string to = size == high.size() ? high : std::string(size, '9');
    if (compare_whole(from, to) <= 0) parts.push_back(same_length(store, from, to));
  }
  return store.either(parts);
}

std::string plus_one(std::string value) {
  size_t at = value.size();
  while (at > 0 && value[at - 1] == '9') value[--at] = '0';
  if (at == 0) return "1" + value;
  ++value[at - 1];
  return value;
}
std::string minus_one(std::string value) {  // of at least one
  size_t at = value.size();
  while (value[at - 1] == '0') value[--at] = '9';
  --value[at - 1];
  if (value.size() > 1 && value.front() == '0') value.erase(0, 1);
  return value;
}

std::string largest_whole(const std::string& at_least) {
  return std::string(std::max<size_t>(kMostDigits, at_least.size() + 1), '9');
}

// The magnitudes that are allowed: 0 or more, with optional ends.
struct Magnitudes {
  Bound low;
  std::optional<Bound> high;
};

RegexId whole_magnitudes(RegexStore& store, const Magnitudes& range) {
  std::string low = range.low.value.whole;
  if (!range.low.value.is_integer() || range.low.exclusive) low = plus_one(low);
  if (!range.high) return whole_range(store, low, largest_whole(low));
  std::string high = range.high->value.whole;
  if (range.high->value.is_integer() && range.high->exclusive) {
    if (high == "0") return kNoMatch;
    high = minus_one(high);
  }
  return whole_range(store, low, high);
}

RegexId any_fraction(RegexStore& store, uint32_t most) {
  return store.optional(store.concat(store.literal("."), digits(store, 1, most)));
}

RegexId at_least(RegexStore& store, const Bound& low, uint32_t most) {
  const std::string next = plus_one(low.value.whole);
  const RegexId above =
      store.concat(whole_range(store, next, largest_whole(next)), any_fraction(store, most));
  const std::string& fraction = low.value.fraction;
  const RegexId zeros = store.star(one(store, '0'));
  const RegexId more =
      store.concat({zeros, digit_range(store, '1', '9'), digits(store, 0, kUnbounded)});
  RegexId same = low.exclusive ? more : digits(store, 0, kUnbounded);
  for (size_t i = fraction.size(); i-- > 0;) {
    same = store.either({store.concat(one(store, fraction[i]), same),
                         store.concat(digit_range(store, static_cast<char>(fraction[i] + 1), '9'),
                                      digits(store, 0, kUnbounded))});
  }
  RegexId tail = store.concat(store.literal("."), same);
  if (fraction.empty() && !low.exclusive) tail = store.either({kEpsilon, tail});
  return store.either({above, store.concat(store.literal(low.value.whole), tail)});
}

RegexId at_most(RegexStore& store, const Bound& high, uint32_t most) {
  RegexId below = kNoMatch;
  if (high.value.whole != "0")
    below = store.concat(whole_range(store, "0", minus_one(high.value.whole)),
                         any_fraction(store, most));
  const std::string& fraction = high.value.fraction;
  RegexId same = high.exclusive ? kNoMatch : store.star(one(store, '0'));
  for (size_t i = fraction.size(); i-- > 0;) {
    same = store.either({store.concat(one(store, fraction[i]), same),
                         store.concat(digit_range(store, '0', static_cast<char>(fraction[i] - 1)),
                                      digits(store, 0, kUnbounded))});
    // Ending here is less than what follows.
    same = store.either({kEpsilon, same});
  }
  RegexId tail = store.concat(store.literal("."), same);
  if (!fraction.empty() || !high.exclusive) tail = store.either({kEpsilon, tail});
  return store.either({below, store.concat(store.literal(high.value.whole), tail)});
}

RegexId magnitudes(RegexStore& store, const Magnitudes& range) {
  size_t fraction = std::max<size_t>(kMostDigits, range.low.value.fraction.size() + 1);
  if (range.high) fraction = std::max(fraction, range.high->value.fraction.size() + 1);
  const auto most = static_cast<uint32_t>(fraction);
  const RegexId whole = whole_range(
      store, "0", largest_whole(range.high ? range.high->value.whole : range.low.value.whole));
  std::vector<RegexId> parts{store.concat(whole, any_fraction(store, most))};
  if (!range.low.value.is_zero() || range.low.exclusive)
    parts.push_back(at_least(store, range.low, most));
  if (range.high) parts.push_back(at_most(store, *range.high, most));
  return store.both(parts);
}

Bound mirrored(const Bound& bound) {
  Bound out = bound;
  out.value.negative = !bound.value.is_zero() && !bound.value.negative;
  return out;
}

// step * 10^scale as a whole number below 2^31.
std::optional<DecimalState> steps_of(const Decimal& step) {
  if (step.fraction.size() > 20 || step.whole.size() > 10) return std::nullopt;
  DecimalState out;
  out.scale = static_cast<uint8_t>(step.fraction.size());
  out.modulus = 0;
  for (const char c : step.whole + step.fraction) {
    out.modulus = out.modulus * 10 + static_cast<uint64_t>(c - '0');
    if (out.modulus > (uint64_t{1} << 31)) return std::nullopt;
  }
  if (out.modulus == 0) return std::nullopt;
  return out;
}

}  // namespace

std::string Decimal::text() const {
  return (negative ? "-" : "") + whole + (fraction.empty() ? "" : "." + fraction);
}

std::optional<Decimal> parse_decimal(std::string_view number) {
  Decimal out;
  out.negative = number.starts_with('-');
  if (out.negative) number.remove_prefix(1);
  const size_t mark = std::min(number.find_first_of("eE"), number.size());
  int shift = 0;
  if (mark < number.size()) {
    std::string_view exponent = number.substr(mark + 1);
    const bool down = exponent.starts_with('-');
    if (down || exponent.starts_with('+')) exponent.remove_prefix(1);
    for (const char c : exponent) shift = std::min(shift * 10 + (c - '0'), kMostShift + 1);
    if (shift > kMostShift) return std::nullopt;
    if (down) shift = -shift;
  }
  const std::string_view mantissa = number.substr(0, mark);
  const size_t point = std::min(mantissa.find('.'), mantissa.size());
  std::string all(mantissa.substr(0, point));
  if (point < mantissa.size()) all += mantissa.substr(point + 1);
  auto whole = static_cast<int64_t>(point) + shift;
  if (all.size() > size_t{kMostShift}) return std::nullopt;
  if (whole < 0) {
    all.insert(0, static_cast<size_t>(-whole), '0');
    whole = 0;
  }
  if (whole > static_cast<int64_t>(all.size()))
    all.append(static_cast<size_t>(whole) - all.size(), '0');
  out.whole = all.substr(0, static_cast<size_t>(whole));
  out.fraction = all.substr(static_cast<size_t>(whole));
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size()));
  if (out.whole.empty()) out.whole = "0";
  while (!out.fraction.empty() && out.fraction.back() == '0') out.fraction.pop_back();
  if (out.is_zero()) out.negative = false;
  return out;
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  int order = compare_whole(a.whole, b.whole);
  if (order == 0) order = a.fraction.compare(b.fraction);
  return a.negative ? -order : order;
}

bool obeys(const Decimal& value, const NumberRules& rules) {
  if (rules.integer && !value.is_integer()) return false;
  if (rules.lowest) {
    const int order = compare(value, rules.lowest->value);
    if (order < 0 || (order == 0 && rules.lowest->exclusive)) return false;
  }
  if (rules.highest) {
    const int order = compare(value, rules.highest->value);
    if (order > 0 || (order == 0 && rules.highest->exclusive)) return false;
  }
  for (const Decimal& step : rules.multiples) {
    const auto steps = steps_of(step);
    if (!steps) return false;
    if (value.fraction.size() > steps->scale) return false;
    uint64_t remainder = 0;
    for (const char c : value.whole + value.fraction)
      remainder = (remainder * 10 + static_cast<uint64_t>(c - '0')) % steps->modulus;
    for (size_t i = value.fraction.size(); i < steps->scale; ++i)
      remainder = remainder * 10 % steps->modulus;
    if (remainder != 0) return false;
  }
  return true;
}

std::optional<RegexId> number_regex(RegexStore& store, const NumberRules& rules) {
  const RegexId minus = store.literal("-");
  const bool free = !rules.lowest && !rules.highest && rules.multiples.empty();
  if (free && !rules.integer) {
    const RegexId exponent = store.concat(
        {store.bytes(ByteSet::of('e') | ByteSet::of('E')),
         store.optional(store.bytes(ByteSet::of('+') | ByteSet::of('-'))), digits(store, 1, 2)});
    const RegexId whole =
        store.either({one(store, '0'), store.concat(digit_range(store, '1', '9'),
                                                    digits(store, 0, kMostDigits - 1))});
    return store.concat(
        {store.optional(minus), whole, any_fraction(store, kMostDigits), store.optional(exponent)});
  }
  std::vector<RegexId> steps;
  for (const Decimal& step : rules.multiples) {
    const auto state = steps_of(step);
    if (!state) return std::nullopt;
    steps.push_back(store.decimal(*state));
  }
  const auto build = [&](const Magnitudes& range) {
    std::vector<RegexId> parts = steps;
    parts.push_back(rules.integer ? whole_magnitudes(store, range) : magnitudes(store, range));
    return store.both(parts);
  };
  std::vector<RegexId> out;
  if (!rules.highest || !rules.highest->value.negative) {
    Magnitudes range{{}, rules.highest};
    if (rules.lowest && !rules.lowest->value.negative) range.low = *rules.lowest;
    const bool none = range.high && (compare(range.low.value, range.high->value) > 0);
    if (!none) out.push_back(build(range));
  }
  if (!rules.lowest || rules.lowest->value.negative) {
    Magnitudes range{{{}, true}, std::nullopt};
    if (rules.highest && rules.highest->value.negative) range.low = mirrored(*rules.highest);
    if (rules.lowest) range.high = mirrored(*rules.lowest);
    const bool none = range.high && compare(range.low.value, range.high->value) > 0;
    if (!none) out.push_back(store.concat(minus, build(range)));
  }
  return store.either(out);
}

}  // namespace tandem::grammar
