// GLM 4.5 and later: <tool_call>NAME, then <arg_key>KEY</arg_key><arg_value>VALUE</arg_value>
// pairs, </tool_call>. Values are raw text; 4.5 and 4.6 put line ends between the parts.
#include <array>
#include <utility>

#include "api/tools/call_layout.h"
#include "api/tools/json_calls.h"
#include "api/tools/syntax.h"

namespace tandem::api {

namespace {

constexpr size_t kMaxName = 1024;

class GlmCalls final : public CallSyntax {
 public:
  explicit GlmCalls(const Markers& markers) : markers_(markers), openers_{&markers[0]} {}

  std::span<const Marker* const> openers() const override { return openers_; }
  void open(const Marker*) override {
    place_ = Place::kName;
    maybe_rest_.clear();
    maybe_closed_ = false;
  }

  Step step(Cursor& in, CallSink& sink) override {
    switch (place_) {
      case Place::kName:
        return name(in, sink);
      case Place::kNext:
        return next(in, sink);
      case Place::kKey:
        return key(in);
      case Place::kBeforeValue:
        return before_value(in, sink);
      default:
        return value(in, sink);
    }
  }

 private:
  enum class Place : uint8_t { kName, kNext, kKey, kBeforeValue, kValue };
  const Marker& close() const { return markers_[1]; }
  const Marker& key_open() const { return markers_[2]; }
  const Marker& key_close() const { return markers_[3]; }
  const Marker& value_open() const { return markers_[4]; }
  const Marker& value_close() const { return markers_[5]; }

  Step name(Cursor& in, CallSink& sink) {
    const Cursor::Found found = in.find({&key_open(), &close()});
    if (found.match != Cursor::Match::kYes)
      return in.size() > kMaxName ? Step::kBroken : Step::kMore;
    std::string name = in.take(found.offset);
    const size_t from = name.find_first_not_of(" \n\r\t");
    if (from == std::string::npos) return Step::kBroken;
    name = name.substr(from, name.find_last_not_of(" \n\r\t") - from + 1);
    if (name.find_first_of(" \n{") != std::string::npos) return Step::kBroken;
    writer_.begin(sink, std::move(name));
    place_ = Place::kNext;
    return Step::kAgain;
  }

  Step next(Cursor& in, CallSink& sink) {
    in.skip(in.spaces());
    if (in.size() == 0) return Step::kMore;
    const Cursor::Match closed = in.at(close());
    const Cursor::Match opened = in.at(key_open());
    if (closed == Cursor::Match::kYes) {
      in.skip(close().spelling.size());
      writer_.end(sink);
      return Step::kDone;
    }
    if (opened == Cursor::Match::kYes) {
      in.skip(key_open().spelling.size());
      place_ = Place::kKey;
      return Step::kAgain;
    }
    const bool maybe = closed == Cursor::Match::kMaybe || opened == Cursor::Match::kMaybe;
    return maybe ? Step::kMore : Step::kBroken;
  }

  Step key(Cursor& in) {
    const Cursor::Found found = in.find({&key_close()});
    if (found.match != Cursor::Match::kYes)
      return in.size() > kMaxName ? Step::kBroken : Step::kMore;
    key_ = in.take(found.offset);
    in.skip(key_close().spelling.size());
    place_ = Place::kBeforeValue;
    return Step::kAgain;
  }

  Step before_value(Cursor& in, CallSink& sink) {
    const size_t spaces = in.spaces();
    const Cursor::Match match = in.at(value_open(), spaces);
    if (match == Cursor::Match::kMaybe) return Step::kMore;
    if (match == Cursor::Match::kNo) return Step::kBroken;
    in.skip(spaces + value_open().spelling.size());
    raw_.begin(sink, writer_, key_, argument_types(writer_.parameters(), key_));
    place_ = Place::kValue;
    return Step::kAgain;
  }

  // A value may speak of </tool_call>; it ends the call only when no </arg_value> follows at all.
  Step value(Cursor& in, CallSink& sink) {
    const Cursor::Found found =
        maybe_closed_ ? in.find({&value_close()}) : in.find({&value_close(), &close()});
    std::string text = in.take(found.offset);
    if (maybe_closed_) {
      maybe_rest_ += text;
    } else {
      raw_.add(sink, writer_, text);
    }
    if (found.match != Cursor::Match::kYes) {
      if (found.offset > 0) return Step::kAgain;
      if (!in.ended() || in.cut() || !maybe_closed_) return Step::kMore;
      raw_.end(sink, writer_);
      writer_.end(sink);
      sink.text(std::string_view(maybe_rest_).substr(close().spelling.size()));
      return Step::kDone;
    }
    in.skip(found.marker->spelling.size());
    if (found.marker == &close()) {
      maybe_closed_ = true;
      maybe_rest_ = close().spelling;
      return Step::kAgain;
    }
    if (maybe_closed_) raw_.add(sink, writer_, maybe_rest_);
    maybe_closed_ = false;
    maybe_rest_.clear();
    raw_.end(sink, writer_);
    place_ = Place::kNext;
    return Step::kAgain;
  }

  const Markers& markers_;
  std::array<const Marker*, 1> openers_;
  Place place_ = Place::kName;
  ArgumentsWriter writer_;
  RawValue raw_;
  std::string key_;
  bool maybe_closed_ = false;
  std::string maybe_rest_;  // from a </tool_call> inside a value on
};

}  // namespace

std::unique_ptr<CallSyntax> make_glm_calls(const Markers& markers) {
  return std::make_unique<GlmCalls>(markers);
}

Result<CallLayout> glm_layout(const LayoutInput& in) {
  const Markers& markers = in.markers;
  CallLayout out;
  open_with(out, {&markers[0]});
  // 4.5 and 4.6 put every part on a line of its own.
  const bool lines = in.chat_template.find("</arg_key>\n") != std::string_view::npos;
  const std::string line = lines ? " \"\\n\"" : "";
  out.between = (lines ? "\"\\n\" " : "") + out.opener;
  out.call = [parts = ArgumentParts{.open = lark_marker(markers[2]),
                                    .value = lark_marker(markers[3]) + line + " " +
                                             lark_marker(markers[4]),
                                    .string = {},
                                    .typed = {},
                                    .close = lark_marker(markers[5]) + line,
                                    .never = letters_of({&markers[5], &markers[1]})},
              line, close = lark_marker(markers[1])](const GrammarTool& tool) {
    return lark_text(tool.name) + line + " " + listed_arguments(tool, parts) + " " + close;
  };
  return out;
}

}  // namespace tandem::api
