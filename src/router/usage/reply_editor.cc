#include "router/usage/reply_editor.h"

#include <algorithm>

namespace tandem::router {

namespace {

using Kind = JsonValue::Kind;

tl::unexpected<Error> bad_response(const char* what) {
  return make_error(502, "bad_response", std::string("the worker's answer ") + what);
}

bool is_null(const JsonMemberSpan& member) { return member.kind == Kind::kNull; }

Status read_ids(std::string_view tandem, std::vector<std::vector<int32_t>>& into) {
  TANDEM_TRY(json, parse_json(tandem));
  const JsonValue* const ids = json.find("completion_token_ids");
  if (ids == nullptr) return {};
  for (const JsonValue& choice : ids->items()) {
    if (!choice.is_array()) return bad_response("has impossible token ids");
    std::vector<int32_t> tokens;
    tokens.reserve(choice.items().size());
    for (const JsonValue& id : choice.items()) {
      const auto number = id.as_integer();
      if (!number || *number < 0 || *number > INT32_MAX)
        return bad_response("has impossible token ids");
      tokens.push_back(static_cast<int32_t>(*number));
    }
    into.push_back(std::move(tokens));
  }
  return {};
}

}  // namespace

std::string join_arrays(std::string_view first, size_t drop, std::string_view second) {
  const auto before = scan_json(first, kReplyLimits);
  const auto after = scan_json(second, kReplyLimits);
  if (!before || !before->is_array() || before->members().size() <= drop)
    return std::string(second);
  const auto& elements = before->members();
  const JsonMemberSpan& last = elements[elements.size() - 1 - drop];
  const std::string_view kept =
      first.substr(elements.front().value_begin, last.value_end - elements.front().value_begin);
  std::string joined = "[" + std::string(kept);
  if (after && after->is_array() && !after->members().empty()) {
    const size_t begin = after->members().front().value_begin;
    joined += ',';
    joined += second.substr(begin, after->end() - 1 - begin);
  }
  return joined += ']';
}

std::optional<ReplyEditor::Inside> ReplyEditor::inside(std::string_view text, size_t offset,
                                                       const JsonMemberSpan* member) {
  if (member == nullptr || (member->kind != Kind::kObject && member->kind != Kind::kArray))
    return std::nullopt;
  const std::string_view value = json_value_of(text, *member);
  auto scan = scan_json(value, kReplyLimits);
  if (!scan) return std::nullopt;
  return Inside{value, offset + member->value_begin, std::move(*scan)};
}

Result<RewrittenReply> ReplyEditor::run() {
  const auto scan = scan_json(json_, kReplyLimits);
  if (!scan) {
    if (rules_.tandem) return bad_response("is not JSON");
    return RewrittenReply{};
  }
  std::vector<TextEdit> edits;
  if (scan->is_array()) {
    if (rules_.tandem) return bad_response("lacks usage");
    for (size_t i = 0; i < scan->members().size(); ++i) {
      const JsonMemberSpan& item = scan->members()[i];
      for (TextEdit& edit : edit_item(json_value_of(json_, item), item.value_begin, i))
        edits.push_back(std::move(edit));
    }
  } else {
    JsonEdit edit(*scan);
    if (rules_.tandem) TANDEM_CHECK(edit_tandem(*scan, edit));
    edit_object(*scan, edit);
    edits = edit.edits();
  }
  RewrittenReply out;
  out.drop = rules_.hide_usage && !whole_ && (only_usage_ || rules_.tandem);
  if (!edits.empty()) out.json = splice_text(json_, edits);
  return out;
}

Status ReplyEditor::edit_tandem(const JsonScan& scan, JsonEdit& edit) {
  const JsonMemberSpan* const usage = scan.find("usage");
  const JsonMemberSpan* const tandem = scan.find("tandem");
  // A member of that name deeper inside is somebody else's.
  if (tandem == nullptr && !whole_) return {};
  const auto counted = [](const JsonMemberSpan* member) {
    return member != nullptr && member->kind == Kind::kObject;
  };
  // The last event of the Responses API holds the whole response, and usage in it.
  const bool inner = rules_.api == Api::kResponses && !whole_ && counted(scan.find("response"));
  if (tandem == nullptr || (!inner && !counted(usage))) return bad_response("lacks usage");
  TANDEM_CHECK(read_ids(json_value_of(json_, *tandem), rewriter_.completion_ids_));
  if (rules_.tandem_report.empty()) {
    edit.erase("tandem");
  } else {
    edit.set("tandem", rules_.tandem_report);
  }
  return {};
}

void ReplyEditor::strip(const JsonScan& scan, JsonEdit& edit) const {
  for (const std::string_view name : rules_.strip) {
    const JsonMemberSpan* const member = scan.find(name);
    if (member != nullptr && !is_null(*member)) edit.erase(name);
  }
}

// Adds the edits of the usage object that stands in `object`.
void ReplyEditor::edit_usage_of(std::string_view object, size_t offset, const JsonScan& scan,
                                JsonEdit& edit) {
  const auto usage = inside(object, offset, scan.find("usage"));
  if (usage && !usage->scan.is_array()) edit.add(edit_usage(*usage));
}

void ReplyEditor::edit_object(const JsonScan& scan, JsonEdit& edit) {
  const JsonMemberSpan* const choices = scan.find("choices");
  only_usage_ = choices != nullptr && choices->kind == Kind::kArray && choices->elements == 0 &&
                scan.find("usage") != nullptr;
  strip(scan, edit);
  edit_usage_of(json_, 0, scan, edit);
  // The event forms of Responses and Anthropic hold the reply itself.
  for (const char* const name : {"response", "message"}) {
    const auto reply = inside(json_, 0, scan.find(name));
    if (!reply || reply->scan.is_array()) continue;
    JsonEdit inner(reply->scan, reply->offset);
    strip(reply->scan, inner);
    edit_usage_of(reply->text, reply->offset, reply->scan, inner);
    edit.add(inner.edits());
  }
  if (scan.find("meta_info") != nullptr) {
    const int64_t index = json_integer_of(json_, scan.find("index")).value_or(0);
    if (const auto meta = inside(json_, 0, scan.find("meta_info"));
        meta && index >= 0 && index < int64_t{1} << 16)
      edit.add(edit_meta(*meta, static_cast<size_t>(index)));
  }
  const bool joins = rules_.input_logprobs && truth_ != nullptr &&
                     !(truth_->choice_logprobs.empty() && truth_->input_logprobs.empty());
  if (!rules_.strip.empty() || joins) {
    if (const auto list = inside(json_, 0, choices); list && list->scan.is_array())
      edit.add(edit_choices(*list));
  }
}

std::vector<TextEdit> ReplyEditor::edit_item(std::string_view item, size_t offset, size_t index) {
  const auto scan = scan_json(item, kReplyLimits);
  if (!scan || scan->is_array()) return {};
  JsonEdit edit(*scan, offset);
  strip(*scan, edit);
  if (const auto meta = inside(item, offset, scan->find("meta_info")))
    edit.add(edit_meta(*meta, index));
  return edit.edits();
}

std::vector<TextEdit> ReplyEditor::edit_usage(const Inside& usage) {
  const UsageNumbers answer = read_usage(usage.text, usage.scan);
  const UsageNames& names = usage_names(usage.scan);
  JsonEdit edit(usage.scan, usage.offset);
  ToldUsage told;
  told.prompt_tokens = answer.prompt.prompt.value_or(0);
  told.cached_tokens = answer.prompt.cached.value_or(0);
  told.completion_tokens = answer.completion.value_or(0);
  const PromptCounts counts = truth_counts();
  // Anthropic's API counts cached tokens apart; Tandem's workers tell it so.
  const bool separate = rules_.tandem && rules_.api == Api::kMessages;
  if (separate) told.prompt_tokens += told.cached_tokens;
  if (rules_.pair) {
    told.cached_tokens = counts.cached.value_or(0);
    if (counts.prompt) {
      told.prompt_tokens = *counts.prompt;
      // Anthropic's last event may leave it out.
      const int64_t apart = separate ? told.cached_tokens : 0;
      if (edit.has(names.prompt)) edit.set(names.prompt, std::to_string(*counts.prompt - apart));
    }
    set_cached(usage, names, edit);
  }
  const bool total = edit.has("total_tokens") || (rules_.tandem && rules_.api != Api::kMessages);
  if ((rules_.pair || rules_.tandem) && total && (answer.completion || rules_.tandem)) {
    edit.set("total_tokens", std::to_string(told.prompt_tokens + told.completion_tokens));
  }
  // Anthropic counts in two events: what one leaves out the other said.
  if (!answer.prompt.prompt && !counts.prompt) told.prompt_tokens = rewriter_.told_.prompt_tokens;
  if (!answer.prompt.cached && !counts.cached) told.cached_tokens = rewriter_.told_.cached_tokens;
  rewriter_.told_ = told;
  rewriter_.counted_ = true;
  return edit.edits();
}

// Prefill's count under the name of the reply's API, or none at all.
void ReplyEditor::set_cached(const Inside& usage, const UsageNames& names, JsonEdit& edit) const {
  const PromptCounts counts = truth_counts();
  const auto text = counts.cached ? std::to_string(*counts.cached) : std::string();
  if (rules_.api == Api::kMessages) {
    if (counts.cached) {
      edit.set(kCacheRead, text);
    } else {
      edit.erase(kCacheRead);
    }
    if (counts.cache_written) edit.set(kCacheWritten, std::to_string(*counts.cache_written));
    return;
  }
  const auto details = inside(usage.text, usage.offset, usage.scan.find(names.details));
  if (!details || details->scan.is_array()) {
    if (counts.cached) edit.set(names.details, "{\"cached_tokens\":" + text + "}");
    return;
  }
  JsonEdit inner(details->scan, details->offset);
  if (counts.cached) {
    inner.set("cached_tokens", text);
  } else {
    inner.erase("cached_tokens");
  }
  edit.add(inner.edits());
}

// SGLang's native form: the counts stand in every event and grow.
std::vector<TextEdit> ReplyEditor::edit_meta(const Inside& meta, size_t index) {
  const UsageNumbers answer = read_meta_info(meta.text, meta.scan);
  JsonEdit edit(meta.scan, meta.offset);
  strip(meta.scan, edit);
  ToldUsage told{answer.prompt.prompt.value_or(0), answer.prompt.cached.value_or(0),
                 answer.completion.value_or(0)};
  if (rules_.pair && truth_ != nullptr) {
    const PromptCounts counts =
        index < truth_->parts.size() ? truth_->parts[index] : PromptCounts{};
    if (counts.prompt) {
      told.prompt_tokens = *counts.prompt;
      edit.set("prompt_tokens", std::to_string(*counts.prompt));
    }
    told.cached_tokens = counts.cached.value_or(0);
    if (counts.cached) {
      edit.set("cached_tokens", std::to_string(*counts.cached));
    } else {
      edit.erase("cached_tokens");
    }
    join_prompt_logprobs(meta, index, edit);
  }
  if (rewriter_.parts_.size() <= index) rewriter_.parts_.resize(index + 1);
  rewriter_.parts_[index] = told;
  rewriter_.told_ = {};
  for (const ToldUsage& part : rewriter_.parts_) {
    rewriter_.told_.prompt_tokens += part.prompt_tokens;
    rewriter_.told_.cached_tokens += part.cached_tokens;
    rewriter_.told_.completion_tokens += part.completion_tokens;
  }
  rewriter_.counted_ = true;
  return edit.edits();
}

void ReplyEditor::join_prompt_logprobs(const Inside& meta, size_t index, JsonEdit& edit) const {
  if (!rules_.input_logprobs || truth_ == nullptr) return;
  const auto join = [&](const char* name, const std::vector<std::string>& known) {
    const JsonMemberSpan* const own = meta.scan.find(name);
    if (index >= known.size() || known[index].empty()) return;
    if (own == nullptr && !whole_) return;  // a stream's later events leave it out
    edit.set(name,
             join_arrays(known[index], 0, own == nullptr ? "[]" : json_value_of(meta.text, *own)));
  };
  join("input_token_logprobs", truth_->input_logprobs);
  join("input_top_logprobs", truth_->input_top_logprobs);
}

std::vector<TextEdit> ReplyEditor::edit_choices(const Inside& choices) {
  std::vector<TextEdit> edits;
  for (size_t place = 0; place < choices.scan.members().size(); ++place) {
    const auto choice = inside(choices.text, choices.offset, &choices.scan.members()[place]);
    if (!choice || choice->scan.is_array()) continue;
    const int64_t index = json_integer_of(choice->text, choice->scan.find("index"))
                              .value_or(static_cast<int64_t>(place));
    JsonEdit edit(choice->scan, choice->offset);
    strip(choice->scan, edit);
    if (index >= 0) join_choice(*choice, static_cast<size_t>(index), edit);
    for (TextEdit& made : edit.edits()) edits.push_back(std::move(made));
  }
  return edits;
}

// SGLang's chat has a choice's native form inside it (return_meta_info). Completions that echo the
// prompt: its logprobs stand before the first generated token's.
void ReplyEditor::join_choice(const Inside& choice, size_t at, JsonEdit& edit) {
  if (!rules_.input_logprobs || truth_ == nullptr) return;
  if (const auto meta = inside(choice.text, choice.offset, choice.scan.find("meta_info"))) {
    JsonEdit inner(meta->scan, meta->offset);
    join_prompt_logprobs(*meta, at, inner);
    edit.add(inner.edits());
  }
  const auto& known = truth_->choice_logprobs;
  if (at >= known.size()) return;
  const auto mine = inside(choice.text, choice.offset, choice.scan.find("logprobs"));
  const auto theirs = scan_json(known[at], kReplyLimits);
  if (!mine || mine->scan.is_array() || !theirs || theirs->is_array()) return;
  if (rewriter_.joined_.size() <= at) rewriter_.joined_.resize(at + 1);
  if (rewriter_.joined_[at]) return;
  rewriter_.joined_[at] = true;
  // Each of prefill's choices generated the same few tokens.
  const auto generated = static_cast<size_t>(truth_->generated) / known.size();
  JsonEdit inner(mine->scan, mine->offset);
  for (const JsonMemberSpan& list : mine->scan.members()) {
    const JsonMemberSpan* const longer = theirs->find(list.key);
    if (list.kind != Kind::kArray || longer == nullptr || longer->kind != Kind::kArray) continue;
    inner.set(list.key, join_arrays(json_value_of(known[at], *longer), generated,
                                    json_value_of(mine->text, list)));
  }
  edit.add(inner.edits());
}

}  // namespace tandem::router
