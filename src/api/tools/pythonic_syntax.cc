// Llama 4: a list of calls as Python would write them, [name(key=value, ...), ...], bare or between
// markers. The list counts when it is whole.
#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "api/tools/call_layout.h"
#include "api/tools/json_stream.h"
#include "api/tools/syntax.h"
#include "base/json_value.h"
#include "text/unicode.h"

namespace tandem::api {

namespace {

constexpr size_t kMaxList = 1 << 20;
constexpr int kMaxDepth = 32;

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.';
}

// Python's literals to JSON. `at` moves over what was read.
class Literals {
 public:
  explicit Literals(std::string_view text) : text_(text) {}

  void spaces() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r'))
      ++at_;
  }
  bool eat(char c) {
    spaces();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  std::string name() {
    spaces();
    const size_t from = at_;
    while (at_ < text_.size() && is_name(text_[at_])) ++at_;
    return std::string(text_.substr(from, at_ - from));
  }
  bool value(std::string& out, int depth = 0) {
    spaces();
    if (at_ >= text_.size() || depth > kMaxDepth) return false;
    const char c = text_[at_];
    if (c == '"' || c == '\'') return string(out);
    if (c == '[' || c == '(') return list(out, c == '[' ? ']' : ')', depth);
    if (c == '{') return dict(out, depth);
    return word(out);
  }

 private:
  bool word(std::string& out) {
    const size_t from = at_;
    while (at_ < text_.size() && (is_name(text_[at_]) || text_[at_] == '+')) ++at_;
    const std::string_view word = text_.substr(from, at_ - from);
    if (word == "True" || word == "true") {
      out += "true";
    } else if (word == "False" || word == "false") {
      out += "false";
    } else if (word == "None" || word == "null") {
      out += "null";
    } else {
      JsonStream stream;
      size_t used = 0;
      stream.push(word, used, out);
      return stream.finish(out) == JsonStream::State::kDone && used == word.size();
    }
    return true;
  }

  bool code_point(size_t digits, std::string& out) {
    uint32_t value = 0;
    const std::string_view text = text_.substr(std::min(at_, text_.size()), digits);
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    const bool whole = failed == std::errc() && end == text.data() + digits;
    if (!whole || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) return false;
    text::append_utf8(out, value);
    at_ += digits;
    return true;
  }

  bool string(std::string& out) {
    const char quote = text_[at_++];
    out += '"';
    std::string plain;
    while (at_ < text_.size() && text_[at_] != quote) {
      char c = text_[at_++];
      if (c == '\\' && at_ < text_.size()) {
        c = text_[at_++];
        if (c == 'u' || c == 'x' || c == 'U') {
          if (!code_point(c == 'x' ? 2 : c == 'u' ? 4 : 8, plain)) (plain += '\\') += c;
          continue;
        }
        constexpr std::string_view kNames = "ntrbfav";
        constexpr std::string_view kControls = "\n\t\r\b\f\a\v";
        const size_t control = kNames.find(c);
        if (control != std::string_view::npos)
          c = kControls[control];
        else if (c != '\\' && c != '\'' && c != '"' && c != '\n')
          plain += '\\';
      }
      plain += c;
    }
    if (at_++ >= text_.size()) return false;
    append_json_text(out, plain);
    out += '"';
    return true;
  }

  bool list(std::string& out, char close, int depth) {
    ++at_;
    out += '[';
    for (bool first = true; !eat(close); first = false) {
      if (!first && !eat(',')) return false;
      if (!first && eat(close)) break;  // a comma may end a list
      if (!first) out += ',';
      if (!value(out, depth + 1)) return false;
    }
    out += ']';
    return true;
  }

  bool dict(std::string& out, int depth) {
    ++at_;
    out += '{';
    for (bool first = true; !eat('}'); first = false) {
      if (!first && !eat(',')) return false;
      if (!first && eat('}')) break;
      if (!first) out += ',';
      spaces();
      if (at_ >= text_.size() || (text_[at_] != '"' && text_[at_] != '\'')) return false;
      if (!string(out) || !eat(':')) return false;
      out += ':';
      if (!value(out, depth + 1)) return false;
    }
    out += '}';
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
};

bool read_calls(std::string_view text, CallSink& sink) {
  Literals in(text);
  if (!in.eat('[')) return false;
  sink.hold_calls();
  for (bool first = true; first || in.eat(','); first = false) {
    std::string name = in.name();
    if (name.empty() || !in.eat('(')) return false;
    std::string arguments = "{";
    for (bool one = true; !in.eat(')'); one = false) {
      if (!one && !in.eat(',')) return false;
      if (!one && in.eat(')')) break;
      const std::string key = in.name();
      if (key.empty() || !in.eat('=')) return false;
      if (!one) arguments += ',';
      append_json_string(arguments, key);
      arguments += ':';
      if (!in.value(arguments)) return false;
    }
    sink.begin_call(std::move(name));
    sink.arguments(arguments += '}');
    sink.end_call();
  }
  if (!in.eat(']')) return false;
  sink.release_calls();
  return true;
}

class PythonicCalls final : public CallSyntax {
 public:
  explicit PythonicCalls(const Markers& markers) : close_(&markers[1]), openers_{&markers[0]} {}

  std::span<const Marker* const> openers() const override { return openers_; }

  // "[name(" and nothing else.
  Cursor::Match bare(const Cursor& in) const override {
    const std::string_view text = in.rest().substr(in.spaces());
    if (text.empty() || text[0] != '[') return Cursor::Match::kNo;
    size_t at = 1;
    while (at < text.size() && text[at] == ' ') ++at;
    const size_t name = at;
    while (at < text.size() && is_name(text[at])) ++at;
    if (at == text.size()) return in.ended() ? Cursor::Match::kNo : Cursor::Match::kMaybe;
    return at > name && text[at] == '(' ? Cursor::Match::kYes : Cursor::Match::kNo;
  }

  void open(const Marker*) override {
    scanned_ = depth_ = 0;
    quote_ = 0;
    escaped_ = closed_ = false;
  }

  Step step(Cursor& in, CallSink& sink) override {
    if (closed_) {
      const size_t spaces = in.spaces();
      const Cursor::Match match = in.at(*close_, spaces);
      if (match == Cursor::Match::kMaybe) return Step::kMore;
      if (match == Cursor::Match::kYes) in.skip(spaces + close_->spelling.size());
      return Step::kDone;
    }
    // To the bracket that closes the list; each byte is looked at once.
    const std::string_view text = in.rest();
    while (scanned_ < text.size()) {
      const bool over = scan(text[scanned_++]);
      if (!over) continue;
      if (!read_calls(in.take(scanned_), sink)) {
        sink.drop_calls();
        return Step::kBroken;
      }
      closed_ = true;
      return Step::kAgain;
    }
    return in.size() > kMaxList ? Step::kBroken : Step::kMore;
  }

 private:
  bool scan(char c) {
    if (quote_ != 0) {
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == quote_) {
        quote_ = 0;
      }
      return false;
    }
    if (c == '"' || c == '\'') quote_ = c;
    if (c == '[' || c == '(' || c == '{') ++depth_;
    if (c == ']' || c == ')' || c == '}') return --depth_ <= 0;
    return false;
  }

  const Marker* close_;
  std::array<const Marker*, 1> openers_;
  size_t scanned_ = 0;
  int depth_ = 0;
  char quote_ = 0;
  bool escaped_ = false;
  bool closed_ = false;
};

}  // namespace

std::unique_ptr<CallSyntax> make_pythonic_calls(const Markers& markers) {
  return std::make_unique<PythonicCalls>(markers);
}

Result<CallLayout> pythonic_layout(const LayoutInput& in) {
  CallLayout out;
  open_with(out, {&in.markers[0]});
  out.before.clear();
  out.names = [](std::string_view name) { return std::ranges::all_of(name, is_name); };
  out.bare = '[';
  out.open = "\"[\"";
  out.between = "\", \"";
  out.close = "\"]\"";
  out.call = [](const GrammarTool& tool) {
    const ArgumentParts parts{.open = "\"\"",
                              .value = "\"=\"",
                              .string = {},
                              .typed = {},
                              .close = "\"\"",
                              .between = "\", \"",
                              .flags = "python"};
    return lark_text(tool.name + "(") + " " + listed_arguments(tool, parts) + " \")\"";
  };
  return out;
}

}  // namespace tandem::api
