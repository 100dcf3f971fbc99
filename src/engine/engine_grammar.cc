// The side of Engine that keeps answers to their grammars. The text so far decides everything: a
// matcher is fed with the tokens as they are told, so that preemption, handoffs and choices need no
// state of it.
#include <algorithm>
#include <utility>

#include "engine/engine.h"

namespace tandem::engine {

using protocol::FinishReason;

Result<Engine::GrammarPointer> Engine::compile_grammar(const protocol::GrammarSpec& spec) const {
  std::call_once(grammars_once_, [this] {
    grammars_ = std::make_unique<grammar::GrammarCache>(std::make_shared<const grammar::Vocabulary>(
        vocabulary_table(*tokenizer_, model_->config().vocab)));
  });
  return grammars_->get(spec);
}

Result<Engine::GrammarPointer> Engine::grammar_of(const protocol::GenerateRequest& request) const {
  if (!request.grammar || request.sampling.score_only) return GrammarPointer();
  return compile_grammar(*request.grammar);
}

// Of the token that a planned pass samples; computed while the pass runs.
std::shared_ptr<GrammarMasks::Mask> Engine::start_mask(Generation& generation) {
  if (!generation.matcher) return nullptr;
  generation.mask = masks_.start(generation.matcher->point());
  return generation.mask;
}

// Bytes that must follow are appended as the tokens that the tokenizer makes of them together with
// the end of the text: the last few tokens give way when the forced bytes change how they are cut.
void Engine::jump_forward(SequenceId id, Generation& generation) {
  constexpr size_t kMostBytes = 512;
  constexpr size_t kLookBack = 8;
  const auto& sampling = generation.group->request.sampling;
  // Logprobs are of tokens that the model chose.
  if (sampling.logprobs || generation.group->ranks() || generation.text->stopped()) return;
  grammar::Matcher& matcher = *generation.matcher;
  const std::string forced = matcher.forced(kMostBytes);
  if (forced.empty()) return;
  const std::vector<int32_t>& told = generation.text->tokens();
  size_t back = 0;
  std::string text;
  while (back < std::min({kLookBack, told.size(), matcher.size()})) {
    const int32_t token = told[told.size() - back - 1];
    if (tokenizer_->is_control(token)) break;
    text.insert(0, tokenizer_->token_bytes(token));
    ++back;
  }
  const size_t known = text.size();
  text += forced;
  std::vector<int32_t> tokens = tokenizer_->encode(text);
  const auto kept = std::span(told).last(back);
  const auto same = static_cast<size_t>(std::ranges::mismatch(tokens, kept).in1 - tokens.begin());
  const size_t removed = back - same;
  std::string spelled;
  for (const int32_t token : tokens) spelled += tokenizer_->token_bytes(token);
  if (spelled != text) return;  // a tokenizer that changes what begins a text
  matcher.rollback(removed);
  const auto fresh = std::span<const int32_t>(tokens).subspan(same);
  size_t count = matcher.certain(fresh).value_or(0);
  const int32_t room = scheduler_.room(id) + static_cast<int32_t>(removed);
  count = std::min(count, static_cast<size_t>(std::max(room, 0)));
  size_t reached = 0;
  for (size_t i = 0; i < same + count; ++i) reached += tokenizer_->token_bytes(tokens[i]).size();
  const auto taken = fresh.first(count);
  if (reached <= known || !scheduler_.replace_end(id, static_cast<int32_t>(removed), taken)) {
    matcher.accept(kept.last(removed));  // as it was
    return;
  }
  matcher.accept(taken);
  meters_.generation_tokens.add(static_cast<double>(count));
  meters_.forced_tokens.add(static_cast<double>(count));
  emit_text(generation, generation.text->push_forced(
                            removed, taken, std::string_view(text).substr(known, reached - known)));
}

}  // namespace tandem::engine
