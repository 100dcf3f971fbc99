#include "api/tools/call_sink.h"

#include <algorithm>
#include <utility>

namespace tandem::api {

namespace {

constexpr std::string_view kSpaces = " \n\r\t";

// Nine letters and digits out of hex digits, as Mistral's templates demand.
std::string nine(const std::string& hex, int32_t index) {
  constexpr std::string_view kLetters =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  uint64_t state = 0x9E3779B97F4A7C15ULL + static_cast<uint64_t>(index);
  for (const char c : hex) state = (state ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  std::string out;
  for (int i = 0; i < 9; ++i) {
    state ^= state >> 31;
    state *= 0xBF58476D1CE4E5B9ULL;
    out += kLetters[(state >> 40) % kLetters.size()];
  }
  return out;
}

}  // namespace

std::string call_id(const CallIds& ids, int32_t index, const std::string& name) {
  switch (ids.style) {
    case CallIds::Style::kKimi:
      return "functions." + name + ":" + std::to_string(ids.first + index);
    case CallIds::Style::kNine:
      return nine(ids.random, index);
    default:
      return ids.prefix + ids.random + (index == 0 ? "" : "_" + std::to_string(index));
  }
}

void CallSink::push(ReplyEvent event) {
  if (!list_ && (!in_call_ || live_)) {
    events_.push_back(std::move(event));
    return;
  }
  held_.push_back(std::move(event));
}

void CallSink::emit(bool reasoning, std::string_view text) {
  if (text.empty()) return;
  if (!events_.empty()) {
    std::string* last = nullptr;
    if (auto* said = std::get_if<TextDelta>(&events_.back()); said != nullptr && !reasoning)
      last = &said->text;
    if (auto* thought = std::get_if<ReasoningDelta>(&events_.back()); thought && reasoning)
      last = &thought->text;
    if (last != nullptr) {
      *last += text;
      return;
    }
  }
  if (reasoning) {
    events_.emplace_back(ReasoningDelta{std::string(text)});
  } else {
    events_.emplace_back(TextDelta{std::string(text)});
  }
}

void CallSink::add(bool reasoning, std::string_view text) {
  if (text.empty()) return;
  if (reasoning != reasoning_run_) close_run();
  reasoning_run_ = reasoning;
  if (reasoning && run_empty_) drop_leading_ = true;
  const size_t begin = run_empty_ ? std::min(text.find_first_not_of(kSpaces), text.size()) : 0;
  if (run_empty_ && begin == text.size()) {
    spaces_ += text;
    return;
  }
  if (run_empty_ && drop_leading_) {
    spaces_.clear();
    text.remove_prefix(begin);
  }
  run_empty_ = drop_leading_ = after_call_ = false;
  const size_t last = text.find_last_not_of(kSpaces);
  if (last == std::string_view::npos) {
    spaces_ += text;
    return;
  }
  emit(reasoning, std::exchange(spaces_, {}));
  emit(reasoning, text.substr(0, last + 1));
  spaces_ = text.substr(last + 1);
}

void CallSink::text(std::string_view text) { add(false, text); }

void CallSink::reasoning(std::string_view text) { add(true, text); }

void CallSink::close_run() {
  const std::string spaces = std::exchange(spaces_, {});
  if (!run_empty_ && spaces.find('\n') == std::string::npos) emit(reasoning_run_, spaces);
  run_empty_ = true;
  reasoning_run_ = false;
}

void CallSink::begin_call(std::string name) {
  close_run();
  in_call_ = true;
  drop_leading_ = false;  // that was of the text before it
  push(CallStart{next_, call_id(ids_, next_, name), std::move(name)});
}

void CallSink::arguments(std::string_view canonical) {
  if (canonical.empty()) return;
  ReplyEvents& to = live_ && !list_ ? events_ : held_;
  if (!to.empty()) {
    if (auto* last = std::get_if<CallArguments>(&to.back())) {
      last->text += canonical;
      return;
    }
  }
  push(CallArguments{next_, std::string(canonical)});
}

void CallSink::end_call() {
  push(CallEnd{next_, true});
  in_call_ = false;
  after_call_ = true;
  ++next_;
  ++calls_;
  if (!list_) {
    std::ranges::move(held_, std::back_inserter(events_));
    held_.clear();
  }
}

void CallSink::drop_call() {
  if (!in_call_) return;
  if (live_ && !list_) {
    events_.emplace_back(CallEnd{next_, false});
    ++next_;
  } else {
    while (!held_.empty() && !std::holds_alternative<CallEnd>(held_.back())) held_.pop_back();
  }
  in_call_ = false;
}

void CallSink::hold_calls() { list_ = true; }

void CallSink::release_calls() {
  list_ = false;
  std::ranges::move(held_, std::back_inserter(events_));
  held_.clear();
}

void CallSink::drop_calls() {
  for (const ReplyEvent& event : held_) {
    if (!std::holds_alternative<CallEnd>(event)) continue;
    --calls_;
    --next_;
  }
  list_ = in_call_ = false;
  held_.clear();
}

void CallSink::finish() {
  // White space that ends an answer is part of it; what follows a call is only layout.
  const bool layout = run_empty_ && (after_call_ || reasoning_run_ || drop_leading_);
  const std::string spaces = std::exchange(spaces_, {});
  if (!layout) emit(reasoning_run_, spaces);
}

}  // namespace tandem::api
