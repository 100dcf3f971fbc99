#include "engine/choice_text.h"

#include <algorithm>
#include <utility>

namespace tandem::engine {

using protocol::FinishEvent;
using protocol::FinishReason;
using protocol::ScoredToken;
using protocol::TextEvent;

protocol::TokenLogprobs describe(const text::Tokenizer& tokenizer, const ScoredToken& token) {
  const auto chance = [&](int32_t id, float logprob) {
    return protocol::TokenChance{id, logprob, std::string(tokenizer.token_bytes(id))};
  };
  protocol::TokenLogprobs out{chance(token.token, token.logprob), {}};
  out.top.reserve(token.top.size());
  for (const auto& other : token.top) out.top.push_back(chance(other.token, other.logprob));
  return out;
}

ChoiceText::ChoiceText(std::shared_ptr<const text::Tokenizer> tokenizer,
                       const protocol::SamplingParams& params, int32_t choice)
    : tokenizer_(std::move(tokenizer)),
      choice_(choice),
      min_tokens_(static_cast<size_t>(std::max(params.min_tokens, 0))),
      wants_logprobs_(params.logprobs.has_value()),
      include_stop_(params.include_stop),
      detokenizer_(tokenizer_, {.continuation = true}),
      stops_(params.stop, params.include_stop),
      kept_(params.kept_tokens) {}

void ChoiceText::add(const ScoredToken& token) {
  unsent_.push_back(token.token);
  if (wants_logprobs_) unsent_logprobs_.push_back(describe(*tokenizer_, token));
}

// What a token adds to the text; a kept one its spelling, marked.
std::string ChoiceText::text_of(int32_t token) {
  const bool kept = std::ranges::binary_search(kept_, token);
  std::string text;
  if (kept) {
    if (detokenizer_.has_pending()) text = detokenizer_.finish();
    marks_.push_back({read_ + text.size(), token});
    text += tokenizer_->token_bytes(token);
  } else {
    text = detokenizer_.push(token);
  }
  read_ += text.size();
  return text;
}

std::optional<TextEvent> ChoiceText::event(std::string text) {
  TextEvent out{std::move(text), std::exchange(unsent_, {}), choice_,
                std::exchange(unsent_logprobs_, {})};
  const size_t begin = std::exchange(told_, told_ + out.text.size());
  while (!marks_.empty() && marks_.front().offset < told_) {
    out.marks.push_back(
        {static_cast<uint32_t>(marks_.front().offset - begin), marks_.front().token});
    marks_.pop_front();
  }
  return out;
}

std::optional<TextEvent> ChoiceText::push(const ScoredToken& token) {
  completion_.push_back(token.token);
  logprob_sum_ += static_cast<double>(token.logprob);
  ++sampled_;
  add(token);
  std::string text = text_of(token.token);
  if (completion_.size() >= min_tokens_) text = stops_.push(text);
  if (text.empty()) return std::nullopt;
  return event(std::move(text));
}

std::optional<TextEvent> ChoiceText::push_forced(size_t removed, std::span<const int32_t> tokens,
                                                 std::string_view text) {
  completion_.resize(completion_.size() - removed);
  // Tokens whose text was told already cannot be told otherwise: the first that are new stand for
  // them.
  unsent_.resize(unsent_.size() - std::min(removed, unsent_.size()));
  completion_.insert(completion_.end(), tokens.begin(), tokens.end());
  unsent_.insert(unsent_.end(), tokens.begin(), tokens.end());
  std::string more = detokenizer_.push_bytes(text);
  if (completion_.size() >= min_tokens_) more = stops_.push(more);
  if (more.empty()) return std::nullopt;
  return event(std::move(more));
}

std::optional<TextEvent> ChoiceText::flush(FinishReason reason,
                                           const std::optional<ScoredToken>& stop_token) {
  std::string text;
  if (!stopped()) {
    if (stop_token && include_stop_) {
      add(*stop_token);
      text += stops_.push(text_of(stop_token->token));
    }
    const bool unfinished = detokenizer_.has_pending() && reason == FinishReason::kLength;
    if (!unfinished && !stopped()) text += stops_.push(detokenizer_.finish());
    text += stops_.finish();
  }
  if (text.empty() && unsent_.empty()) return std::nullopt;
  return event(std::move(text));
}

FinishEvent ChoiceText::finish(FinishReason reason, const std::optional<ScoredToken>& stop_token,
                               protocol::Usage usage) {
  FinishEvent out;
  out.reason = reason;
  out.stop_string = stops_.matched();
  out.choice = choice_;
  out.usage = usage;
  out.usage.completion_tokens = static_cast<int32_t>(completion_.size()) + (stop_token ? 1 : 0);
  out.completion_tokens = std::move(completion_);
  if (stop_token) {
    out.stop_token = stop_token->token;
    logprob_sum_ += static_cast<double>(stop_token->logprob);
    ++sampled_;
  } else if (!out.completion_tokens.empty()) {
    // The last token was sampled, not computed: without a stop token after it, its KV is not in any
    // block.
    out.completion_tokens.pop_back();
  }
  return out;
}

}  // namespace tandem::engine
