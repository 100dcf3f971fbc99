#include "base/body_pieces.h"

#include <utility>

namespace tandem {

namespace {

// A piece more in a gathering write costs about what copying so many bytes does.
constexpr size_t kWorthSharing = 1024;
constexpr size_t kRoom = 240;

}  // namespace

void BodyPieces::append(std::string text) {
  if (text.empty()) return;
  size_ += text.size();
  if (pieces_.empty() || pieces_.back().shared != nullptr) {
    pieces_.emplace_back();
    pieces_.back().own = std::move(text);
  } else {
    pieces_.back().own += text;
  }
}

// What is added to grows by a few at a time, so it gets some room at first.
void BodyPieces::append_text(std::string_view text) {
  if (text.empty()) return;
  size_ += text.size();
  if (pieces_.empty() || pieces_.back().shared != nullptr) pieces_.emplace_back();
  std::string& own = pieces_.back().own;
  if (own.capacity() < kRoom && own.size() + text.size() > own.capacity()) own.reserve(kRoom);
  own += text;
}

void BodyPieces::append_slice(const std::shared_ptr<const std::string>& whole, size_t begin,
                              size_t end) {
  if (end - begin < kWorthSharing)
    return append_text(std::string_view(*whole).substr(begin, end - begin));
  size_ += end - begin;
  pieces_.push_back({whole, begin, end, {}});
}

std::vector<std::string_view> BodyPieces::views() const {
  std::vector<std::string_view> views;
  views.reserve(pieces_.size());
  for (const Piece& piece : pieces_) {
    views.push_back(
        piece.shared == nullptr
            ? std::string_view(piece.own)
            : std::string_view(*piece.shared).substr(piece.begin, piece.end - piece.begin));
  }
  return views;
}

std::string BodyPieces::str() const {
  std::string text;
  text.reserve(size_);
  for (const std::string_view view : views()) text += view;
  return text;
}

}  // namespace tandem
