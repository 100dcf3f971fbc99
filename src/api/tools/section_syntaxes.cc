// Calls in one section of special tokens, each a name and JSON: Kimi K2 and DeepSeek up to V3.1.
#include <array>
#include <utility>

#include "api/tools/call_layout.h"
#include "api/tools/json_stream.h"
#include "api/tools/syntax.h"

namespace tandem::api {

namespace {

constexpr size_t kMaxName = 512;

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \n\r\t";
  const size_t from = text.find_first_not_of(kSpaces);
  if (from == std::string_view::npos) return {};
  return text.substr(from, text.find_last_not_of(kSpaces) - from + 1);
}

// "functions.NAME:INDEX" or parts of it.
std::string kimi_name(std::string_view id) {
  id = trimmed(id);
  if (id.starts_with("functions.")) id.remove_prefix(10);
  const size_t colon = id.rfind(':');
  const bool index = colon != std::string_view::npos && colon + 1 < id.size() &&
                     id.find_first_not_of("0123456789", colon + 1) == std::string_view::npos;
  return std::string(index ? id.substr(0, colon) : id);
}

// SECTION_BEGIN (CALL_BEGIN name-part BODY json CALL_END)* SECTION_END. What stands between calls
// is noise.
class SectionCalls final : public CallSyntax {
 public:
  SectionCalls(const Markers& markers, bool kimi)
      : markers_(markers), kimi_(kimi), openers_{&markers[0]} {}

  std::span<const Marker* const> openers() const override { return openers_; }
  void open(const Marker*) override { place_ = Place::kBetween; }

  Step step(Cursor& in, CallSink& sink) override {
    switch (place_) {
      case Place::kBetween:
        return between(in);
      case Place::kName:
        return name(in, sink);
      case Place::kLateName:
        return late_name(in, sink);
      case Place::kJson:
        return json(in, sink);
      default:
        return after(in);
    }
  }

 private:
  enum class Place : uint8_t { kBetween, kName, kLateName, kJson, kAfter };
  const Marker& section_end() const { return markers_[1]; }
  const Marker& call_begin() const { return markers_[2]; }
  const Marker& body() const { return markers_[3]; }
  const Marker& call_end() const { return markers_[4]; }

  Step between(Cursor& in) {
    const Cursor::Found found = in.find({&call_begin(), &section_end()});
    in.skip(found.offset);
    if (found.match != Cursor::Match::kYes)
      return found.offset > 0 ? Step::kAgain : (in.ended() ? Step::kDone : Step::kMore);
    if (found.marker == &section_end()) {
      in.skip(found.marker->spelling.size());
      return Step::kDone;
    }
    in.record();
    in.skip(found.marker->spelling.size());
    place_ = Place::kName;
    return Step::kAgain;
  }

  Step name(Cursor& in, CallSink& sink) {
    const Cursor::Found found = in.find({&body(), &call_end(), &section_end()});
    if (found.match != Cursor::Match::kYes)
      return in.size() > kMaxName ? Step::kBroken : Step::kMore;
    if (found.marker != &body()) return Step::kBroken;
    const std::string before = in.take(found.offset);
    in.skip(found.marker->spelling.size());
    if (kimi_) return begin(sink, kimi_name(before));
    name_ = trimmed(before);
    place_ = Place::kLateName;
    return Step::kAgain;
  }

  // DeepSeek: V3 and R1 write the word "function" first, then the name and a fence of JSON.
  Step late_name(Cursor& in, CallSink& sink) {
    const size_t spaces = in.spaces();
    if (spaces == in.size()) return Step::kMore;
    if (in.rest()[spaces] == '{') return begin(sink, name_);
    const size_t brace = in.rest().find('{');
    if (brace == std::string_view::npos) {
      const bool closed = in.find({&call_end()}).match == Cursor::Match::kYes;
      return closed || in.size() > kMaxName ? Step::kBroken : Step::kMore;
    }
    const std::string head = in.take(brace);
    return begin(sink, std::string(trimmed(head.substr(0, head.find('\n')))));
  }

  Step begin(CallSink& sink, std::string name) {
    if (name.empty()) return Step::kBroken;
    sink.begin_call(std::move(name));
    stream_ = JsonStream();
    fresh_ = true;
    place_ = Place::kJson;
    return Step::kAgain;
  }

  Step json(Cursor& in, CallSink& sink) {
    if (fresh_) {
      in.skip(in.spaces());
      if (in.size() == 0) return Step::kMore;
      // No arguments at all are an empty object.
      if (in.at(call_end()) == Cursor::Match::kYes) {
        sink.arguments("{}");
        return end(sink);
      }
      if (in.rest()[0] != '{') return Step::kBroken;
      fresh_ = false;
    }
    size_t used = 0;
    std::string out;
    const JsonStream::State state = stream_.push(in.rest(), used, out);
    in.skip(used);
    sink.arguments(out);
    if (state == JsonStream::State::kMore) return Step::kMore;
    return state == JsonStream::State::kBad ? Step::kBroken : end(sink);
  }

  Step end(CallSink& sink) {
    sink.end_call();
    place_ = Place::kAfter;
    return Step::kAgain;
  }

  Step after(Cursor& in) {
    const Cursor::Found found = in.find({&call_end(), &call_begin(), &section_end()});
    in.skip(found.offset);
    if (found.match != Cursor::Match::kYes)
      return found.offset > 0 ? Step::kAgain : (in.ended() ? Step::kDone : Step::kMore);
    if (found.marker == &call_end()) in.skip(found.marker->spelling.size());
    place_ = Place::kBetween;
    return Step::kAgain;
  }

  const Markers& markers_;
  const bool kimi_;
  std::array<const Marker*, 1> openers_;
  Place place_ = Place::kBetween;
  std::string name_;
  JsonStream stream_;
  bool fresh_ = true;
};

}  // namespace

std::unique_ptr<CallSyntax> make_kimi_calls(const Markers& markers) {
  return std::make_unique<SectionCalls>(markers, true);
}
std::unique_ptr<CallSyntax> make_deepseek_calls(const Markers& markers) {
  return std::make_unique<SectionCalls>(markers, false);
}

namespace {

Result<CallLayout> section_layout(std::string_view family, const Markers& markers) {
  TANDEM_CHECK(
      need_tokens(family, {&markers[0], &markers[1], &markers[2], &markers[3], &markers[4]}));
  CallLayout out;
  open_with(out, {&markers[0]});
  out.open = lark_marker(markers[2]);
  out.between = out.open;
  out.close = lark_marker(markers[1]);
  return out;
}

}  // namespace

Result<CallLayout> kimi_layout(const LayoutInput& in) {
  TANDEM_TRY(out, section_layout("kimi_k2", in.markers));
  out.names = names_without("");
  out.call = [body = lark_marker(in.markers[3]),
              end = lark_marker(in.markers[4])](const GrammarTool& tool) {
    return lark_text("functions." + tool.name + ":") + " /[0-9]{1,6}/ " + body + " " +
           json_arguments(tool) + " " + end;
  };
  return out;
}

// V3 and R1 fence the JSON and put each call on a line of its own; V3.1 does neither.
Result<CallLayout> deepseek_layout(const LayoutInput& in) {
  TANDEM_TRY(out, section_layout("deepseek_v3", in.markers));
  const std::string sep = lark_marker(in.markers[3]);
  const std::string end = lark_marker(in.markers[4]);
  if (in.chat_template.find("```json") == std::string_view::npos) {
    out.call = [sep, end](const GrammarTool& tool) {
      return lark_text(tool.name) + " " + sep + " " + json_arguments(tool) + " " + end;
    };
    return out;
  }
  out.between = "\"\\n\" " + out.open;
  out.call = [sep, end](const GrammarTool& tool) {
    return "\"function\" " + sep + " " + lark_text(tool.name + "\n```json\n") + " " +
           json_arguments(tool) + " \"\\n```\" " + end;
  };
  return out;
}

}  // namespace tandem::api
