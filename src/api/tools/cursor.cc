#include "api/tools/cursor.h"

#include <algorithm>
#include <utility>

namespace tandem::api {

void Cursor::append(std::string_view text, std::span<const protocol::TokenMark> marks) {
  if (head_ > 4096 && head_ * 2 > text_.size()) {
    text_.erase(0, head_);
    head_ = 0;
  }
  const size_t begin = taken_ + size();
  for (const protocol::TokenMark& mark : marks) marks_.push_back({begin + mark.offset, mark.token});
  text_ += text;
}

void Cursor::drop(size_t bytes) {
  bytes = std::min(bytes, size());
  if (recording_) recorded_ += rest().substr(0, bytes);
  head_ += bytes;
  taken_ += bytes;
  while (!marks_.empty() && marks_.front().offset < taken_) marks_.pop_front();
}

std::string Cursor::take(size_t bytes) {
  std::string out(rest().substr(0, bytes));
  drop(bytes);
  return out;
}

void Cursor::skip(size_t bytes) { drop(bytes); }

std::string Cursor::stop_recording() {
  recording_ = false;
  return std::exchange(recorded_, {});
}

int32_t Cursor::token_at(size_t offset) const {
  const size_t place = taken_ + offset;
  const auto found = std::ranges::lower_bound(marks_, place, {}, &Place::offset);
  return found != marks_.end() && found->offset == place ? found->token : -1;
}

Cursor::Match Cursor::at(const Marker& marker, size_t offset) const {
  const std::string_view text = rest().substr(std::min(offset, size()));
  if (marker.token >= 0) {
    if (text.empty()) return ended_ ? Match::kNo : Match::kMaybe;
    if (token_at(offset) != marker.token) return Match::kNo;
    return text.size() < marker.spelling.size() && !ended_ ? Match::kMaybe : Match::kYes;
  }
  const size_t length = std::min(text.size(), marker.spelling.size());
  if (text.substr(0, length) != std::string_view(marker.spelling).substr(0, length))
    return Match::kNo;
  if (length == marker.spelling.size()) return Match::kYes;
  return ended_ ? Match::kNo : Match::kMaybe;
}

Cursor::Found Cursor::find(std::span<const Marker* const> markers, size_t from) const {
  const std::string_view text = rest();
  for (size_t i = from; i < text.size(); ++i) {
    for (const Marker* marker : markers) {
      if (text[i] != marker->spelling[0]) continue;
      const Match match = at(*marker, i);
      if (match != Match::kNo) return {match, i, marker};
    }
  }
  return {Match::kNo, text.size(), nullptr};
}

size_t Cursor::spaces(size_t from) const {
  const std::string_view text = rest();
  while (from < text.size() &&
         (text[from] == ' ' || text[from] == '\n' || text[from] == '\r' || text[from] == '\t'))
    ++from;
  return std::min(from, text.size());
}

}  // namespace tandem::api
