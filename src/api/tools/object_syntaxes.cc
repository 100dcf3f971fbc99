// Calls written as JSON objects with name and arguments: Hermes and Qwen between tags, Llama 3 bare
// or behind a token, Mistral's lists.
#include <array>
#include <optional>

#include "api/tools/call_layout.h"
#include "api/tools/json_calls.h"
#include "api/tools/syntax.h"

namespace tandem::api {

namespace {

// One object, or a list of them.
class ObjectList {
 public:
  enum class State : uint8_t { kMore, kAgain, kDone, kBroken };

  explicit ObjectList(bool offered_only) : offered_only_(offered_only) {}

  State step(Cursor& in, CallSink& sink) {
    if (object_) {
      size_t used = 0;
      const JsonStream::State state = object_->push(in.rest(), used, sink);
      in.skip(used);
      if (state == JsonStream::State::kBad) return State::kBroken;
      if (state == JsonStream::State::kMore) return State::kMore;
      object_.reset();
      first_ = false;
      return list_ ? State::kAgain : State::kDone;
    }
    in.skip(in.spaces());
    if (in.size() == 0) return State::kMore;
    const char c = in.rest()[0];
    if (c == '[' && first_ && !list_) {
      list_ = true;
      in.skip(1);
    } else if (c == '{') {
      object_.emplace(offered_only_);
    } else if (list_ && (c == ']' || (c == ',' && !first_))) {
      in.skip(1);
      if (c == ']') return State::kDone;
    } else {
      return State::kBroken;
    }
    return State::kAgain;
  }

 private:
  bool offered_only_;
  bool list_ = false;
  bool first_ = true;
  std::optional<CallObject> object_;
};

CallSyntax::Step as_step(ObjectList::State state) {
  switch (state) {
    case ObjectList::State::kMore:
      return CallSyntax::Step::kMore;
    case ObjectList::State::kBroken:
      return CallSyntax::Step::kBroken;
    default:
      return CallSyntax::Step::kAgain;
  }
}

// OPEN object-or-list CLOSE. The call counts when its JSON is complete; a closing tag that never
// comes is not missed.
class HermesCalls final : public CallSyntax {
 public:
  explicit HermesCalls(const Markers& markers) : close_(&markers[1]), openers_{&markers[0]} {}

  std::span<const Marker* const> openers() const override { return openers_; }
  void open(const Marker*) override {
    list_.emplace(false);
    over_ = false;
  }
  Step step(Cursor& in, CallSink& sink) override {
    if (!over_) {
      const ObjectList::State state = list_->step(in, sink);
      over_ = state == ObjectList::State::kDone;
      return as_step(state);
    }
    const size_t spaces = in.spaces();
    const Cursor::Match match = in.at(*close_, spaces);
    if (match == Cursor::Match::kMaybe) return Step::kMore;
    if (match == Cursor::Match::kYes) in.skip(spaces + close_->spelling.size());
    return Step::kDone;
  }

 private:
  const Marker* close_;
  std::array<const Marker*, 1> openers_;
  std::optional<ObjectList> list_;
  bool over_ = false;
};

// Objects joined by ";", bare where the answer begins or behind a marker. Bare ones must name an
// offered function: any JSON may be an answer.
class LlamaCalls final : public CallSyntax {
 public:
  explicit LlamaCalls(const Markers& markers) : openers_{&markers[0]} {}

  std::span<const Marker* const> openers() const override { return openers_; }
  Cursor::Match bare(const Cursor& in) const override {
    const size_t spaces = in.spaces();
    return spaces < in.size() && in.rest()[spaces] == '{' ? Cursor::Match::kYes
                                                          : Cursor::Match::kNo;
  }
  void open(const Marker* opener) override {
    bare_ = opener == nullptr;
    list_.emplace(bare_);
    between_ = false;
  }
  Step step(Cursor& in, CallSink& sink) override {
    if (!between_) {
      const ObjectList::State state = list_->step(in, sink);
      if (state == ObjectList::State::kDone) {
        between_ = true;
        in.record();  // what follows may be text
      }
      return as_step(state);
    }
    const size_t spaces = in.spaces();
    if (spaces == in.size()) return in.ended() ? Step::kDone : Step::kMore;
    const char c = in.rest()[spaces];
    if (c != ';' && c != '{') return Step::kDone;
    in.skip(spaces + (c == ';' ? 1 : 0));
    list_.emplace(bare_);
    between_ = false;
    return Step::kAgain;
  }

 private:
  std::array<const Marker*, 1> openers_;
  std::optional<ObjectList> list_;
  bool bare_ = false;
  bool between_ = false;
};

// [TOOL_CALLS] and a list of objects, or NAME, perhaps [CALL_ID] and an id, perhaps [ARGS], and the
// arguments.
class MistralCalls final : public CallSyntax {
 public:
  explicit MistralCalls(const Markers& markers)
      : call_id_(&markers[1]), arguments_(&markers[2]), openers_{&markers[0]} {}

  std::span<const Marker* const> openers() const override { return openers_; }
  void open(const Marker*) override {
    place_ = Place::kBegin;
    list_.reset();
    name_.clear();
    stream_ = JsonStream();
  }
  Step step(Cursor& in, CallSink& sink) override {
    switch (place_) {
      case Place::kBegin: {
        const size_t spaces = in.spaces();
        if (spaces == in.size()) return Step::kMore;
        const Cursor::Match arguments = in.at(*arguments_, spaces);
        const Cursor::Match call_id = in.at(*call_id_, spaces);
        if (arguments == Cursor::Match::kMaybe || call_id == Cursor::Match::kMaybe)
          return Step::kMore;
        const bool list = in.rest()[spaces] == '[' && arguments == Cursor::Match::kNo &&
                          call_id == Cursor::Match::kNo;
        in.skip(spaces);
        if (list) list_.emplace(false);
        place_ = list ? Place::kList : Place::kName;
        return Step::kAgain;
      }
      case Place::kList: {
        const ObjectList::State state = list_->step(in, sink);
        return state == ObjectList::State::kDone ? Step::kDone : as_step(state);
      }
      case Place::kName:
        return read_name(in, sink);
      default:
        return read_arguments(in, sink);
    }
  }

 private:
  enum class Place : uint8_t { kBegin, kList, kName, kArguments };
  static constexpr size_t kMaxName = 256;

  Step read_name(Cursor& in, CallSink& sink) {
    static const Marker kBrace{"{", -1};
    const Cursor::Found found = in.find({call_id_, arguments_, &kBrace});
    if (found.match != Cursor::Match::kYes) {
      // A name has no spaces: text behind the marker is no call.
      const bool text = in.rest().substr(0, found.offset).find_first_of(" \n") != std::string::npos;
      return text || in.size() > kMaxName ? Step::kBroken : Step::kMore;
    }
    const std::string before = in.take(found.offset);
    if (name_.empty()) name_ = before;  // else it is the id, which we give ourselves
    if (name_.empty() || name_.find_first_of(" \n") != std::string::npos) return Step::kBroken;
    if (found.marker != &kBrace) in.skip(found.marker->spelling.size());
    if (found.marker == call_id_) return Step::kAgain;
    sink.begin_call(name_);
    place_ = Place::kArguments;
    return Step::kAgain;
  }

  Step read_arguments(Cursor& in, CallSink& sink) {
    const size_t spaces = in.spaces();
    if (!begun_ && spaces < in.size() && in.rest()[spaces] != '{') return Step::kBroken;
    size_t used = 0;
    std::string out;
    const JsonStream::State state = stream_.push(in.rest(), used, out);
    in.skip(used);
    begun_ = true;
    sink.arguments(out);
    if (state == JsonStream::State::kMore) return Step::kMore;
    begun_ = false;
    if (state == JsonStream::State::kBad) return Step::kBroken;
    sink.end_call();
    return Step::kDone;
  }

  const Marker* call_id_;
  const Marker* arguments_;
  std::array<const Marker*, 1> openers_;
  Place place_ = Place::kBegin;
  std::optional<ObjectList> list_;
  std::string name_;
  JsonStream stream_;
  bool begun_ = false;
};

}  // namespace

std::unique_ptr<CallSyntax> make_hermes_calls(const Markers& markers) {
  return std::make_unique<HermesCalls>(markers);
}
std::unique_ptr<CallSyntax> make_llama_calls(const Markers& markers) {
  return std::make_unique<LlamaCalls>(markers);
}
std::unique_ptr<CallSyntax> make_mistral_calls(const Markers& markers) {
  return std::make_unique<MistralCalls>(markers);
}

Result<CallLayout> hermes_layout(const LayoutInput& in) {
  CallLayout out;
  out.names = any_name();
  open_with(out, {&in.markers[0]});
  out.between = "\"\\n\" " + out.opener;
  out.call = [close = lark_marker(in.markers[1])](const GrammarTool& tool) {
    return "\"\\n\" " + json_call(tool, "arguments") + " \"\\n\" " + close;
  };
  return out;
}

// One list of all calls.
Result<CallLayout> smollm_layout(const LayoutInput& in) {
  CallLayout out;
  out.names = any_name();
  open_with(out, {&in.markers[0]});
  out.open = "\"[\"";
  out.between = "\", \"";
  out.close = "\"]\" " + lark_marker(in.markers[1]);
  out.call = [](const GrammarTool& tool) { return json_call(tool, "arguments"); };
  return out;
}

Result<CallLayout> llama_layout(const LayoutInput& in) {
  CallLayout out;
  out.names = any_name();
  open_with(out, {&in.markers[0]});
  out.before.clear();
  out.bare = '{';
  out.between = "\"; \"";
  out.call = [](const GrammarTool& tool) { return json_call(tool, "parameters"); };
  return out;
}

// A list of objects up to their v7; from v11 on a name and arguments, in some with an id between.
Result<CallLayout> mistral_layout(const LayoutInput& in) {
  TANDEM_CHECK(need_tokens("mistral", {&in.markers[0]}));
  const auto says = [&](std::string_view word) {
    return in.chat_template.find(word) != std::string_view::npos;
  };
  CallLayout out;
  open_with(out, {&in.markers[0]});
  if (!says("[ARGS]") && !(in.chat_template.empty() && in.markers[2].token >= 0)) {
    out.names = any_name();
    out.open = "\"[\"";
    out.between = "\", \"";
    out.close = "\"]\"";
    out.call = [](const GrammarTool& tool) { return json_call(tool, "arguments"); };
    return out;
  }
  TANDEM_CHECK(need_tokens("mistral", {&in.markers[2]}));
  out.names = names_without(" \t\r\n{[");
  out.between = out.opener;
  std::string middle = lark_marker(in.markers[2]);
  if (says("[CALL_ID]") && in.markers[1].token >= 0)
    middle = lark_marker(in.markers[1]) + " /[a-zA-Z0-9]{9}/ " + middle;
  out.call = [middle](const GrammarTool& tool) {
    return lark_text(tool.name) + " " + middle + " " + json_arguments(tool);
  };
  return out;
}

}  // namespace tandem::api
