#include "loadgen/client/conversation.h"

#include <algorithm>

#include "base/json_value.h"

namespace tandem::loadgen {

namespace {

// The plain answers of a benchmark call no tool, so that a message of role "tool" would be refused:
// what tools gave is sent as a user's.
Role sent_role(Role role) { return role == Role::kTool ? Role::kUser : role; }

}  // namespace

Conversation::Part Conversation::make(const Segment& segment) const {
  Part part;
  part.role = sent_role(segment.role);
  part.tokens = segment.tokens;
  if (!segment.text.empty()) {
    part.text = segment.text;
    part.tokens = static_cast<int64_t>(segment.text.size() / 4);
  } else if (options_.token_ids) {
    append_token_ids(part.ids, segment.seed, static_cast<size_t>(segment.tokens), options_.least_id,
                     options_.id_count);
  } else {
    append_words(part.text, segment.seed,
                 words_for(segment.tokens, options_.words.tokens_per_word));
  }
  return part;
}

void Conversation::apply(const Turn& turn, const std::string& answer) {
  parts_.resize(std::min(parts_.size(), turn.keep_answer ? parts_.size() : turn.keep));
  if (turn.keep_answer) {
    // Ids of an answer are not known: as many others stand for them.
    Segment own = {Role::kAssistant, mix64(parts_.size() + 77), std::max(last_output_, 1)};
    if (!options_.token_ids) own.text = answer;
    parts_.push_back(make(own));
  }
  for (const Segment& segment : turn.append) parts_.push_back(make(segment));
  last_output_ = turn.output_tokens;
}

int64_t Conversation::planned_tokens() const {
  int64_t all = 0;
  for (const Part& part : parts_) all += part.tokens;
  return all;
}

void Conversation::append_messages(std::string& out) const {
  out += "\"messages\":[";
  for (size_t i = 0; i < parts_.size();) {
    out += i == 0 ? "" : ",";
    out += R"({"role":")" + std::string(role_name(parts_[i].role)) + R"(","content":)";
    std::string content;
    size_t end = i;
    for (; end < parts_.size() && parts_[end].role == parts_[i].role; ++end)
      content += parts_[end].text;
    append_json_string(out, content);
    out += '}';
    i = end;
  }
  out += ']';
}

void Conversation::append_prompt(std::string& out) const {
  out += "\"prompt\":";
  if (!options_.token_ids) {
    std::string prompt;
    for (const Part& part : parts_) prompt += part.text;
    append_json_string(out, prompt);
    return;
  }
  bool first = true;
  for (const Part& part : parts_) {
    for (const uint32_t id : part.ids) {
      out += first ? '[' : ',';
      first = false;
      out += std::to_string(id);
    }
  }
  out += first ? "[]" : "]";
}

std::string Conversation::body(int32_t max_tokens) const {
  std::string out = "{\"model\":";
  append_json_string(out, options_.model);
  out += ',';
  if (options_.api == Api::kChat) {
    append_messages(out);
  } else {
    append_prompt(out);
  }
  out += ',';
  append_json_string(out, options_.max_tokens_name);
  out += ':' + std::to_string(max_tokens) + ",\"stream\":true";
  if (options_.ask_usage) out += R"(,"stream_options":{"include_usage":true})";
  if (!options_.extra.empty()) out += ',' + options_.extra;
  return out + '}';
}

}  // namespace tandem::loadgen
