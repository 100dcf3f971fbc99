// BodyPieces: bytes to send, in pieces. A leg's body is the client's own bytes with a few short
// edits: the long runs stay where they are, shared by all legs, and only what is short is copied.
//
// A value; copies share the long runs. Not to be changed by two threads at once.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

class BodyPieces {
 public:
  BodyPieces() = default;
  // A body that is one string; implicit, since most are.
  BodyPieces(std::string text) { append(std::move(text)); }         // NOLINT
  BodyPieces(std::string_view text) { append(std::string(text)); }  // NOLINT
  BodyPieces(const char* text) { append(std::string(text)); }       // NOLINT

  void reserve(size_t pieces) { pieces_.reserve(pieces); }
  void append(std::string text);
  void append_text(std::string_view text);  // the same, copied
  // Bytes [begin, end) of `whole`, which stays alive as long as any copy needs it and must not
  // change. Short ones are copied.
  void append_slice(const std::shared_ptr<const std::string>& whole, size_t begin, size_t end);

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  // Never empty ones; valid as long as this object is and is not changed.
  std::vector<std::string_view> views() const;
  std::string str() const;  // joined

  bool operator==(std::string_view text) const { return size_ == text.size() && str() == text; }

 private:
  struct Piece {
    std::shared_ptr<const std::string> shared;  // null: `own`
    size_t begin = 0;
    size_t end = 0;
    std::string own;
  };

  std::vector<Piece> pieces_;
  size_t size_ = 0;
};

}  // namespace tandem
