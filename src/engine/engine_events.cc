// The text side of Engine: scheduler updates to the events that sinks get.
#include <utility>

#include "engine/engine.h"

namespace tandem::engine {

using protocol::ErrorEvent;
using protocol::FinishEvent;
using protocol::FinishReason;
using protocol::TextEvent;

void Engine::deliver_updates() {
  for (const SequenceUpdate& update : scheduler_.take_updates()) {
    const auto at = generations_.find(update.id);
    if (at == generations_.end()) continue;  // aborted meanwhile
    Generation& generation = at->second;
    if (update.admitted_cached) {
      meters_.prompt_tokens.add(static_cast<double>(generation.request.prompt.size()));
      meters_.cached_tokens.add(*update.admitted_cached);
      generation.cached_tokens = *update.admitted_cached;
    }
    if (generation.prefill_sink) {
      deliver_prefill(generation, update);
      if (update.error) generations_.erase(update.id);
    } else {
      deliver(generation, update);
    }
  }
}

void Engine::deliver_prefill(Generation& generation, const SequenceUpdate& update) {
  if (update.admitted_cached) generation.prefill_sink(PrefillAdmitted{*update.admitted_cached});
  if (update.token) generation.prefill_sink(PrefillDone{{*update.token}});
  if (update.error) generation.prefill_sink(ErrorEvent{*update.error});
}

// May erase the generation.
void Engine::deliver(Generation& generation, const SequenceUpdate& update) {
  const SequenceId id = update.id;
  if (update.token) {
    const auto now = std::chrono::steady_clock::now();
    if (generation.completion.empty()) {
      meters_.ttft_seconds.observe(to_seconds(now - generation.submitted));
    } else {
      meters_.itl_seconds.observe(to_seconds(now - generation.last_token));
    }
    generation.last_token = now;
    meters_.generation_tokens.add();
    if (!push_token(generation, *update.token)) {
      finish(generation, FinishReason::kStop, false);
      generations_.erase(id);
      scheduler_.finish(id);  // harmless when it has just ended by length
      return;
    }
  }
  if (update.finish) {
    finish(generation, *update.finish, !update.token);
    generations_.erase(id);
  } else if (update.error) {
    generation.sink(ErrorEvent{*update.error});
    generations_.erase(id);
  }
}

bool Engine::push_token(Generation& generation, int32_t token) {
  generation.completion.push_back(token);
  generation.unsent.push_back(token);
  std::string text = generation.stops.push(generation.detokenizer.push(token));
  if (!text.empty())
    generation.sink(TextEvent{std::move(text), std::exchange(generation.unsent, {})});
  return !generation.stops.matched();
}

void Engine::finish(Generation& generation, FinishReason reason, bool stop_token) {
  if (!generation.stops.matched()) {
    std::string text = generation.stops.push(generation.detokenizer.finish());
    text += generation.stops.finish();
    if (!text.empty())
      generation.sink(TextEvent{std::move(text), std::exchange(generation.unsent, {})});
  }
  FinishEvent event;
  event.reason = reason;
  event.stop_string = generation.stops.matched();
  event.usage.prompt_tokens = static_cast<int32_t>(generation.request.prompt.size());
  event.usage.cached_tokens = generation.cached_tokens;
  event.usage.completion_tokens =
      static_cast<int32_t>(generation.completion.size()) + (stop_token ? 1 : 0);
  event.completion_tokens = std::move(generation.completion);
  // The last token was sampled, not computed: without a stop token after it, its KV is not in any
  // block.
  if (!stop_token && !event.completion_tokens.empty()) event.completion_tokens.pop_back();
  generation.sink(std::move(event));
}

}  // namespace tandem::engine
