// The edits of one reply; see reply_rewriter.h.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "base/json_splice.h"
#include "router/usage/counts.h"
#include "router/usage/reply_rewriter.h"

namespace tandem::router {

class ReplyEditor {
 public:
  ReplyEditor(ReplyRewriter& rewriter, std::string_view json, bool whole, const PromptTruth* truth)
      : rewriter_(rewriter), rules_(rewriter.rules_), json_(json), whole_(whole), truth_(truth) {}

  Result<RewrittenReply> run();

 private:
  // An object inside the reply, with its own scan. `offset`: where it begins in the reply.
  struct Inside {
    std::string_view text;
    size_t offset;
    JsonScan scan;
  };
  static std::optional<Inside> inside(std::string_view text, size_t offset,
                                      const JsonMemberSpan* member);

  Status edit_tandem(const JsonScan& scan, JsonEdit& edit);
  void edit_object(const JsonScan& scan, JsonEdit& edit);
  void edit_usage_of(std::string_view object, size_t offset, const JsonScan& scan, JsonEdit& edit);
  std::vector<TextEdit> edit_usage(const Inside& usage);
  void set_cached(const Inside& usage, const UsageNames& names, JsonEdit& edit) const;
  std::vector<TextEdit> edit_item(std::string_view item, size_t offset, size_t index);
  std::vector<TextEdit> edit_meta(const Inside& meta, size_t index);
  std::vector<TextEdit> edit_choices(const Inside& choices);
  void join_prompt_logprobs(const Inside& meta, size_t index, JsonEdit& edit) const;
  void join_choice(const Inside& choice, size_t at, JsonEdit& edit);
  void strip(const JsonScan& scan, JsonEdit& edit) const;
  PromptCounts truth_counts() const { return truth_ == nullptr ? PromptCounts{} : truth_->counts; }

  ReplyRewriter& rewriter_;
  const ReplyRules& rules_;
  std::string_view json_;
  bool whole_;
  const PromptTruth* truth_;
  bool only_usage_ = false;  // a chunk without choices
};

// The elements of `first`, without its last `drop`, before those of `second` (both JSON arrays).
std::string join_arrays(std::string_view first, size_t drop, std::string_view second);

}  // namespace tandem::router
