// gpt-oss: a reply is messages, <|start|>HEADER<|message|>BODY and a token that ends it. The header
// has a role, a channel (<|channel|>NAME), perhaps a recipient (to=...) behind either, perhaps a
// content type. The channel says what the body is: analysis is reasoning, final is the answer,
// commentary without a recipient is said to the user; a recipient functions.NAME makes it a call,
// other recipients are tools of the model's own that nobody runs here.
#include <optional>
#include <utility>

#include "api/tools/call_layout.h"
#include "api/tools/json_stream.h"
#include "api/tools/syntax.h"

namespace tandem::api {

namespace {

constexpr size_t kMaxHeader = 4096;
constexpr std::string_view kFunctions = "functions.";

class HarmonyReply final : public ReplyMachine {
 public:
  // The prompt ends with "<|start|>assistant": the reply begins inside a header.
  HarmonyReply(const Markers& markers, Opening opening) : markers_(markers) {
    if (opening == Opening::kReasoning) {
      kind_ = Kind::kReasoning;
      in_body_ = true;
    } else if (opening == Opening::kAnswer) {
      kind_ = Kind::kText;
      in_body_ = true;
    }
  }

  bool step(Cursor& in, CallSink& sink) override {
    if (in_body_) return kind_ == Kind::kCall ? call(in, sink) : body(in, sink);
    return header(in, sink);
  }

  void finish(Cursor& in, CallSink& sink) override {
    const std::string rest = in.take(in.size());
    if (!in_body_) {
      // A header that never had its message: what the model said in it is better than nothing.
      if (!in.cut() && channel_ && recipient_.empty()) {
        const std::string text = *channel_ + rest;
        if (text.starts_with("final ")) sink.text(text.substr(6));
      }
      return;
    }
    if (kind_ == Kind::kReasoning) sink.reasoning(rest);
    if (kind_ == Kind::kText) sink.text(rest);
    if (kind_ == Kind::kCall) sink.drop_call();
  }

 private:
  enum class Kind : uint8_t { kText, kReasoning, kCall, kNothing };
  const Marker& start() const { return markers_[0]; }
  const Marker& end() const { return markers_[1]; }
  const Marker& message() const { return markers_[2]; }
  const Marker& channel() const { return markers_[3]; }
  const Marker& constrain() const { return markers_[4]; }
  const Marker& call_end() const { return markers_[5]; }
  const Marker& reply_end() const { return markers_[6]; }

  bool header(Cursor& in, CallSink& sink) {
    const Cursor::Found found = in.find(
        {&start(), &end(), &message(), &channel(), &constrain(), &call_end(), &reply_end()});
    const bool marker = found.match == Cursor::Match::kYes;
    if (!marker && in.size() < kMaxHeader) return false;
    const std::string words = in.take(found.offset);
    read_words(words);
    if (!marker) return true;
    in.skip(found.marker->spelling.size());
    if (found.marker == &channel()) {
      // A second channel in one header: the first led nowhere.
      if (channel_) recipient_.clear();
      channel_ = "";
      typed_ = false;
    } else if (found.marker == &constrain()) {
      typed_ = true;
    } else if (found.marker == &message()) {
      begin_body(sink);
    } else {
      clear();
    }
    return true;
  }

  // Of a header: a role or a channel's name, a recipient, a content type.
  void read_words(std::string_view text) {
    size_t at = 0;
    while (at < text.size()) {
      const size_t from = text.find_first_not_of(" \n", at);
      if (from == std::string_view::npos) break;
      const size_t to = std::min(text.find_first_of(" \n", from), text.size());
      const std::string_view word = text.substr(from, to - from);
      at = to;
      if (word.starts_with("to=")) {
        recipient_ = word.substr(3);
      } else if (channel_ && channel_->empty() && !typed_) {
        channel_ = word;
      }
    }
  }

  void begin_body(CallSink& sink) {
    in_body_ = true;
    const std::string channel = channel_.value_or("");
    const std::string recipient =
        recipient_ == "assistant" || recipient_ == "all" ? "" : recipient_;
    if (recipient.starts_with(kFunctions)) {
      kind_ = Kind::kCall;
      name_ = recipient.substr(kFunctions.size());
    } else if (!recipient.empty() && sink.tools().knows(recipient)) {
      kind_ = Kind::kCall;
      name_ = recipient;
    } else if (!recipient.empty()) {
      kind_ = Kind::kNothing;
    } else {
      kind_ = channel == "analysis" ? Kind::kReasoning : Kind::kText;
    }
    if (kind_ == Kind::kCall && sink.tools().empty()) kind_ = Kind::kNothing;
    stream_ = JsonStream();
    begun_ = over_ = false;
  }

  void clear() {
    in_body_ = false;
    channel_.reset();
    recipient_.clear();
    typed_ = false;
  }

  void leave(Cursor& in, const Marker& marker) {
    clear();
    // A channel without a start: the next header has begun already.
    if (&marker == &channel()) return;
    in.skip(marker.spelling.size());
  }

  bool body(Cursor& in, CallSink& sink) {
    const Cursor::Found found = in.find({&end(), &call_end(), &reply_end(), &start(), &channel()});
    if (found.offset > 0) {
      const std::string text = in.take(found.offset);
      if (kind_ == Kind::kReasoning) sink.reasoning(text);
      if (kind_ == Kind::kText) sink.text(text);
      return true;
    }
    if (found.match != Cursor::Match::kYes) return false;
    sink.close_run();
    leave(in, *found.marker);
    return true;
  }

  bool call(Cursor& in, CallSink& sink) {
    if (over_) {
      const Cursor::Found found =
          in.find({&end(), &call_end(), &reply_end(), &start(), &channel()});
      in.skip(found.offset);
      if (found.match != Cursor::Match::kYes) return found.offset > 0;
      leave(in, *found.marker);
      return true;
    }
    if (!begun_) {
      in.skip(in.spaces());
      if (in.size() == 0) return false;
      in.record();
      sink.begin_call(name_);
      begun_ = true;
      // Every function takes an object; a body that is none is one without arguments, or broken.
      if (in.rest()[0] != '{') return broken(in, sink);
    }
    size_t used = 0;
    std::string out;
    const JsonStream::State state = stream_.push(in.rest(), used, out);
    in.skip(used);
    sink.arguments(out);
    if (state == JsonStream::State::kMore) return used > 0;
    if (state == JsonStream::State::kBad) return broken(in, sink);
    (void)in.stop_recording();
    sink.end_call();
    over_ = true;
    return true;
  }

  bool broken(Cursor& in, CallSink& sink) {
    const bool empty =
        in.at(call_end()) == Cursor::Match::kYes || in.at(end()) == Cursor::Match::kYes;
    const std::string raw = in.stop_recording();
    if (empty && raw.empty()) {
      sink.arguments("{}");
      sink.end_call();
    } else {
      sink.drop_call();
      sink.text(raw);
      kind_ = Kind::kText;
    }
    over_ = true;
    return true;
  }

  const Markers& markers_;
  bool in_body_ = false;
  Kind kind_ = Kind::kText;
  std::optional<std::string> channel_;
  std::string recipient_;
  bool typed_ = false;
  std::string name_;
  JsonStream stream_;
  bool begun_ = false;
  bool over_ = false;
};

}  // namespace

std::unique_ptr<ReplyMachine> make_harmony_reply(const Markers& markers, Opening opening) {
  return std::make_unique<HarmonyReply>(markers, opening);
}

// The token that ends a call may be one that ends generation; then the grammar is complete already.
Result<CallLayout> harmony_layout(const LayoutInput& in) {
  const Markers& markers = in.markers;
  TANDEM_CHECK(
      need_tokens("harmony", {&markers[0], &markers[1], &markers[2], &markers[3], &markers[4]}));
  const std::string message = " " + lark_marker(markers[2]);
  const auto channel = [&](const char* name) { return lark_marker(markers[3]) + " " + name; };
  const std::string again =
      lark_marker(markers[1]) + " " + lark_marker(markers[0]) + " \"assistant\"";
  const std::string begin = in.opening == Opening::kAnswer ? again + " " : "";
  CallLayout out;
  out.names = names_without(" \n");
  out.single = true;
  out.open = begin + channel("\"commentary to=functions.\"");
  out.call = [middle = " " + lark_marker(markers[4]) + " \"json\"" + message + " ",
              end = markers[5].token < 0 ? "" : " [" + lark_marker(markers[5]) + "]"](
                 const GrammarTool& tool) {
    return lark_text(tool.name + " ") + middle + json_arguments(tool) + end;
  };
  const bool answering = in.opening == Opening::kAnswer;
  out.frame = ReplyFrame{
      .thought_open = channel("\"analysis\"") + message,
      .thought_close = again,
      .answer_open = answering ? "" : channel("\"final\"") + message,
      .answer_close = {},
      .before_calls =
          answering ? "/(.|\\n)*/" : channel("\"commentary\"") + message + " /(.|\\n)*/ " + again};
  return out;
}

}  // namespace tandem::api
