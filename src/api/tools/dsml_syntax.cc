// DeepSeek V3.2 and later: a block of tags that begin with a DSML mark, `invoke name=` for each
// call and one `parameter name= string=` for each argument; some versions put a space behind the
// mark and name the block otherwise.
#include <array>
#include <optional>
#include <utility>

#include "api/tools/call_layout.h"
#include "api/tools/json_calls.h"
#include "api/tools/syntax.h"

namespace tandem::api {

namespace {

constexpr size_t kMaxTag = 2048;

struct Tag {
  bool closing = false;
  bool empty = false;  // <... />
  std::string name;
  std::string subject;  // name="..."
  bool string = true;   // string="..."
};

std::string attribute(std::string_view text, std::string_view key) {
  const std::string start = " " + std::string(key) + "=\"";
  const size_t from = text.find(start);
  if (from == std::string_view::npos) return {};
  const size_t begin = from + start.size();
  const size_t end = text.find('"', begin);
  return std::string(text.substr(begin, end == std::string_view::npos ? end : end - begin));
}

class DsmlCalls final : public CallSyntax {
 public:
  explicit DsmlCalls(const Markers& markers) : markers_(markers) {
    for (size_t i = 0; i < openers_.size(); ++i) openers_[i] = &markers[i];
  }

  std::span<const Marker* const> openers() const override { return openers_; }
  void open(const Marker*) override {
    in_call_ = false;
    value_ = false;
  }

  Step step(Cursor& in, CallSink& sink) override {
    if (value_) return read_value(in, sink);
    in.skip(in.spaces());
    if (in.size() == 0) return in.ended() && !in_call_ && !in.cut() ? Step::kDone : Step::kMore;
    std::optional<Tag> tag;
    size_t length = 0;
    const Cursor::Match match = read_tag(in, tag, length);
    if (match != Cursor::Match::kYes)
      return match == Cursor::Match::kMaybe ? Step::kMore : Step::kBroken;
    if (!in_call_ && tag->name == "invoke" && !tag->closing) in.record();
    in.skip(length);
    return take(*tag, sink);
  }

 private:
  Step take(const Tag& tag, CallSink& sink) {
    if (in_call_) {
      if (tag.name == "invoke" && tag.closing) {
        writer_.end(sink);
        in_call_ = false;
        return Step::kAgain;
      }
      if (tag.name != "parameter" || tag.closing) return Step::kBroken;
      string_ = tag.string;
      raw_.begin(sink, writer_, tag.subject,
                 string_ ? ArgumentTypes{ArgumentTypes::kString}
                         : ArgumentTypes{ArgumentTypes::kAny & ~ArgumentTypes::kString});
      value_ = true;
      return Step::kAgain;
    }
    if (tag.closing) return Step::kDone;  // the block's
    if (tag.name != "invoke" || tag.subject.empty()) return Step::kBroken;
    writer_.begin(sink, tag.subject);
    in_call_ = !tag.empty;
    if (tag.empty) writer_.end(sink);
    return Step::kAgain;
  }

  Step read_value(Cursor& in, CallSink& sink) {
    const Cursor::Found found = in.find({&markers_[3], &markers_[4]});
    raw_.add(sink, writer_, in.take(found.offset));
    if (found.match != Cursor::Match::kYes) return found.offset > 0 ? Step::kAgain : Step::kMore;
    in.skip(found.marker->spelling.size());
    raw_.end(sink, writer_);
    value_ = false;
    return Step::kAgain;
  }

  Cursor::Match read_tag(const Cursor& in, std::optional<Tag>& tag, size_t& length) const {
    const std::string_view text = in.rest();
    const Cursor::Match open = in.at(markers_[5]);
    const Cursor::Match close = in.at(markers_[6]);
    if (open != Cursor::Match::kYes && close != Cursor::Match::kYes) {
      const bool maybe = open == Cursor::Match::kMaybe || close == Cursor::Match::kMaybe;
      return maybe ? Cursor::Match::kMaybe : Cursor::Match::kNo;
    }
    bool quoted = false;
    size_t end = 0;
    while (end < text.size() && (quoted || text[end] != '>')) quoted ^= text[end++] == '"';
    if (end == text.size()) return end > kMaxTag ? Cursor::Match::kNo : Cursor::Match::kMaybe;
    length = end + 1;
    tag.emplace();
    tag->closing = close == Cursor::Match::kYes;
    const size_t mark = (tag->closing ? markers_[6] : markers_[5]).spelling.size();
    std::string_view inside = text.substr(mark, end - mark);
    tag->empty = inside.ends_with('/');
    if (tag->empty) inside.remove_suffix(1);
    if (inside.starts_with(' ')) inside.remove_prefix(1);
    tag->name = inside.substr(0, inside.find(' '));
    tag->subject = attribute(inside, "name");
    tag->string = attribute(inside, "string") != "false";
    return Cursor::Match::kYes;
  }

  // The three openers; both spellings of a parameter's end; what every tag begins with.
  const Markers& markers_;
  std::array<const Marker*, 3> openers_{};
  ArgumentsWriter writer_;
  RawValue raw_;
  bool in_call_ = false;
  bool value_ = false;
  bool string_ = true;
};

}  // namespace

std::unique_ptr<CallSyntax> make_dsml_calls(const Markers& markers) {
  return std::make_unique<DsmlCalls>(markers);
}

// V3.2 calls the block function_calls, V4 tool_calls; some put a space behind the mark. The mark
// may be a token, the tags around it are letters.
Result<CallLayout> dsml_layout(const LayoutInput& in) {
  const std::string mark = in.markers[5].spelling.substr(1);
  const auto says = [&](const std::string& word) {
    return in.chat_template.find(mark + word) != std::string_view::npos;
  };
  const std::string space = says(" calls") || says(" invoke") ? " " : "";
  const std::string block = !space.empty()       ? "calls"
                            : says("tool_calls") ? "tool_calls"
                                                 : "function_calls";
  const int32_t token = in.kept.empty() ? -1 : in.kept[0].token;
  const auto tag = [mark, token, space](const char* open, const std::string& rest) {
    if (token < 0) return lark_text(open + mark + space + rest);
    return lark_text(open) + " <[" + std::to_string(token) + "]> " + lark_text(space + rest);
  };
  CallLayout out;
  open_with(out, {&in.markers[0], &in.markers[1], &in.markers[2]});
  out.opener = tag("<", block + ">\n");
  if (token >= 0) {
    out.before = "%without(" + lark_text(mark) + ") " + out.opener;
    out.free = "%without(" + lark_text(mark) + ")";
  } else {
    const std::string first = "<" + mark + space + block + ">";
    std::string others;
    for (const std::string& other : out.markers) {
      if (other != first) others += " " + lark_text(other);
    }
    out.before = "%until(" + lark_text(first) + " without" + others + ") \"\\n\"";
  }
  out.names = names_without("\"");
  out.close = tag("</", block + ">");
  out.call = [tag, never = in.markers[space.empty() ? 3 : 4].spelling](const GrammarTool& tool) {
    const ArgumentParts parts{.open = tag("<", "parameter name=\""),
                              .value = "\"\\\" string=\\\"false\\\">\"",
                              .string = "\"\\\" string=\\\"true\\\">\"",
                              .typed = {},
                              .close = tag("</", "parameter>\n"),
                              .flags = "typed",
                              .never = {never}};
    return tag("<", "invoke name=\"" + tool.name + "\">\n") + " " + listed_arguments(tool, parts) +
           " " + tag("</", "invoke>\n");
  };
  return out;
}

}  // namespace tandem::api
