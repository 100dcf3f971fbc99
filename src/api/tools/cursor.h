// Cursor: what was generated and not understood yet: text, and where in it the tokens stand that
// mean something to the model's format. A marker that is one token of the vocabulary counts only
// where that token was generated: the same letters written out are text. One owner.
#pragma once

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/token_event.h"

namespace tandem::api {

struct Marker {
  std::string spelling;
  int32_t token = -1;  // its id; -1: the vocabulary has no such token, its letters are the marker
};

class Cursor {
 public:
  void append(std::string_view text, std::span<const protocol::TokenMark> marks);
  // Nothing follows. `cut`: the reply broke off (its length was used up), it did not end.
  void end(bool cut) {
    ended_ = true;
    cut_ = cut;
  }
  bool ended() const { return ended_; }
  bool cut() const { return cut_; }

  std::string_view rest() const { return std::string_view(text_).substr(head_); }
  size_t size() const { return text_.size() - head_; }
  // Drops the first so many bytes; gives them.
  std::string take(size_t bytes);
  void skip(size_t bytes);

  enum class Match : uint8_t { kNo, kYes, kMaybe };  // kMaybe: more text may complete it
  Match at(const Marker& marker, size_t offset = 0) const;

  struct Found {
    // kYes: `marker` stands at `offset`. kMaybe: something that may become one begins there. kNo:
    // all of the text is free of them (offset: its size).
    Match match = Match::kNo;
    size_t offset = 0;
    const Marker* marker = nullptr;
  };
  Found find(std::span<const Marker* const> markers, size_t from = 0) const;
  Found find(std::initializer_list<const Marker*> markers, size_t from = 0) const {
    return find(std::span(markers.begin(), markers.size()), from);
  }
  // The first byte that is no white space; size() when there is none.
  size_t spaces(size_t from = 0) const;

  // Keeps what is taken or skipped from now on, for a call that turns out to be none.
  void record() {
    recording_ = true;
    recorded_.clear();
  }
  std::string stop_recording();

 private:
  int32_t token_at(size_t offset) const;
  void drop(size_t bytes);

  std::string text_;
  size_t head_ = 0;  // bytes of text_ that were taken
  struct Place {
    size_t offset;  // in all of the reply
    int32_t token;
  };
  std::deque<Place> marks_;
  size_t taken_ = 0;  // bytes in all
  bool ended_ = false;
  bool cut_ = false;
  bool recording_ = false;
  std::string recorded_;
};

}  // namespace tandem::api
