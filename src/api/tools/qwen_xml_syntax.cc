// Qwen3-Coder, Qwen3.5 and later: <tool_call><function=NAME><parameter=KEY>VALUE</parameter>...
// </function></tool_call>, with line ends around each value. Values are raw text and may hold the
// same tags; so a closing tag counts only where the format goes on behind it. Models forget the
// first tag, or a value's last: both are understood.
#include <array>
#include <optional>
#include <utility>

#include "api/tools/call_layout.h"
#include "api/tools/json_calls.h"
#include "api/tools/syntax.h"

namespace tandem::api {

namespace {

constexpr size_t kMaxName = 1024;
constexpr std::string_view kFunction = "<function=";
constexpr std::string_view kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=";
constexpr std::string_view kParameterEnd = "</parameter>";

using Match = Cursor::Match;

Match starts(std::string_view text, std::string_view word, bool ended) {
  const size_t length = std::min(text.size(), word.size());
  if (text.substr(0, length) != word.substr(0, length)) return Match::kNo;
  if (length == word.size()) return Match::kYes;
  return ended ? Match::kNo : Match::kMaybe;
}

class QwenXmlCalls final : public CallSyntax {
 public:
  explicit QwenXmlCalls(const Markers& markers)
      : close_(&markers[1]),
        openers_{&markers[0], &markers[2]},
        hermes_(make_hermes_calls(markers)) {}

  std::span<const Marker* const> openers() const override { return openers_; }
  void open(const Marker* opener) override {
    place_ = opener == openers_[1] ? Place::kName : Place::kBegin;
  }

  Step step(Cursor& in, CallSink& sink) override {
    switch (place_) {
      case Place::kBegin:
        return begin(in);
      case Place::kJson:
        return hermes_->step(in, sink);
      case Place::kName:
        return name(in, sink);
      case Place::kNext:
        return next(in, sink);
      case Place::kKey:
        return key(in, sink);
      case Place::kValue:
        return value(in, sink);
      default:
        return after(in);
    }
  }

 private:
  enum class Place : uint8_t { kBegin, kJson, kName, kNext, kKey, kValue, kAfter };

  Step begin(Cursor& in) {
    const size_t spaces = in.spaces();
    if (spaces == in.size()) return Step::kMore;
    if (in.rest()[spaces] == '{') {  // some models of the family write JSON
      hermes_->open(nullptr);
      place_ = Place::kJson;
      return Step::kAgain;
    }
    const Match match = starts(in.rest().substr(spaces), kFunction, in.ended());
    if (match == Match::kMaybe) return Step::kMore;
    if (match == Match::kNo) return Step::kBroken;
    in.skip(spaces + kFunction.size());
    place_ = Place::kName;
    return Step::kAgain;
  }

  static std::optional<std::string> until_bracket(Cursor& in) {
    const size_t end = in.rest().find('>');
    if (end == std::string_view::npos) return std::nullopt;
    std::string text = in.take(end);
    in.skip(1);
    return text;
  }

  Step name(Cursor& in, CallSink& sink) {
    auto name = until_bracket(in);
    if (!name) return in.size() > kMaxName ? Step::kBroken : Step::kMore;
    if (name->empty() || name->find('\n') != std::string::npos) return Step::kBroken;
    writer_.begin(sink, std::move(*name));
    place_ = Place::kNext;
    return Step::kAgain;
  }

  Step next(Cursor& in, CallSink& sink) {
    in.skip(in.spaces());
    if (in.size() == 0) return Step::kMore;
    const Match parameter = starts(in.rest(), kParameter, in.ended());
    const Match end = starts(in.rest(), kFunctionEnd, in.ended());
    const Match close = in.at(*close_);
    if (parameter == Match::kYes) {
      in.skip(kParameter.size());
      place_ = Place::kKey;
      return Step::kAgain;
    }
    if (end == Match::kYes || close == Match::kYes) {
      if (end == Match::kYes) in.skip(kFunctionEnd.size());
      writer_.end(sink);
      place_ = Place::kAfter;
      return Step::kAgain;
    }
    const bool maybe = parameter == Match::kMaybe || end == Match::kMaybe || close == Match::kMaybe;
    return maybe ? Step::kMore : Step::kBroken;
  }

  Step key(Cursor& in, CallSink& sink) {
    auto key = until_bracket(in);
    if (!key) return in.size() > kMaxName ? Step::kBroken : Step::kMore;
    raw_.begin(sink, writer_, *key, argument_types(writer_.parameters(), *key));
    place_ = Place::kValue;
    fresh_ = true;
    line_ = false;
    return Step::kAgain;
  }

  // Where a value ends: `end` its last byte, `resume` the tag behind it. Without one: how much is
  // surely of the value.
  struct Scan {
    bool found = false;
    size_t end = 0;
    size_t resume = 0;
  };

  Step value(Cursor& in, CallSink& sink) {
    if (fresh_) {
      if (in.size() == 0) return Step::kMore;
      line_ = in.rest()[0] == '\n';
      if (line_) in.skip(1);
      fresh_ = false;
      return Step::kAgain;
    }
    const Scan scan = find_end(in);
    if (scan.end > 0) {
      raw_.add(sink, writer_, in.rest().substr(0, scan.end));
      line_ = in.rest()[scan.end - 1] == '\n';
    }
    in.skip(scan.found ? scan.resume : scan.end);
    if (scan.found) {
      raw_.end(sink, writer_);
      place_ = Place::kNext;
      return Step::kAgain;
    }
    return scan.end > 0 ? Step::kAgain : Step::kMore;
  }

  Scan find_end(const Cursor& in) const {
    const std::string_view text = in.rest();
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\n' && i + 1 == text.size() && !in.ended()) return {false, i, i};
      if (text[i] != '<') continue;
      const bool line = i == 0 ? line_ : text[i - 1] == '\n';
      const size_t end = line && i > 0 ? i - 1 : i;  // its own line end is layout
      const Match closed = closes(in, i);
      if (closed == Match::kYes) return {true, end, i + kParameterEnd.size()};
      const Match forgotten = closed == Match::kNo && line ? forgets(in, i) : Match::kNo;
      if (forgotten == Match::kYes) return {true, end, i};
      if (closed == Match::kMaybe || forgotten == Match::kMaybe) return {false, end, end};
    }
    return {false, text.size(), text.size()};
  }

  // </parameter>, and what may stand behind it.
  Match closes(const Cursor& in, size_t at) const {
    const Match tag = starts(in.rest().substr(at), kParameterEnd, in.ended());
    if (tag != Match::kYes) return tag;
    return follows(in, at + kParameterEnd.size(), true);
  }

  Match follows(const Cursor& in, size_t at, bool tags) const {
    const size_t next = in.spaces(at);
    if (next == in.size()) return in.ended() && !in.cut() ? Match::kYes : Match::kMaybe;
    Match best = in.at(*close_, next);
    if (!tags || best == Match::kYes) return best;
    for (const std::string_view tag : {kParameter, kFunctionEnd}) {
      const Match match = starts(in.rest().substr(next), tag, in.ended());
      if (match == Match::kYes) return match;
      if (match == Match::kMaybe) best = match;
    }
    return best;
  }

  // At the beginning of a line: the next parameter, or the function's end, without </parameter>.
  Match forgets(const Cursor& in, size_t at) const {
    const std::string_view text = in.rest().substr(at);
    const Match end = starts(text, kFunctionEnd, in.ended());
    if (end == Match::kMaybe) return end;
    if (end == Match::kYes) return follows(in, at + kFunctionEnd.size(), false);
    const Match parameter = starts(text, kParameter, in.ended());
    if (parameter != Match::kYes) return parameter;
    const size_t bracket = text.substr(0, kMaxName).find('>');
    if (bracket == std::string_view::npos)
      return text.size() < kMaxName && !in.ended() ? Match::kMaybe : Match::kNo;
    if (bracket + 1 == text.size() && !in.ended()) return Match::kMaybe;
    const std::string_view key = text.substr(kParameter.size(), bracket - kParameter.size());
    const bool line = bracket + 1 < text.size() && text[bracket + 1] == '\n';
    const bool known = declares(writer_.parameters(), key) && !writer_.has(key);
    return line && known ? Match::kYes : Match::kNo;
  }

  Step after(Cursor& in) {
    const size_t spaces = in.spaces();
    if (spaces == in.size()) return in.ended() ? Step::kDone : Step::kMore;
    const Match close = in.at(*close_, spaces);
    const Match again = starts(in.rest().substr(spaces), kFunction, in.ended());
    if (close == Match::kMaybe || again == Match::kMaybe) return Step::kMore;
    if (close == Match::kYes) in.skip(spaces + close_->spelling.size());
    if (again != Match::kYes) return Step::kDone;
    in.record();
    in.skip(spaces + kFunction.size());
    place_ = Place::kName;
    return Step::kAgain;
  }

  const Marker* close_;
  std::array<const Marker*, 2> openers_;
  std::unique_ptr<CallSyntax> hermes_;
  Place place_ = Place::kBegin;
  ArgumentsWriter writer_;
  RawValue raw_;
  bool fresh_ = true;
  bool line_ = false;  // the value's next byte begins a line
};

}  // namespace

std::unique_ptr<CallSyntax> make_qwen_xml_calls(const Markers& markers) {
  return std::make_unique<QwenXmlCalls>(markers);
}

Result<CallLayout> qwen_xml_layout(const LayoutInput& in) {
  CallLayout out;
  open_with(out, {&in.markers[0], &in.markers[2]});
  out.names = names_without(">\n");
  out.between = "\"\\n\" " + out.opener;
  out.call = [close = lark_marker(in.markers[1])](const GrammarTool& tool) {
    const ArgumentParts parts{
        .open = lark_text(kParameter),
        .value = "\">\\n\"",
        .string = {},
        .typed = {},
        .close = lark_text("\n" + std::string(kParameterEnd) + "\n"),
        .never = {std::string(kParameterEnd), std::string(kFunctionEnd), std::string(kParameter)}};
    return lark_text("\n" + std::string(kFunction) + tool.name + ">\n") + " " +
           listed_arguments(tool, parts) + " " + lark_text(std::string(kFunctionEnd) + "\n") + " " +
           close;
  };
  return out;
}

}  // namespace tandem::api
