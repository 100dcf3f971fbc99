#include "text/charsmap.h"

#include <cstring>

namespace tandem::text {

namespace {
constexpr size_t kMaxBytes = 16 << 20;
// Of one replacement; published maps have 33 at most. Longer ones are damage: text would explode.
constexpr size_t kMaxReplacement = 128;
// Meaning of a unit's bits in a darts-clone double array.
bool has_leaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t value(uint32_t unit) { return unit & 0x7FFFFFFF; }
uint32_t label(uint32_t unit) { return unit & 0x800000FF; }
uint32_t offset(uint32_t unit) { return unit >> 10 << ((unit & 0x200) >> 6); }
}  // namespace

Result<CharsMap> CharsMap::parse(std::string_view blob) {
  uint32_t bytes = 0;
  if (blob.size() >= 4) std::memcpy(&bytes, blob.data(), 4);
  if (blob.size() < 4 || blob.size() > kMaxBytes || bytes % 4 != 0 || bytes == 0 ||
      bytes > blob.size() - 4) {
    return make_error(400, "invalid_tokenizer", "the precompiled character map is damaged");
  }
  CharsMap map;
  map.units_.resize(bytes / 4);
  std::memcpy(map.units_.data(), blob.data() + 4, bytes);
  map.strings_ = blob.substr(4 + bytes);
  return map;
}

std::optional<CharsMap::Match> CharsMap::find(std::string_view text, bool longest) const {
  std::optional<Match> best;
  size_t at = offset(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte == 0) break;
    at ^= byte;
    if (at >= units_.size()) break;
    const uint32_t unit = units_[at];
    if (label(unit) != byte) break;
    at ^= offset(unit);
    if (!has_leaf(unit)) continue;
    if (at >= units_.size()) break;
    const uint32_t start = value(units_[at]);
    if (start >= strings_.size()) continue;
    const std::string_view stored = std::string_view(strings_).substr(start, kMaxReplacement + 1);
    const size_t size = stored.find('\0');
    if (size == std::string_view::npos) continue;
    best = {i + 1, stored.substr(0, size)};
    if (!longest) break;
  }
  return best;
}

}  // namespace tandem::text
