// Kimi K3: elements of control tokens, <|open|>NAME ATTRIBUTES<|sep|> ... <|close|>NAME<|sep|>:
// think, response, tools, in it call tool= with argument key= type= elements.
#include <optional>
#include <utility>

#include "api/tools/call_layout.h"
#include "api/tools/json_calls.h"
#include "api/tools/syntax.h"

namespace tandem::api {

namespace {

constexpr size_t kMaxHead = 4096;

std::string unescaped(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> kEntities[] = {
      {"&quot;", "\""}, {"&lt;", "<"}, {"&gt;", ">"}, {"&apos;", "'"}, {"&amp;", "&"}};
  for (const auto& [entity, plain] : kEntities) {
    for (size_t at = text.find(entity); at != std::string::npos;
         at = text.find(entity, at + plain.size()))
      text.replace(at, entity.size(), plain);
  }
  return text;
}

std::string attribute(std::string_view head, std::string_view key) {
  const std::string start = " " + std::string(key) + "=\"";
  const size_t from = head.find(start);
  if (from == std::string_view::npos) return {};
  const size_t begin = from + start.size();
  const size_t end = head.find('"', begin);
  if (end == std::string_view::npos) return {};
  return unescaped(std::string(head.substr(begin, end - begin)));
}

class XtmlReply final : public ReplyMachine {
 public:
  XtmlReply(const Markers& markers, Opening opening) : markers_(markers) {
    if (opening == Opening::kReasoning) place_ = Place::kThink;
    if (opening == Opening::kAnswer) place_ = Place::kResponse;
  }

  bool step(Cursor& in, CallSink& sink) override {
    if (head_) return read_head(in, sink);
    const Cursor::Found found = in.find({&open(), &close()});
    const bool marker = found.match == Cursor::Match::kYes;
    if (found.offset == 0 && !marker) return false;
    take_text(in.take(found.offset), sink);
    if (!marker) return true;
    closing_ = found.marker == &close();
    in.skip(found.marker->spelling.size());
    head_ = true;
    return true;
  }

  void finish(Cursor& in, CallSink& sink) override {
    const std::string rest = in.take(in.size());
    if (!head_) take_text(rest, sink);
    sink.drop_call();
  }

 private:
  enum class Place : uint8_t { kNone, kThink, kResponse, kTools, kCall, kArgument };
  const Marker& open() const { return markers_[0]; }
  const Marker& close() const { return markers_[1]; }
  const Marker& sep() const { return markers_[2]; }

  void take_text(std::string_view text, CallSink& sink) {
    if (place_ == Place::kThink) sink.reasoning(text);
    if (place_ == Place::kResponse || place_ == Place::kNone) sink.text(text);
    if (place_ == Place::kArgument) raw_.add(sink, writer_, text);
  }

  bool read_head(Cursor& in, CallSink& sink) {
    const Cursor::Found found = in.find({&sep()});
    if (found.match != Cursor::Match::kYes) {
      if (in.size() < kMaxHead) return false;
      in.skip(in.size());
      return true;
    }
    const std::string head = in.take(found.offset);
    in.skip(sep().spelling.size());
    head_ = false;
    const std::string name = head.substr(0, head.find(' '));
    if (closing_) {
      leave(name, sink);
    } else {
      enter(name, head, sink);
    }
    return true;
  }

  void enter(const std::string& name, const std::string& head, CallSink& sink) {
    if (name == "call" && !sink.tools().empty()) {
      writer_.begin(sink, attribute(head, "tool"));
      place_ = Place::kCall;
    } else if (name == "argument" && place_ == Place::kCall) {
      const std::string type = attribute(head, "type");
      const std::string key = attribute(head, "key");
      ArgumentTypes types = argument_types(writer_.parameters(), key);
      if (type == "string") types.bits = ArgumentTypes::kString;
      if (!type.empty() && type != "string")
        types.bits = ArgumentTypes::kAny & ~ArgumentTypes::kString;
      raw_.begin(sink, writer_, key, types);
      place_ = Place::kArgument;
    } else {
      sink.close_run();
      if (name == "think") place_ = Place::kThink;
      if (name == "response" || name == "message") place_ = Place::kResponse;
      if (name == "tools") place_ = Place::kTools;
    }
  }

  void leave(const std::string& name, CallSink& sink) {
    if (place_ == Place::kArgument) {
      raw_.end(sink, writer_);
      place_ = Place::kCall;
      if (name != "call") return;
    }
    if (place_ == Place::kCall) {
      writer_.end(sink);
      place_ = Place::kTools;
      return;
    }
    sink.close_run();
    place_ = Place::kTools;  // between elements nothing is said
  }

  const Markers& markers_;
  Place place_ = Place::kNone;
  bool head_ = false;
  bool closing_ = false;
  ArgumentsWriter writer_;
  RawValue raw_;
};

}  // namespace

std::unique_ptr<ReplyMachine> make_xtml_reply(const Markers& markers, Opening opening) {
  return std::make_unique<XtmlReply>(markers, opening);
}

Result<CallLayout> xtml_layout(const LayoutInput& in) {
  const Markers& markers = in.markers;
  TANDEM_CHECK(need_tokens("kimi_k3", {&markers[0], &markers[1], &markers[2]}));
  const auto tag = [open = lark_marker(markers[0]), sep = lark_marker(markers[2])](
                       std::string_view head) { return open + " " + lark_text(head) + " " + sep; };
  const auto end = [close = lark_marker(markers[1]), sep = lark_marker(markers[2])](
                       std::string_view name) { return close + " " + lark_text(name) + " " + sep; };
  const std::string message = " [" + end("message") + "]";
  const bool answering = in.opening == Opening::kAnswer;
  CallLayout out;
  out.names = names_without("\"&");
  out.open = (answering ? end("response") + " " : "") + tag("tools");
  out.close = end("tools") + message;
  ArgumentParts parts{.open = lark_marker(markers[0]) + " " + lark_text("argument key=\""),
                      .value = {},
                      .string = lark_text("\" type=\"string\"") + " " + lark_marker(markers[2]),
                      .typed = {},
                      .close = end("argument"),
                      .flags = "typed, entities"};
  for (const char* type : {"number", "boolean", "null", "object", "array"}) {
    parts.typed += std::string(", ") + type + " = " +
                   lark_text("\" type=\"" + std::string(type) + "\"") + " " +
                   lark_marker(markers[2]);
  }
  out.call = [parts, open = lark_marker(markers[0]), sep = lark_marker(markers[2]),
              close = end("call")](const GrammarTool& tool) {
    return open + " " + lark_text("call tool=\"" + tool.name + "\" index=\"") +
           " /[1-9][0-9]{0,2}/ \"\\\"\" " + sep + " " + listed_arguments(tool, parts) + " " + close;
  };
  const std::string response = answering ? "" : tag("response");
  out.frame = ReplyFrame{
      .thought_open = tag("think"),
      .thought_close = end("think"),
      .answer_open = response,
      .answer_close = end("response") + message,
      .before_calls = response + " /(.|\\n)*/" + (answering ? "" : " " + end("response"))};
  return out;
}

}  // namespace tandem::api
