// Gemma 4: <|tool_call>call:NAME{key:value,...}<tool_call|>, where strings stand between <|"|>
// tokens and keys stand bare. The notation becomes JSON byte by byte.
#include <array>
#include <utility>

#include "api/tools/arguments.h"
#include "api/tools/call_layout.h"
#include "api/tools/json_stream.h"
#include "api/tools/syntax.h"

namespace tandem::api {

namespace {

constexpr size_t kMaxName = 512;
constexpr size_t kMaxBare = 4096;
constexpr size_t kMaxDepth = 64;

class GemmaCalls final : public CallSyntax {
 public:
  explicit GemmaCalls(const Markers& markers)
      : close_(&markers[1]), quote_(&markers[2]), openers_{&markers[0]} {}

  std::span<const Marker* const> openers() const override { return openers_; }
  void open(const Marker*) override {
    place_ = Place::kName;
    stack_.clear();
    late_colon_ = false;
  }

  Step step(Cursor& in, CallSink& sink) override {
    switch (place_) {
      case Place::kName:
        return name(in, sink);
      case Place::kKey:
        return key(in, sink);
      case Place::kValue:
        return value(in, sink);
      case Place::kString:
      case Place::kKeyString:
        return string(in, sink);
      case Place::kNext:
        return next(in, sink);
      default:
        return end(in, sink);
    }
  }

 private:
  enum class Place : uint8_t { kName, kKey, kKeyString, kValue, kString, kNext, kEnd };

  Step name(Cursor& in, CallSink& sink) {
    constexpr std::string_view kCall = "call:";
    const size_t brace = in.rest().find('{');
    if (brace == std::string_view::npos) {
      const bool closed = in.find({close_}).match == Cursor::Match::kYes;
      return closed || in.size() > kMaxName ? Step::kBroken : Step::kMore;
    }
    std::string name =
        in.rest().substr(0, brace) == "" ? "" : std::string(in.rest().substr(0, brace));
    if (name.starts_with(kCall)) name.erase(0, kCall.size());
    while (name.ends_with(' ')) name.pop_back();
    if (name.empty() || name.find_first_of(" \n<>") != std::string::npos) return Step::kBroken;
    in.skip(brace + 1);
    sink.begin_call(std::move(name));
    sink.arguments("{");
    stack_ = "{";
    first_ = true;
    place_ = Place::kKey;
    return Step::kAgain;
  }

  Step close(CallSink& sink) {
    sink.arguments(stack_.back() == '{' ? "}" : "]");
    stack_.pop_back();
    place_ = stack_.empty() ? Place::kEnd : Place::kNext;
    return Step::kAgain;
  }

  Step key(Cursor& in, CallSink& sink) {
    in.skip(in.spaces());
    if (in.size() == 0) return Step::kMore;
    if (first_ && in.rest()[0] == '}') {
      in.skip(1);
      return close(sink);
    }
    const Cursor::Match quoted = in.at(*quote_);
    if (quoted == Cursor::Match::kMaybe) return Step::kMore;
    if (quoted == Cursor::Match::kYes) {
      in.skip(quote_->spelling.size());
      sink.arguments(first_ ? "\"" : ",\"");
      place_ = Place::kKeyString;
      return Step::kAgain;
    }
    const size_t colon = in.rest().find(':');
    if (colon == std::string_view::npos) return in.size() > kMaxBare ? Step::kBroken : Step::kMore;
    std::string key = in.take(colon);
    in.skip(1);
    while (key.ends_with(' ')) key.pop_back();
    if (key.size() > 1 && key.front() == '"' && key.back() == '"')
      key = key.substr(1, key.size() - 2);
    std::string text = first_ ? "" : ",";
    append_json_string(text, key);
    sink.arguments(text += ':');
    place_ = Place::kValue;
    return Step::kAgain;
  }

  // Inside quotes everything is text up to the closing one.
  Step string(Cursor& in, CallSink& sink) {
    const Cursor::Found found = in.find({quote_});
    std::string text;
    append_json_text(text, in.take(found.offset));
    sink.arguments(text);
    if (found.match != Cursor::Match::kYes) return found.offset > 0 ? Step::kAgain : Step::kMore;
    in.skip(quote_->spelling.size());
    sink.arguments("\"");
    if (place_ == Place::kString) {
      place_ = Place::kNext;
      return Step::kAgain;
    }
    late_colon_ = true;
    place_ = Place::kValue;
    return Step::kAgain;
  }

  Step value(Cursor& in, CallSink& sink) {
    in.skip(in.spaces());
    if (in.size() == 0) return Step::kMore;
    if (std::exchange(late_colon_, false)) {
      if (in.rest()[0] != ':') return Step::kBroken;
      in.skip(1);
      sink.arguments(":");
      return Step::kAgain;
    }
    const Cursor::Match quoted = in.at(*quote_);
    if (quoted == Cursor::Match::kMaybe) return Step::kMore;
    if (quoted == Cursor::Match::kYes) {
      in.skip(quote_->spelling.size());
      sink.arguments("\"");
      place_ = Place::kString;
      return Step::kAgain;
    }
    const char c = in.rest()[0];
    if (c == '{' || c == '[') {
      if (stack_.size() >= kMaxDepth) return Step::kBroken;
      in.skip(1);
      stack_ += c;
      sink.arguments(std::string_view(&c, 1));
      first_ = true;
      place_ = c == '{' ? Place::kKey : Place::kValue;
      empty_list_ = c == '[';
      return Step::kAgain;
    }
    if (c == ']' && stack_.back() == '[' && std::exchange(empty_list_, false)) {
      in.skip(1);
      return close(sink);
    }
    return unquoted(in, sink);
  }

  // A number, a word, or a string whose quotes the model forgot.
  Step unquoted(Cursor& in, CallSink& sink) {
    const std::string_view text = in.rest();
    size_t end = 0;
    while (end < text.size() && text[end] != ',' && text[end] != '}' && text[end] != ']' &&
           in.at(*close_, end) != Cursor::Match::kYes)
      ++end;
    if (end == text.size()) return end > kMaxBare ? Step::kBroken : Step::kMore;
    std::string raw = in.take(end);
    while (raw.ends_with(' ') || raw.ends_with('\n')) raw.pop_back();
    sink.arguments(argument_json(raw, {}));
    empty_list_ = false;
    place_ = Place::kNext;
    return Step::kAgain;
  }

  Step next(Cursor& in, CallSink& sink) {
    in.skip(in.spaces());
    if (in.size() == 0) return Step::kMore;
    const char c = in.rest()[0];
    empty_list_ = false;
    if (c == ',') {
      in.skip(1);
      first_ = false;
      place_ = stack_.back() == '{' ? Place::kKey : Place::kValue;
      if (stack_.back() == '[') sink.arguments(",");
      return Step::kAgain;
    }
    if (c != (stack_.back() == '{' ? '}' : ']')) return Step::kBroken;
    in.skip(1);
    return close(sink);
  }

  // The call counts with its closing marker, or where a reply ends by itself.
  Step end(Cursor& in, CallSink& sink) {
    in.skip(in.spaces());
    if (in.size() == 0 && !(in.ended() && !in.cut())) return Step::kMore;
    const Cursor::Match match = in.at(*close_);
    if (match == Cursor::Match::kMaybe) return Step::kMore;
    if (match == Cursor::Match::kYes) in.skip(close_->spelling.size());
    sink.end_call();
    return Step::kDone;
  }

  const Marker* close_;
  const Marker* quote_;
  std::array<const Marker*, 1> openers_;
  Place place_ = Place::kName;
  std::string stack_;
  bool first_ = true;
  bool empty_list_ = false;
  bool late_colon_ = false;
};

}  // namespace

std::unique_ptr<CallSyntax> make_gemma_calls(const Markers& markers) {
  return std::make_unique<GemmaCalls>(markers);
}

Result<CallLayout> gemma_layout(const LayoutInput& in) {
  TANDEM_CHECK(need_tokens("gemma4", {&in.markers[0], &in.markers[1], &in.markers[2]}));
  CallLayout out;
  open_with(out, {&in.markers[0]});
  out.between = out.opener;
  out.call = [close = lark_marker(in.markers[1]),
              quote = lark_marker(in.markers[2])](const GrammarTool& tool) {
    const std::string arguments =
        tool.custom ? "\"{input:\" " + quote + " (" + custom_text(*tool.custom, "utf8") + ") " +
                          quote + " \"}\""
                    : std::string("%arguments") + (tool.strict ? "!" : "?") + "@" + tool.pointer +
                          " (gemma = " + quote + ") " + tool.parameters.dump();
    return lark_text("call:" + tool.name) + " " + arguments + " " + close;
  };
  return out;
}

}  // namespace tandem::api
