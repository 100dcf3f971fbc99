// Text, one block of reasoning, calls between markers: how most families reply.
#include <algorithm>
#include <utility>

#include "api/tools/syntax.h"

namespace tandem::api {

namespace {

class TaggedReply final : public ReplyMachine {
 public:
  TaggedReply(const ReasoningStyle& reasoning, std::unique_ptr<CallSyntax> syntax, Opening opening)
      : reasoning_(reasoning), syntax_(std::move(syntax)) {
    for (const Marker& marker : reasoning_.close) closers_.push_back(&marker);
    if (syntax_ != nullptr) {
      for (const Marker* marker : syntax_->openers()) openers_.push_back(marker);
      if (reasoning_.calls_end_it) closers_.push_back(openers_.front());
    }
    if (opening == Opening::kReasoning) state_ = State::kReasoning;
    if (opening == Opening::kAnswer) leading_ = true;
  }

  bool step(Cursor& in, CallSink& sink) override {
    if (std::exchange(leading_, false)) sink.drop_leading_space();
    switch (state_) {
      case State::kStart:
        return start(in);
      case State::kReasoning:
        return reason(in, sink);
      case State::kAnswer:
        return answer(in, sink);
      default:
        return call(in, sink);
    }
  }

  void finish(Cursor& in, CallSink& sink) override {
    std::string rest = in.take(in.size());
    if (state_ == State::kCall) {
      rest = in.stop_recording();
      sink.drop_call();
      if (in.cut()) rest.clear();  // half a call is nothing
    }
    if (state_ == State::kReasoning) {
      sink.reasoning(rest);
    } else {
      sink.text(rest);
    }
  }

 private:
  enum class State : uint8_t { kStart, kReasoning, kAnswer, kCall };

  // Only white space so far: reasoning may open, or calls without a marker.
  bool start(Cursor& in) {
    const Cursor::Match match = take_opener(in);
    if (match == Cursor::Match::kMaybe) return false;
    state_ = match == Cursor::Match::kYes ? State::kReasoning : State::kAnswer;
    if (match == Cursor::Match::kYes) label_ = reasoning_.label;
    return true;
  }

  // White space and what opens reasoning, when both are there.
  Cursor::Match take_opener(Cursor& in) const {
    const size_t spaces = in.spaces();
    if (spaces == in.size() && !in.ended()) return Cursor::Match::kMaybe;
    for (const Marker& marker : reasoning_.open) {
      const Cursor::Match match = in.at(marker, spaces);
      if (match == Cursor::Match::kNo) continue;
      if (match == Cursor::Match::kYes) in.skip(spaces + marker.spelling.size());
      return match;
    }
    return Cursor::Match::kNo;
  }

  bool reason(Cursor& in, CallSink& sink) {
    if (!label_.empty()) {
      const Cursor::Match match = in.at({label_, -1});
      if (match == Cursor::Match::kMaybe) return false;
      if (match == Cursor::Match::kYes) in.skip(label_.size());
      label_.clear();
      return true;
    }
    if (first_) {
      // A prompt that opened the block already, and a model that opens it again.
      if (take_opener(in) == Cursor::Match::kMaybe) return false;
      first_ = false;
      return true;
    }
    const Cursor::Found found = in.find(closers_);
    const bool closed = found.match == Cursor::Match::kYes;
    if (found.offset == 0 && !closed) return false;
    sink.reasoning(in.take(found.offset));
    if (!closed) return true;
    sink.close_run();
    sink.drop_leading_space();
    const bool own =
        std::ranges::any_of(reasoning_.close, [&](const Marker& m) { return &m == found.marker; });
    if (own) in.skip(found.marker->spelling.size());
    state_ = State::kAnswer;
    return true;
  }

  bool answer(Cursor& in, CallSink& sink) {
    if (syntax_ == nullptr) {
      if (in.size() == 0) return false;
      sink.text(in.take(in.size()));
      return true;
    }
    if (!said_ && tries_bare_) {
      const size_t spaces = in.spaces();
      if (spaces == in.size() && !in.ended()) return false;
      const Cursor::Match match = syntax_->bare(in);
      if (match == Cursor::Match::kMaybe) return false;
      tries_bare_ = false;
      if (match == Cursor::Match::kYes) return begin_call(in, sink, nullptr);
    }
    const Cursor::Found found = in.find(openers_);
    const bool opened = found.match == Cursor::Match::kYes;
    if (found.offset == 0 && !opened) return false;
    if (found.offset > 0) {
      said_ = true;
      sink.text(in.take(found.offset));
    }
    return opened ? begin_call(in, sink, found.marker) : true;
  }

  bool begin_call(Cursor& in, CallSink& sink, const Marker* opener) {
    in.record();
    if (opener != nullptr) {
      sink.close_run();
      in.skip(opener->spelling.size());
    }
    syntax_->open(opener);
    state_ = State::kCall;
    return true;
  }

  bool call(Cursor& in, CallSink& sink) {
    switch (syntax_->step(in, sink)) {
      case CallSyntax::Step::kMore:
        return false;
      case CallSyntax::Step::kDone:
        (void)in.stop_recording();
        state_ = State::kAnswer;
        return true;
      case CallSyntax::Step::kBroken: {
        const std::string raw = in.stop_recording();
        sink.drop_call();
        sink.text(raw);
        said_ = true;
        state_ = State::kAnswer;
        return true;
      }
      default:
        return true;
    }
  }

  const ReasoningStyle& reasoning_;
  const std::unique_ptr<CallSyntax> syntax_;
  std::vector<const Marker*> openers_;
  std::vector<const Marker*> closers_;
  State state_ = State::kStart;
  std::string label_;
  bool first_ = true;
  bool leading_ = false;
  bool said_ = false;
  bool tries_bare_ = true;
};

}  // namespace

std::unique_ptr<ReplyMachine> make_tagged_reply(const ReasoningStyle& reasoning,
                                                std::unique_ptr<CallSyntax> syntax,
                                                Opening opening) {
  return std::make_unique<TaggedReply>(reasoning, std::move(syntax), opening);
}

}  // namespace tandem::api
