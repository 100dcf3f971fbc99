// The scanner is a loop over tokens. What is open is one bit a level (set: an object), so depth
// costs nothing and nothing recurses; only what stands directly in the outermost container is
// written down.
#include "base/json_scan.h"

#include <algorithm>

#include "base/json_skip.h"

namespace tandem {

namespace {

tl::unexpected<Error> invalid_json(std::string_view why) {
  return make_error(400, "invalid_json", "The body is not valid JSON: " + std::string(why) + ".");
}

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

class JsonScanner {
 public:
  JsonScanner(std::string_view text, const JsonScanLimits& limits)
      : begin_(text.data()),
        at_(text.data()),
        end_(text.data() + text.size()),
        max_depth_(std::min(limits.max_depth, kMostDepth)),
        max_members_(limits.max_members),
        skip_(json_skip()) {}

  Result<JsonScan> run() {
    skip_space();
    if (at_ == end_) return invalid_json("it is empty");
    if (*at_ != '{' && *at_ != '[')
      return make_error(400, "invalid_json", "The JSON body must be an object.");
    scan_.begin_ = offset(at_);
    scan_.array_ = *at_ == '[';
    if (!open()) return failure();
    while (depth_ > 0) {
      skip_space();
      if (at_ == end_) return invalid_json("it ends too early");
      if (!step()) return failure();
    }
    scan_.end_ = offset(at_);
    skip_space();
    if (at_ != end_) return invalid_json("bytes follow the document");
    return std::move(scan_);
  }

 private:
  static constexpr int kMostDepth = 64;
  static constexpr size_t kUsualMembers = 12;
  enum class Next : uint8_t { kKeyOrEnd, kKey, kValueOrEnd, kValue, kCommaOrEnd };

  size_t offset(const char* at) const { return static_cast<size_t>(at - begin_); }
  bool in_object() const { return ((objects_ >> (depth_ - 1)) & 1) != 0; }
  void skip_space() {
    while (at_ < end_ && is_space(*at_)) ++at_;
  }
  bool fail(const char* why) {
    why_ = why;
    return false;
  }
  tl::unexpected<Error> failure() const {
    if (why_ == nullptr)
      return make_error(400, "invalid_json", "The JSON body is nested too deeply.");
    return invalid_json(why_);
  }

  // One token, and the white space is already skipped.
  bool step() {
    const char c = *at_;
    switch (next_) {
      case Next::kKeyOrEnd:
        if (c == '}') return close();
        return key();
      case Next::kKey:
        return key();
      case Next::kValueOrEnd:
        if (c == ']') return close();
        if (!begin_value()) return false;
        if (is_digit(c)) return integers();
        return value();
      case Next::kValue:
        if (!begin_value()) return false;
        return value();
      case Next::kCommaOrEnd:
        if (c == ',') {
          ++at_;
          next_ = in_object() ? Next::kKey : Next::kValue;
          return true;
        }
        if (c == (in_object() ? '}' : ']')) return close();
        return fail("a comma or a closing bracket is missing");
    }
    return false;
  }

  bool open() {
    if (depth_ >= max_depth_) return fail(nullptr);
    const bool object = *at_ == '{';
    const uint64_t bit = uint64_t{1} << depth_;
    objects_ = object ? objects_ | bit : objects_ & ~bit;
    ++depth_;
    ++at_;
    next_ = object ? Next::kKeyOrEnd : Next::kValueOrEnd;
    return true;
  }

  bool close() {
    --depth_;
    ++at_;
    if (depth_ > 0) end_value();
    return true;
  }

  bool key() {
    if (*at_ != '"') return fail("a key is not a string");
    const char* const begin = at_;
    at_ = skip_.string(at_ + 1, end_);
    if (at_ == nullptr) return fail("a key is malformed");
    const char* const past = at_;
    skip_space();
    if (at_ == end_ || *at_ != ':') return fail("a colon is missing");
    ++at_;
    next_ = Next::kValue;
    if (depth_ != 1) return true;
    if (!add_member(begin)) return false;
    const std::string_view raw(begin, static_cast<size_t>(past - begin));
    std::string& name = scan_.members_.back().key;
    name = raw.substr(1, raw.size() - 2);
    if (name.find('\\') != std::string::npos) {
      auto unescaped = parse_json(raw);
      if (!unescaped) return fail("a key is malformed");
      name = unescaped->as_string();
    }
    return true;
  }

  bool add_member(const char* begin) {
    if (scan_.members_.size() >= max_members_) return fail("it has too many members");
    if (scan_.members_.empty()) scan_.members_.reserve(kUsualMembers);
    scan_.members_.emplace_back();
    scan_.members_.back().key_begin = offset(begin);
    return true;
  }

  static JsonValue::Kind kind_of(char c) {
    switch (c) {
      case '{':
        return JsonValue::Kind::kObject;
      case '[':
        return JsonValue::Kind::kArray;
      case '"':
        return JsonValue::Kind::kString;
      case 't':
      case 'f':
        return JsonValue::Kind::kBool;
      case 'n':
        return JsonValue::Kind::kNull;
      default:
        return JsonValue::Kind::kNumber;
    }
  }

  bool begin_value() {
    if (depth_ > 2) return true;
    if (depth_ == 1) {
      if (scan_.array_ && !add_member(at_)) return false;
      JsonMemberSpan& member = scan_.members_.back();
      member.value_begin = offset(at_);
      member.kind = kind_of(*at_);
      return true;
    }
    JsonMemberSpan& member = scan_.members_.back();
    if (member.elements++ == 0) member.first = kind_of(*at_);
    return true;
  }

  void end_value() {
    next_ = Next::kCommaOrEnd;
    if (depth_ == 1) scan_.members_.back().value_end = offset(at_);
  }

  bool value() {
    switch (*at_) {
      case '{':
      case '[':
        return open();
      case '"':
        at_ = skip_.string(at_ + 1, end_);
        if (at_ == nullptr) return fail("a string is malformed");
        break;
      case 't':
        if (!word("true")) return false;
        break;
      case 'f':
        if (!word("false")) return false;
        break;
      case 'n':
        if (!word("null")) return false;
        break;
      default:
        if (!number()) return fail("a value is missing or malformed");
    }
    end_value();
    return true;
  }

  // An array that begins with an integer is often a long list of them. (In the outermost array
  // each element is written down.)
  bool integers() {
    if (depth_ == 1) return value();
    size_t skipped = 0;
    at_ = skip_.integers(at_, end_, &skipped);
    if (depth_ == 2) scan_.members_.back().elements += skipped;
    skip_space();
    if (at_ == end_) return fail("it ends too early");
    return value();
  }

  bool word(std::string_view text) {
    if (std::string_view(at_, static_cast<size_t>(end_ - at_)).substr(0, text.size()) != text)
      return fail("an unknown word stands in it");
    at_ += text.size();
    return true;
  }

  bool digits() {
    const char* const begin = at_;
    while (at_ < end_ && is_digit(*at_)) ++at_;
    return at_ > begin;
  }

  bool number() {
    if (*at_ == '-') ++at_;
    if (at_ < end_ && *at_ == '0') {
      ++at_;
    } else if (!digits()) {
      return false;
    }
    if (at_ < end_ && *at_ == '.') {
      ++at_;
      if (!digits()) return false;
    }
    if (at_ < end_ && (*at_ == 'e' || *at_ == 'E')) {
      ++at_;
      if (at_ < end_ && (*at_ == '+' || *at_ == '-')) ++at_;
      if (!digits()) return false;
    }
    return true;
  }

  const char* begin_;
  const char* at_;
  const char* end_;
  int max_depth_;
  size_t max_members_;
  const JsonSkip& skip_;
  JsonScan scan_;
  Next next_ = Next::kValue;
  int depth_ = 0;
  uint64_t objects_ = 0;
  const char* why_ = "";  // nullptr: too deep
};

Result<JsonScan> scan_json(std::string_view text, const JsonScanLimits& limits) {
  if (!is_valid_utf8(text)) return make_error(400, "invalid_json", "The body is not valid UTF-8.");
  return JsonScanner(text, limits).run();
}

const JsonMemberSpan* JsonScan::find(std::string_view key) const {
  const auto found = std::find_if(members_.rbegin(), members_.rend(),
                                  [&](const JsonMemberSpan& member) { return member.key == key; });
  return found == members_.rend() || array_ ? nullptr : &*found;
}

std::optional<std::string> JsonScan::duplicate(
    const std::vector<std::string_view>& controlled) const {
  for (const std::string_view key : controlled) {
    const auto count =
        std::count_if(members_.begin(), members_.end(),
                      [&](const JsonMemberSpan& member) { return member.key == key; });
    if (count > 1) return std::string(key);
  }
  return std::nullopt;
}

std::optional<std::string> json_text_of(std::string_view text, const JsonMemberSpan* member) {
  if (member == nullptr || member->kind != JsonValue::Kind::kString) return std::nullopt;
  const std::string_view raw = json_value_of(text, *member);
  const std::string_view inside = raw.substr(1, raw.size() - 2);
  if (inside.find('\\') == std::string_view::npos) return std::string(inside);
  auto value = parse_json(raw);
  if (!value) return std::nullopt;
  return value->as_string();
}

std::optional<int64_t> json_integer_of(std::string_view text, const JsonMemberSpan* member) {
  if (member == nullptr || member->kind != JsonValue::Kind::kNumber) return std::nullopt;
  return JsonValue::number_text(std::string(json_value_of(text, *member))).as_integer();
}

bool json_flag_of(std::string_view text, const JsonMemberSpan* member) {
  return member != nullptr && json_value_of(text, *member) == "true";
}

}  // namespace tandem
