// ChoiceText: the text side of one choice: sampled tokens in, events out. Characters are never
// split, stop strings never sent (unless they are to stay), and every token travels with its
// logprobs in exactly one event, however long its text was held back.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "engine/stop_matcher.h"
#include "protocol/request.h"
#include "protocol/scored_token.h"
#include "protocol/token_event.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace tandem::engine {

// Ids and numbers to what a client reads.
protocol::TokenLogprobs describe(const text::Tokenizer& tokenizer,
                                 const protocol::ScoredToken& token);

class ChoiceText {
 public:
  ChoiceText(std::shared_ptr<const text::Tokenizer> tokenizer,
             const protocol::SamplingParams& params, int32_t choice);

  // Adds a token that is no stop token. Nothing when all of its text is held back.
  std::optional<protocol::TextEvent> push(const protocol::ScoredToken& token);
  // Tokens that nobody sampled: they take the place of the last `removed` ones and add `text`.
  std::optional<protocol::TextEvent> push_forced(size_t removed, std::span<const int32_t> tokens,
                                                 std::string_view text);
  // A stop string is complete: the choice is over.
  bool stopped() const { return stops_.matched().has_value(); }
  // The end: what was held back and the tokens that no event carried yet. By length, an unfinished
  // character is dropped.
  std::optional<protocol::TextEvent> flush(protocol::FinishReason reason,
                                           const std::optional<protocol::ScoredToken>& stop_token);
  // After flush; `usage` has the prompt's numbers.
  protocol::FinishEvent finish(protocol::FinishReason reason,
                               const std::optional<protocol::ScoredToken>& stop_token,
                               protocol::Usage usage);

  int32_t choice() const { return choice_; }
  bool empty() const { return completion_.empty(); }
  const std::vector<int32_t>& tokens() const { return completion_; }
  // Of the sampled tokens, a stop token too; 0 when there is none.
  double mean_logprob() const { return sampled_ == 0 ? 0 : logprob_sum_ / sampled_; }

 private:
  void add(const protocol::ScoredToken& token);
  std::string text_of(int32_t token);
  std::optional<protocol::TextEvent> event(std::string text);

  std::shared_ptr<const text::Tokenizer> tokenizer_;
  int32_t choice_;
  size_t min_tokens_;
  bool wants_logprobs_;
  bool include_stop_;
  text::Detokenizer detokenizer_;
  StopMatcher stops_;
  std::vector<int32_t> kept_;  // ascending
  struct Place {
    size_t offset;  // in all of the text
    int32_t token;
  };
  std::deque<Place> marks_;  // that no event carried yet
  size_t read_ = 0;          // bytes of text made of tokens
  size_t told_ = 0;          // bytes of text in events
  std::vector<int32_t> completion_;
  std::vector<int32_t> unsent_;  // ids behind text that is still held back
  std::vector<protocol::TokenLogprobs> unsent_logprobs_;
  double logprob_sum_ = 0;
  int32_t sampled_ = 0;
};

}  // namespace tandem::engine
