#include "api/tools/reply_parser.h"

#include <algorithm>
#include <utility>

#include "api/tools/families.h"

namespace tandem::api {

namespace {

using Tokens = std::vector<std::pair<std::string, int32_t>>;

Marker resolve(std::string_view spelling, const Tokens& tokens) {
  const auto found = std::ranges::find(tokens, spelling, &Tokens::value_type::first);
  return {std::string(spelling), found == tokens.end() ? -1 : found->second};
}

Result<const Family*> named(const std::string& name, std::string_view chat_template,
                            const Family* (*recognize)(std::string_view)) {
  if (name == "none") return nullptr;
  if (name == "auto") return recognize(chat_template);
  if (const Family* family = find_family(name)) return family;
  std::string known;
  for (const std::string& one : parser_names()) known += ", " + one;
  return make_error(400, "unknown_parser",
                    "there is no parser named '" + name + "'; there are auto, none" + known);
}

}  // namespace

std::vector<std::string> parser_names() {
  std::vector<std::string> out;
  for (const Family& family : families()) out.emplace_back(family.name);
  return out;
}

std::string_view recognized(std::string_view chat_template) {
  const Family* family = recognize_calls(chat_template);
  return family == nullptr ? "none" : family->name;
}

Result<std::shared_ptr<const ReplyFormat>> ReplyFormat::create(const ParserNames& names,
                                                               std::string_view chat_template,
                                                               const text::Tokenizer& tokenizer) {
  TANDEM_TRY(tools, named(names.tools, chat_template, recognize_calls));
  TANDEM_TRY(reasoning, named(names.reasoning, chat_template, recognize_reasoning));
  Tokens tokens;
  for (const int32_t id : tokenizer.special_tokens())
    tokens.emplace_back(std::string(tokenizer.token_bytes(id)), id);
  CallIds::Style ids = tools == nullptr ? CallIds::Style::kRandom : tools->ids;
  const bool nine = chat_template.find("length == 9") != std::string_view::npos ||
                    chat_template.find("length != 9") != std::string_view::npos;
  if (nine) ids = CallIds::Style::kNine;
  return build(tools, reasoning, ids, chat_template, tokens);
}

Result<std::shared_ptr<const ReplyFormat>> ReplyFormat::create(
    const ParserNames& names, const std::vector<std::pair<std::string, int32_t>>& tokens,
    std::string_view chat_template) {
  TANDEM_TRY(tools, named(names.tools, "", recognize_calls));
  TANDEM_TRY(reasoning, named(names.reasoning, "", recognize_reasoning));
  return build(tools, reasoning, tools == nullptr ? CallIds::Style::kRandom : tools->ids,
               chat_template, tokens);
}

Result<std::shared_ptr<const ReplyFormat>> ReplyFormat::build(const Family* tools,
                                                              const Family* reasoning,
                                                              CallIds::Style ids,
                                                              std::string_view chat_template,
                                                              const Tokens& tokens) {
  std::shared_ptr<ReplyFormat> out(new ReplyFormat());
  out->tools_ = tools;
  out->reasoning_ = reasoning;
  out->ids_ = ids;
  out->chat_template_ = chat_template;
  if (tools != nullptr) {
    for (const std::string_view marker : tools->markers)
      out->markers_.push_back(resolve(marker, tokens));
    for (const std::string_view spelling : tools->kept) {
      Marker part = resolve(spelling, tokens);
      if (part.token >= 0) out->kept_.push_back(std::move(part));
    }
    out->style_.calls_end_it = tools->calls_end_reasoning;
  }
  if (reasoning != nullptr) {
    for (size_t i = 0; i + 1 < reasoning->reasoning.size(); i += 2) {
      out->style_.open.push_back(resolve(reasoning->reasoning[i], tokens));
      out->style_.close.push_back(resolve(reasoning->reasoning[i + 1], tokens));
    }
    out->style_.label = reasoning->reasoning_label;
  }
  return std::shared_ptr<const ReplyFormat>(std::move(out));
}

std::string_view ReplyFormat::tool_parser() const {
  return tools_ == nullptr ? "none" : tools_->name;
}

std::string_view ReplyFormat::reasoning_parser() const {
  return reasoning_ == nullptr ? "none" : reasoning_->name;
}

std::vector<int32_t> ReplyFormat::kept_tokens(bool tools) const {
  std::vector<int32_t> out;
  const auto add = [&](const Markers& markers) {
    for (const Marker& marker : markers) {
      if (marker.token >= 0) out.push_back(marker.token);
    }
  };
  add(style_.open);
  add(style_.close);
  if (tools_ != nullptr && (tools || tools_->reply != nullptr)) {
    add(markers_);
    add(kept_);
  }
  std::ranges::sort(out);
  const auto repeated = std::ranges::unique(out);
  out.erase(repeated.begin(), repeated.end());
  return out;
}

Opening ReplyFormat::opening(std::string_view prompt_end) const {
  const auto ends = [&](std::string_view text, std::string_view with) {
    while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
    return !with.empty() && text.ends_with(with);
  };
  if (tools_ != nullptr && tools_->reply != nullptr) {
    if (ends(prompt_end, tools_->reasoning_opens)) return Opening::kReasoning;
    return ends(prompt_end, tools_->answer_opens) ? Opening::kAnswer : Opening::kFree;
  }
  for (size_t i = 0; i < style_.open.size(); ++i) {
    const std::string labelled = style_.open[i].spelling + style_.label;
    if (ends(prompt_end, style_.open[i].spelling) || prompt_end.ends_with(labelled))
      return Opening::kReasoning;
    if (ends(prompt_end, style_.close[i].spelling)) return Opening::kAnswer;
  }
  return Opening::kFree;
}

Result<std::optional<CallLayout>> ReplyFormat::layout(Opening opening) const {
  if (tools_ == nullptr) return std::nullopt;
  TANDEM_TRY(out, tools_->layout({markers_, kept_, chat_template_, opening}));
  return std::optional(std::move(out));
}

std::unique_ptr<ReplyMachine> ReplyFormat::machine(bool tools, Opening opening) const {
  if (tools_ != nullptr && tools_->reply != nullptr) return tools_->reply(markers_, opening);
  std::unique_ptr<CallSyntax> calls;
  if (tools && tools_ != nullptr) calls = tools_->calls(markers_);
  return make_tagged_reply(style_, std::move(calls), opening);
}

ReplyParser::ReplyParser(const ReplyFormat& format, ReplySetup setup)
    : sink_(setup.tools == nullptr ? none_ : *setup.tools, std::move(setup.ids), setup.live),
      machine_(format.machine(setup.tools != nullptr && !setup.tools->empty(),
                              format.opening(setup.prompt_end))) {}

ReplyEvents ReplyParser::push(std::string_view text, std::span<const protocol::TokenMark> marks) {
  cursor_.append(text, marks);
  while (machine_->step(cursor_, sink_)) {
  }
  return sink_.take();
}

ReplyEvents ReplyParser::finish(bool cut) {
  cursor_.end(cut);
  while (machine_->step(cursor_, sink_)) {
  }
  machine_->finish(cursor_, sink_);
  sink_.finish();
  return sink_.take();
}

}  // namespace tandem::api
