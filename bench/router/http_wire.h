// Just enough HTTP/1.1 for the programs of this folder: where a message ends. Trusting: they talk
// to each other over loopback. One thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

namespace tandem::bench {

// Follows one message (request or response) through its bytes.
class MessageScanner {
 public:
  // Eats bytes up to the message's end; gives the body's to `on_body` without their transfer
  // coding. Returns how many were eaten.
  template <typename OnBody>
  size_t feed(std::string_view bytes, OnBody&& on_body) {
    size_t at = 0;
    while (at < bytes.size() && state_ != State::kDone) {
      const std::string_view rest = bytes.substr(at);
      if (state_ == State::kData) {
        const auto take = static_cast<size_t>(std::min<uint64_t>(left_, rest.size()));
        on_body(rest.substr(0, take));
        left_ -= take;
        at += take;
        if (left_ == 0) state_ = chunked_ ? State::kDataEnd : State::kDone;
      } else {
        at += line(rest);
      }
    }
    return at;
  }
  bool done() const { return state_ == State::kDone; }
  bool head_done() const { return state_ != State::kHead; }
  int status() const { return status_; }
  uint64_t content_length() const { return chunked_ ? 0 : length_; }
  void reset() { *this = MessageScanner(); }

 private:
  enum class State : uint8_t { kHead, kSize, kData, kDataEnd, kTrailer, kDone };

  size_t line(std::string_view bytes) {
    const size_t end = bytes.find('\n');
    const size_t take = end == std::string_view::npos ? bytes.size() : end + 1;
    text_.append(bytes.substr(0, take));
    if (end != std::string_view::npos) {
      whole_line();
      text_.clear();
    }
    return take;
  }

  void whole_line() {
    while (!text_.empty() && (text_.back() == '\n' || text_.back() == '\r')) text_.pop_back();
    switch (state_) {
      case State::kHead:
        return head_line();
      case State::kSize:
        left_ = std::strtoull(text_.c_str(), nullptr, 16);
        state_ = left_ == 0 ? State::kTrailer : State::kData;
        return;
      case State::kDataEnd:
        state_ = State::kSize;
        return;
      case State::kTrailer:
        if (text_.empty()) state_ = State::kDone;
        return;
      default:
        return;
    }
  }

  void head_line() {
    if (text_.empty()) {
      if (first_) return;
      left_ = length_;
      state_ = chunked_ ? State::kSize : left_ > 0 ? State::kData : State::kDone;
      if (status_ == 100) reset();
      return;
    }
    if (first_) {
      first_ = false;
      if (text_.starts_with("HTTP/")) status_ = std::atoi(text_.c_str() + 9);
      return;
    }
    if (named("content-length:")) length_ = std::strtoull(text_.c_str() + 15, nullptr, 10);
    if (named("transfer-encoding:")) chunked_ = true;
  }

  bool named(std::string_view name) const {
    if (text_.size() < name.size()) return false;
    for (size_t i = 0; i < name.size(); ++i) {
      const char c = text_[i];
      if ((c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c) != name[i]) return false;
    }
    return true;
  }

  State state_ = State::kHead;
  std::string text_;
  uint64_t left_ = 0;
  uint64_t length_ = 0;
  int status_ = 0;
  bool chunked_ = false;
  bool first_ = true;
};

}  // namespace tandem::bench
