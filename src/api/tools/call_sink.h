// CallSink: where the parsers of the families put what they understood. Numbers calls and gives
// them ids, keeps or drops white space around markers, and holds each call until it is complete
// (unless arguments are to be streamed), so that a reply that is cut off never hands a client half
// a call. One owner.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "api/tools/arguments.h"
#include "api/tools/reply_events.h"

namespace tandem::api {

// How calls are named. kRandom and kNine never repeat; kKimi is what Kimi's template renders.
struct CallIds {
  enum class Style : uint8_t { kRandom, kNine, kKimi };
  Style style = Style::kRandom;
  std::string prefix = "call_";
  // At least 96 random bits in hex, of this reply alone.
  std::string random;
  int64_t first = 0;  // kKimi: how many calls the conversation has had
};
std::string call_id(const CallIds& ids, int32_t index, const std::string& name);

class CallSink {
 public:
  CallSink(const ToolTable& tools, CallIds ids, bool live)
      : tools_(tools), ids_(std::move(ids)), live_(live) {}

  const ToolTable& tools() const { return tools_; }
  // Arguments are told while they arrive.
  bool live() const { return live_; }

  // White space at either end waits: text behind it releases it, a marker with a line end in it
  // drops it.
  void text(std::string_view text);
  void reasoning(std::string_view text);
  // A marker: the run of text or reasoning before it is over.
  void close_run();
  // The answer begins here: white space before it is none of it.
  void drop_leading_space() { drop_leading_ = true; }

  void begin_call(std::string name);
  void arguments(std::string_view canonical);
  void end_call();
  // The open call was none, or broke off.
  void drop_call();
  bool in_call() const { return in_call_; }
  // Calls made since this mark are not told before release(); drop_calls() forgets them.
  void hold_calls();
  void release_calls();
  void drop_calls();

  // Nothing follows.
  void finish();
  ReplyEvents take() { return std::exchange(events_, {}); }
  int32_t calls() const { return calls_; }  // complete ones

 private:
  void add(bool reasoning, std::string_view text);
  void emit(bool reasoning, std::string_view text);
  void push(ReplyEvent event);

  const ToolTable& tools_;
  CallIds ids_;
  bool live_;
  ReplyEvents events_;
  ReplyEvents held_;
  std::string spaces_;  // a run of white space that waits
  bool reasoning_run_ = false;
  bool run_empty_ = true;  // nothing but white space since the run began
  bool drop_leading_ = false;
  bool after_call_ = false;
  bool in_call_ = false;
  bool list_ = false;
  int32_t next_ = 0;
  int32_t calls_ = 0;
};

}  // namespace tandem::api
