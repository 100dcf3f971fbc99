// The side of Engine where answers go out: scheduler updates to the events that sinks get.
#include <algorithm>
#include <utility>

#include "engine/engine.h"

namespace tandem::engine {

using protocol::ErrorEvent;
using protocol::FinishReason;
using protocol::ScoredToken;
using protocol::TextEvent;

// Prompt logprobs and embeddings: the scheduler has no use for them. A prompt that is computed
// again (preempted) brings some a second time.
void Engine::collect(protocol::StepOutcome& outcome) {
  for (protocol::PromptScores& scores : outcome.scores) {
    const auto at = generations_.find(scores.sequence);
    if (at == generations_.end() || !at->second.group) continue;
    auto& logprobs = at->second.group->prompt.logprobs;
    auto position = static_cast<size_t>(scores.first_position);
    for (const ScoredToken& token : scores.tokens) {
      if (position++ == logprobs.size()) logprobs.emplace_back(describe(*tokenizer_, token));
    }
  }
  for (protocol::PooledRows& pooled : outcome.pooled) {
    const auto at = generations_.find(pooled.sequence);
    if (at != generations_.end()) at->second.pooled = std::move(pooled.values);
  }
}

void Engine::deliver_updates() {
  for (SequenceUpdate& update : scheduler_.take_updates()) {
    const auto at = generations_.find(update.id);
    if (at == generations_.end()) continue;  // aborted meanwhile
    Generation& generation = at->second;
    if (update.error && update.error->code == "non_finite_logits") {
      // A mask that could not be had, or that leaves nothing, is told as such.
      if (generation.mask && !generation.mask->status) {
        update.error = generation.mask->status.error();
      } else {
        meters_.non_finite.add();
      }
    }
    const bool counts = !generation.group || generation.group->id == update.id;
    if (update.admitted_cached && counts) {  // the other choices have the same prompt
      meters_.prompt_tokens.add(static_cast<double>(generation.prompt_tokens));
      meters_.cached_tokens.add(*update.admitted_cached);
      generation.cached_tokens = *update.admitted_cached;
      if (generation.group) generation.group->cached_tokens = *update.admitted_cached;
    }
    if (generation.prefill_sink) {
      deliver_prefill(generation, update);
      if (update.error) generations_.erase(update.id);
    } else if (generation.embed_sink) {
      deliver_embedding(generation, update);
      if (update.error || update.finish) generations_.erase(update.id);
    } else {
      deliver(update.id, generation, update);
    }
  }
}

void Engine::deliver_prefill(Generation& generation, SequenceUpdate& update) {
  if (update.admitted_cached) generation.prefill_sink(PrefillAdmitted{*update.admitted_cached});
  if (update.token) {
    PrefillDone done{{std::move(*update.token)}};
    if (kv_.holds(update.id)) done.digests = guard_.digests(kv_.tags(update.id));
    generation.prefill_sink(std::move(done));
  }
  if (update.error) generation.prefill_sink(ErrorEvent{*update.error});
}

void Engine::deliver_embedding(Generation& generation, SequenceUpdate& update) {
  if (update.error) {
    generation.embed_sink(tl::unexpected(*update.error));
  } else if (update.finish) {
    generation.embed_sink(Embedding{
        std::move(generation.pooled),
        {.prompt_tokens = generation.prompt_tokens, .cached_tokens = generation.cached_tokens}});
  }
}

// May erase the generation.
void Engine::deliver(SequenceId id, Generation& generation, SequenceUpdate& update) {
  const std::shared_ptr<Group> group = generation.group;
  if (update.token && generation.matcher && !generation.matcher->accept(update.token->token))
    update.error = Error{500, "grammar_mismatch", "A token came that the grammar does not allow."};
  if (update.error) {
    const EventSink sink = group->sink;
    drop_group(*group);
    sink(ErrorEvent{*update.error});
    return;
  }
  if (!update.token && !update.finish) return;
  emit_prompt(*group);
  bool complete = false;
  if (update.token) {
    deliver_token(generation, *update.token);
    if (generation.matcher) {
      if (!generation.matcher->finished()) jump_forward(id, generation);
      complete = generation.matcher->finished();
    }
  }
  if (generation.text->stopped() || complete) {
    scheduler_.finish(id);  // harmless when it has just ended by length
    end_choice(id, generation, FinishReason::kStop, std::nullopt);
  } else if (update.finish) {
    end_choice(id, generation, *update.finish, update.stop_token);
  }
  start_choices(group);  // the prompt is computed, or a place is free
  if (group->running.empty()) end_group(*group);
}

void Engine::deliver_token(Generation& generation, const ScoredToken& token) {
  const auto now = std::chrono::steady_clock::now();
  if (!generation.text->empty()) {
    meters_.itl_seconds.observe(to_seconds(now - generation.last_token));
  } else if (generation.text->choice() == 0) {
    meters_.ttft_seconds.observe(to_seconds(now - generation.group->submitted));
  }
  generation.last_token = now;
  meters_.generation_tokens.add();
  emit_text(generation, generation.text->push(token));
}

void Engine::emit_prompt(Group& group) {
  if (std::exchange(group.prompt_sent, true)) return;
  group.sink(std::move(group.prompt));
}

void Engine::emit_text(Generation& generation, std::optional<TextEvent> event) {
  if (!event) return;
  if (!generation.group->ranks()) {
    generation.group->sink(std::move(*event));
    return;
  }
  if (!generation.kept) {
    generation.kept = std::move(event);
    return;
  }
  TextEvent& kept = *generation.kept;
  for (const protocol::TokenMark& mark : event->marks)
    kept.marks.push_back({static_cast<uint32_t>(kept.text.size()) + mark.offset, mark.token});
  kept.text += event->text;
  kept.tokens.insert(kept.tokens.end(), event->tokens.begin(), event->tokens.end());
  std::ranges::move(event->logprobs, std::back_inserter(kept.logprobs));
}

void Engine::end_choice(SequenceId id, Generation& generation, FinishReason reason,
                        const std::optional<ScoredToken>& stop_token) {
  const std::shared_ptr<Group> group = generation.group;
  emit_text(generation, generation.text->flush(reason, stop_token));
  auto finish = generation.text->finish(
      reason, stop_token,
      {.prompt_tokens = generation.prompt_tokens, .cached_tokens = group->cached_tokens});
  if (group->ranks()) {
    group->ranked.push_back({generation.text->mean_logprob(),
                             std::move(generation.kept).value_or(TextEvent{}), std::move(finish)});
  } else {
    group->sink(std::move(finish));
  }
  std::erase(group->running, id);
  generations_.erase(id);
}

// All choices are there: the likeliest are told, in order of their rank.
void Engine::end_group(Group& group) {
  std::ranges::sort(group.ranked, [](const RankedChoice& a, const RankedChoice& b) {
    return a.mean_logprob != b.mean_logprob ? a.mean_logprob > b.mean_logprob
                                            : a.finish.choice < b.finish.choice;
  });
  const size_t told = std::min(static_cast<size_t>(group.request.sampling.n), group.ranked.size());
  for (size_t rank = told; rank < group.ranked.size(); ++rank)
    group.ranked[told - 1].finish.discarded_tokens +=
        group.ranked[rank].finish.usage.completion_tokens;
  for (size_t rank = 0; rank < told; ++rank) {
    RankedChoice& choice = group.ranked[rank];
    choice.text.choice = choice.finish.choice = static_cast<int32_t>(rank);
    if (!choice.text.tokens.empty()) group.sink(std::move(choice.text));
    group.sink(std::move(choice.finish));
  }
  groups_.erase(group.id);
}

// Ends whatever of the request still runs, without events. May destroy the group unless it is held.
void Engine::drop_group(Group& group) {
  for (const SequenceId id : std::exchange(group.running, {})) {
    generations_.erase(id);
    scheduler_.finish(id);
  }
  groups_.erase(group.id);
}

}  // namespace tandem::engine
