#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <algorithm>
#include <array>
#include <utility>

#include <pcre2.h>

#include "text/unicode.h"

namespace tandem::text {

namespace {

constexpr size_t kMaxPattern = 64 << 10;
constexpr uint32_t kMatchLimit = 1'000'000;   // backtracking points of one search
constexpr uint32_t kDepthLimit = 100'000;     // of them at one time
constexpr uint32_t kHeapLimitKib = 64 << 10;  // of the interpreter's frames
constexpr size_t kJitStackBytes = 256 << 10;
constexpr size_t kWindow = 16 << 10;

constexpr std::string_view kSpaceMembers = "\\p{Z}\\x09-\\x0d\\x{85}";
constexpr std::string_view kWordMembers = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

// PCRE2's \s counts U+180E and its \w other numbers but no marks; Unicode says otherwise. Spells
// both out.
Result<std::string> with_unicode_classes(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      const std::string_view members = next == 's' || next == 'S'   ? kSpaceMembers
                                       : next == 'w' || next == 'W' ? kWordMembers
                                                                    : std::string_view();
      const bool negated = next == 'S' || next == 'W';
      if (members.empty() || (negated && in_class)) {
        out += c;
        out += next;
      } else if (in_class) {
        out += members;
      } else {
        out += negated ? "[^" : "[";
        out += members;
        out += ']';
      }
      continue;
    }
    if (in_class && c == '&' && pattern.substr(i, 2) == "&&") {
      return make_error(400, "unsupported_tokenizer",
                        "a regular expression of the tokenizer intersects classes (&&)");
    }
    if (c == '[' && !in_class) {
      in_class = true;
      out += c;
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[++i];
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') {
        out += "\\]";
        ++i;
      }
      continue;
    }
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

// One per thread, for whatever expression runs on it.
struct ThreadMemory {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 << 10, kJitStackBytes, nullptr);
  ThreadMemory() = default;
  ThreadMemory(const ThreadMemory&) = delete;
  ThreadMemory& operator=(const ThreadMemory&) = delete;
  ~ThreadMemory() {
    pcre2_match_data_free(data);
    pcre2_jit_stack_free(stack);
  }
};

thread_local ThreadMemory thread_memory;

pcre2_jit_stack* jit_stack_of_thread(void*) { return thread_memory.stack; }

}  // namespace

struct Regex::State {
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
  ~State() {
    pcre2_code_free(code);
    pcre2_match_context_free(context);
  }
};

Regex::Regex(std::unique_ptr<State> state) : state_(std::move(state)) {}
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

Result<Regex> Regex::compile(std::string_view pattern) {
  if (pattern.size() > kMaxPattern) {
    return make_error(400, "invalid_tokenizer", "a regular expression is longer than 64 KiB");
  }
  TANDEM_TRY(source, with_unicode_classes(pattern));
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto state = std::make_unique<State>();
  state->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_DOLLAR_ENDONLY, &error,
                    &offset, nullptr);
  if (state->code == nullptr) {
    std::array<PCRE2_UCHAR, 256> message{};
    pcre2_get_error_message(error, message.data(), message.size());
    return make_error(400, "invalid_tokenizer",
                      "a regular expression of the tokenizer is wrong at byte " +
                          std::to_string(offset) + ": " +
                          reinterpret_cast<const char*>(message.data()));
  }
  // Without the compiler for this machine the interpreter runs: slower, the same matches.
  (void)pcre2_jit_compile(state->code, PCRE2_JIT_COMPLETE);
  state->context = pcre2_match_context_create(nullptr);
  if (state->context == nullptr) {
    return make_error(500, "out_of_memory", "no memory for a regular expression");
  }
  pcre2_set_match_limit(state->context, kMatchLimit);
  pcre2_set_depth_limit(state->context, kDepthLimit);
  pcre2_set_heap_limit(state->context, kHeapLimitKib);
  pcre2_jit_stack_assign(state->context, jit_stack_of_thread, nullptr);
  return Regex(std::move(state));
}

void Regex::split_window(std::string_view text,
                         FunctionRef<void(std::string_view, bool)> piece) const {
  ThreadMemory& memory = thread_memory;
  constexpr uint32_t kOptions = PCRE2_NOTEMPTY | PCRE2_NO_UTF_CHECK;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  for (size_t from = 0; from < text.size();) {
    const auto search = [&](uint32_t options) {
      return memory.data == nullptr ? PCRE2_ERROR_NOMEMORY
                                    : pcre2_match(state_->code, subject, text.size(), from, options,
                                                  memory.data, state_->context);
    };
    int count = search(kOptions);
    if (count == PCRE2_ERROR_JIT_STACKLIMIT) count = search(kOptions | PCRE2_NO_JIT);
    const bool gave_up = count < 0 && count != PCRE2_ERROR_NOMATCH;
    size_t begin = gave_up ? from : text.size();
    size_t end = text.size();
    if (count >= 0) {
      const PCRE2_SIZE* spans = pcre2_get_ovector_pointer(memory.data);
      // \K can make a match empty, or begin before the search did.
      const bool usable = spans[0] >= from && spans[1] > spans[0];
      begin = usable ? spans[0] : text.size();
      end = usable ? spans[1] : text.size();
    }
    if (begin > from) piece(text.substr(from, begin - from), false);
    if (end > begin) piece(text.substr(begin, end - begin), true);
    from = end;
  }
}

void Regex::split(std::string_view text, FunctionRef<void(std::string_view, bool)> piece) const {
  while (!text.empty()) {
    // A window: valid UTF-8, cut before the last " x" of the first 16 KiB when there is more.
    size_t size = 0;
    size_t word = 0;
    bool invalid = false;
    while (size < text.size() && size < kWindow) {
      const Decoded decoded = decode_utf8(text, size);
      invalid = decoded.code_point == kInvalidCodePoint;
      if (invalid) break;
      if (text[size] == ' ' && size > 0 && static_cast<uint8_t>(text[size - 1]) > ' ' &&
          size + 1 < text.size() && static_cast<uint8_t>(text[size + 1]) > ' ') {
        word = size;
      }
      size += decoded.size;
    }
    if (!invalid && size < text.size() && word != 0) size = word;
    if (size != 0) split_window(text.substr(0, size), piece);
    text.remove_prefix(size);
    if (invalid) {
      piece(text.substr(0, 1), false);
      text.remove_prefix(1);
    }
  }
}

}  // namespace tandem::text
