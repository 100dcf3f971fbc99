#include "eval/scoring.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace tandem::eval {
namespace {

bool digit(char c) { return c >= '0' && c <= '9'; }

// The number that begins at `at` and where it ends, or nothing. Commas count only before exactly
// three digits, so that "1, 2" and "3,14159" are not one number.
struct Number {
  std::string text;
  size_t end = 0;
};

std::optional<Number> number_at(std::string_view text, size_t at) {
  Number out;
  size_t i = at;
  if (i < text.size() && (text[i] == '-' || text[i] == '+')) {
    if (text[i] == '-') out.text = "-";
    ++i;
  }
  if (i < text.size() && text[i] == '$') ++i;
  const size_t first = i;
  while (i < text.size()) {
    const bool group = text[i] == ',' && i > first && i + 3 < text.size() && digit(text[i + 1]) &&
                       digit(text[i + 2]) && digit(text[i + 3]) &&
                       (i + 4 >= text.size() || !digit(text[i + 4]));
    if (!digit(text[i]) && !group) break;
    if (!group) out.text += text[i];
    ++i;
  }
  const bool whole = i > first;
  if (i + 1 < text.size() && text[i] == '.' && digit(text[i + 1])) {
    if (!whole) out.text += '0';
    out.text += '.';
    for (++i; i < text.size() && digit(text[i]); ++i) out.text += text[i];
  } else if (!whole) {
    return std::nullopt;
  }
  out.end = i;
  return out;
}

std::string canonical(std::string number) {
  const bool negative = number.starts_with('-');
  if (negative) number.erase(0, 1);
  if (number.find('.') != std::string::npos) {
    number.erase(number.find_last_not_of('0') + 1);
    if (number.ends_with('.')) number.pop_back();
  }
  number.erase(0, std::min(number.find_first_not_of('0'), number.size()));
  if (number.empty() || number.starts_with('.')) number.insert(0, "0");
  return negative && number != "0" ? "-" + number : number;
}

// A sign belongs to a number only when nothing that could be subtracted stands before it.
bool sign_counts(std::string_view text, size_t at) {
  if (at == 0) return true;
  const char before = text[at - 1];
  return !digit(before) && before != ')' && before != '%' && !(before >= 'a' && before <= 'z') &&
         !(before >= 'A' && before <= 'Z');
}

std::optional<Number> next_number(std::string_view text, size_t from) {
  for (size_t i = from; i < text.size(); ++i) {
    const char c = text[i];
    const bool sign = c == '-' || c == '+';
    if (!digit(c) && !sign && c != '$' && c != '.') continue;
    if (sign && !sign_counts(text, i)) continue;
    if (auto number = number_at(text, i)) return number;
  }
  return std::nullopt;
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

}  // namespace

std::string final_answer(std::string_view text) {
  constexpr std::string_view kMark = "####";
  if (const size_t mark = text.find(kMark); mark != std::string_view::npos) {
    std::string_view line = trim(text.substr(mark + kMark.size()));
    line = trim(line.substr(0, line.find('\n')));
    if (const auto number = next_number(line, 0)) return canonical(number->text);
    return std::string(line);
  }
  std::string last;
  size_t at = 0;
  while (const auto number = next_number(text, at)) {
    last = canonical(number->text);
    at = number->end;
  }
  return last;
}

Interval wilson_interval(size_t right, size_t total) {
  if (total == 0) return {};
  constexpr double kZ = 1.959963984540054;
  const auto n = static_cast<double>(total);
  const double share = static_cast<double>(right) / n;
  const double scale = 1 + kZ * kZ / n;
  const double middle = (share + kZ * kZ / (2 * n)) / scale;
  const double half = kZ / scale * std::sqrt(share * (1 - share) / n + kZ * kZ / (4 * n * n));
  return {std::max(0.0, middle - half), std::min(1.0, middle + half)};
}

double percentile(std::span<const double> sorted, double share) {
  if (sorted.empty()) return 0;
  const double rank = std::clamp(share, 0.0, 1.0) * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(rank);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (rank - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

}  // namespace tandem::eval
