// ReplyRewriter: the parts of a worker's reply that the client must not get as they are. Usage is
// told truthfully (prompt and cached tokens from the worker that computed the prompt, completion
// from the one that answers, the total added up), SGLang's prompt logprobs are joined to the
// answer's, what routers and workers say to each other is taken out. All else stays byte for byte:
// the edits are splices of single values, and most frames are never parsed.
//
//   ReplyRewriter rewriter(rules);
//   // for each SSE frame that has data, and for a whole JSON reply:
//   switch (rewriter.need(data, whole)) {
//     case Need::kNothing: relay it as it is;
//     case Need::kWait:    if prefill's reply is still to come, wait for it (bounded) first
//     case Need::kRead:
//       auto result = rewriter.rewrite(data, whole, truth);  // truth: nullptr if it never came
//       result->drop ? nothing : result->json ? replace_sse_data(frame.raw, *result->json)
//                                             : frame.raw
//   }
//
// Pure; one object a reply, used by one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "router/usage/api.h"
#include "router/usage/prompt_truth.h"

namespace tandem::router {

struct ReplyRules {
  Api api = Api::kChat;
  // Another worker computed the prompt: its counts are told, and no cached count at all when it
  // gave none. Otherwise the answering worker's numbers stand (and are only read).
  bool pair = false;
  // The client asked for the prompt's logprobs (SGLang): the first frames that would carry them
  // wait for prefill's reply too.
  bool input_logprobs = false;
  // The frame that only holds usage was asked for by the router, not by the client: read and
  // dropped.
  bool hide_usage = false;
  // A Tandem worker: the frame with a `tandem` object is its last word. The object is replaced by
  // `tandem_report` (JSON text; empty: removed); without usage the reply is wrong.
  bool tandem = false;
  std::string tandem_report = {};
  // Members that are between the router and the workers (Connector::strip), at the top, in
  // `choices` and in `meta_info`; null values stay.
  std::vector<std::string_view> strip = {};
};

// What the client was told (or would have been, where it did not ask).
struct ToldUsage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
};

struct RewrittenReply {
  std::optional<std::string> json;  // nothing: unchanged
  bool drop = false;
};

class ReplyRewriter {
 public:
  enum class Need : uint8_t { kNothing, kRead, kWait };

  explicit ReplyRewriter(ReplyRules rules);

  // Looks for a few words, without parsing: about a tenth of a microsecond for a usual frame.
  // `whole`: a whole reply instead of one event's data.
  Need need(std::string_view json, bool whole) const;

  // Errors: of a Tandem worker's reply 502 "bad_response" (it lacks usage, or its ids are none); of
  // any engine's 502 "engine_failed" (the answer ended as "abort", "error", "cancelled" or
  // "timeout"). What cannot be read otherwise is passed on as it is.
  Result<RewrittenReply> rewrite(std::string_view json, bool whole, const PromptTruth* truth);

  // So far.
  bool counted() const { return counted_; }
  const ToldUsage& told() const { return told_; }
  // Of a Tandem worker: the generated ids of each choice.
  std::vector<std::vector<int32_t>>& completion_ids() { return completion_ids_; }

 private:
  friend class ReplyEditor;

  ReplyRules rules_;
  std::vector<std::string> strip_words_;  // quoted
  ToldUsage told_;
  bool counted_ = false;
  std::vector<ToldUsage> parts_;  // /generate: the latest of each index
  std::vector<bool> joined_;      // streamed choices that got their prompt's logprobs
  std::vector<std::vector<int32_t>> completion_ids_;
};

// The frame `raw` (every byte of one event) with other data: in place of its data lines, with
// their spelling of "data:" and their line ending. Other lines stay.
std::string replace_sse_data(std::string_view raw, std::string_view data);

}  // namespace tandem::router
