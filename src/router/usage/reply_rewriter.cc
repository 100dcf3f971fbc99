#include "router/usage/reply_rewriter.h"

#include <algorithm>

#include "router/usage/reply_editor.h"
#include "router/usage/reply_words.h"

namespace tandem::router {

namespace {

size_t end_of_line(std::string_view text, size_t from) {
  const std::string_view line = text.substr(from, text.find('\n', from) - from);
  return from + std::min(line.find('\r'), line.size());
}

bool holds(std::string_view json, std::string_view word) {
  return find_word(json, word) != std::string_view::npos;
}

// No further frame says more about the prompt.
bool is_last(std::string_view json, Api api) {
  switch (api) {
    case Api::kMessages:
      return !holds(json, "\"message_start\"");
    case Api::kChat:
    case Api::kCompletions:
      // Counts in every chunk (vLLM's continuous_usage_stats) never wait.
      return holds(json, "\"choices\":[]") || holds(json, "\"choices\": []") ||
             holds_member(json, "\"finish_reason\"");
    case Api::kGenerate:
      return holds_member(json, "\"finish_reason\"");
    default:
      return true;
  }
}

// The reason that an engine gives for an answer which it did not end itself; empty: another, none.
// vLLM, SGLang and TensorRT-LLM say these with status 200; to a client they would look like a short
// answer.
std::string_view failed_finish(std::string_view json) {
  static constexpr std::string_view kName = "\"finish_reason\"";
  static constexpr std::string_view kReasons[] = {"abort", "error", "cancelled", "timeout"};
  for (size_t at = find_word(json, kName); at != std::string_view::npos;
       at = find_word(json, kName, at + kName.size())) {
    size_t value = json.find_first_not_of(" :\n\r\t", at + kName.size());
    if (value == std::string_view::npos || json[value] != '"') continue;
    const std::string_view rest = json.substr(++value);
    for (const std::string_view reason : kReasons) {
      if (rest.starts_with(reason) && rest.substr(reason.size(), 1) == "\"") return reason;
    }
  }
  return {};
}

bool tells_finish(Api api) { return api == Api::kChat || api == Api::kCompletions; }

}  // namespace

ReplyRewriter::ReplyRewriter(ReplyRules rules) : rules_(std::move(rules)) {
  for (const std::string_view name : rules_.strip)
    strip_words_.push_back("\"" + std::string(name) + "\"");
}

ReplyRewriter::Need ReplyRewriter::need(std::string_view json, bool whole) const {
  const Need counts = rules_.pair ? Need::kWait : Need::kRead;
  if (rules_.tandem) return holds_member(json, "\"tandem\"") ? counts : Need::kNothing;
  if (tells_finish(rules_.api) && !failed_finish(json).empty()) return Need::kRead;
  if (rules_.input_logprobs && rules_.pair &&
      (holds_member(json, "\"input_token_logprobs\"") ||
       (rules_.api == Api::kCompletions && holds_member(json, "\"logprobs\""))))
    return Need::kWait;
  if (holds_member(json, "\"usage\""))
    return whole || is_last(json, rules_.api) ? counts : Need::kRead;
  if (rules_.api == Api::kGenerate && holds_member(json, "\"meta_info\"")) {
    if (whole || is_last(json, rules_.api)) return counts;
    if (rules_.pair) return Need::kRead;
  }
  for (const std::string& quoted : strip_words_) {
    if (holds_member(json, quoted)) return Need::kRead;
  }
  return Need::kNothing;
}

Result<RewrittenReply> ReplyRewriter::rewrite(std::string_view json, bool whole,
                                              const PromptTruth* truth) {
  if (tells_finish(rules_.api) && !rules_.tandem) {
    if (const std::string_view reason = failed_finish(json); !reason.empty())
      return make_error(502, "engine_failed",
                        "The engine ended the answer with \"" + std::string(reason) + "\".");
  }
  return ReplyEditor(*this, json, whole, rules_.pair ? truth : nullptr).run();
}

std::string replace_sse_data(std::string_view raw, std::string_view data) {
  std::string out;
  out.reserve(raw.size() + data.size());
  bool placed = false;
  size_t begin = 0;
  while (begin < raw.size()) {
    const size_t stop = end_of_line(raw, begin);
    size_t next = stop;
    if (next < raw.size()) next += raw[next] == '\r' && raw.substr(next + 1, 1) == "\n" ? 2 : 1;
    std::string_view line = raw.substr(begin, stop - begin);
    std::string_view mark;
    if (line.starts_with("\xEF\xBB\xBF")) {
      mark = line.substr(0, 3);
      line.remove_prefix(3);
    }
    const bool is_data = line == "data" || line.starts_with("data:");
    if (!is_data) {
      out += raw.substr(begin, next - begin);
    } else if (!placed) {
      placed = true;
      const std::string_view name = line.starts_with("data:") && !line.starts_with("data: ")
                                        ? std::string_view("data:")
                                        : std::string_view("data: ");
      const std::string_view ending = stop < raw.size() ? raw.substr(stop, next - stop) : "\n";
      out += mark;
      for (size_t from = 0; from <= data.size();) {
        const size_t line_end = end_of_line(data, from);
        out += name;
        out += data.substr(from, line_end - from);
        out += ending;
        from = line_end + 1;
      }
    }
    begin = next;
  }
  return out;
}

}  // namespace tandem::router
