// The side of Engine where requests come in: what is refused, and the sequences a request becomes.
#include <algorithm>
#include <string>
#include <utility>

#include "engine/engine.h"
#include "numerics/digest.h"
#include "numerics/hmac.h"

namespace tandem::engine {

using protocol::ErrorEvent;
using protocol::FinishReason;
using protocol::GenerateRequest;
using protocol::SamplingParams;

namespace {

Status check_choices(const SamplingParams& params) {
  if (params.n < 1 || params.n > protocol::kMaxChoices) {
    return invalid_request("n must be between 1 and " + std::to_string(protocol::kMaxChoices) + ".",
                           "/n");
  }
  if (params.best_of < params.n || params.best_of > protocol::kMaxChoices) {
    return invalid_request(
        "best_of must be at least n and at most " + std::to_string(protocol::kMaxChoices) + ".",
        "/best_of");
  }
  return {};
}

Status check_sampling(const SamplingParams& params, int32_t vocab, int64_t prompt) {
  TANDEM_CHECK(check_choices(params));
  const auto outside = [&](int32_t token) { return token < 0 || token >= vocab; };
  const std::string limit = " is outside the model's vocabulary of " + std::to_string(vocab) + ".";
  if (params.logit_bias.size() > protocol::kMaxLogitBias)
    return invalid_request("logit_bias names too many tokens.", "/logit_bias");
  for (const auto& bias : params.logit_bias) {
    if (outside(bias.token)) {
      return invalid_request("Token id " + std::to_string(bias.token) + " in logit_bias" + limit,
                             "/logit_bias");
    }
  }
  if (params.stop_token_ids.size() > protocol::kMaxStopTokens)
    return invalid_request("stop_token_ids names too many tokens.", "/stop_token_ids");
  for (const int32_t token : params.stop_token_ids) {
    if (outside(token)) {
      return invalid_request("Token id " + std::to_string(token) + " in stop_token_ids" + limit,
                             "/stop_token_ids");
    }
  }
  const auto too_many = [](const std::optional<int32_t>& count) {
    return count && (*count < 0 || *count > protocol::kMaxTopLogprobs);
  };
  if (too_many(params.logprobs) || too_many(params.prompt_logprobs)) {
    return invalid_request("At most " + std::to_string(protocol::kMaxTopLogprobs) +
                               " alternatives can be given with a token.",
                           "/logprobs");
  }
  return protocol::check_prompt_chances(prompt, params);
}

}  // namespace

Result<int32_t> Engine::check_prompt(std::span<const int32_t> tokens, int32_t more,
                                     const std::string& adapter) const {
  const auto prompt = static_cast<int64_t>(tokens.size());
  if (prompt == 0) return invalid_request("The prompt is empty.");
  for (const int32_t token : tokens) {
    if (token < 0 || token >= model_->config().vocab) {
      return invalid_request("The prompt holds token id " + std::to_string(token) +
                             ", outside the model's vocabulary of " +
                             std::to_string(model_->config().vocab) + ".");
    }
  }
  if (prompt + more > context_length_) {
    return make_error(400, "context_length_exceeded",
                      "This model's maximum context length is " + std::to_string(context_length_) +
                          " tokens, but the prompt has " + std::to_string(prompt) +
                          "; shorten it.");
  }
  if (adapter.empty()) return -1;
  const auto index = model_->find_adapter(adapter);
  if (!index) {
    return make_error(404, "adapter_not_found",
                      "The adapter \"" + adapter + "\" is not loaded here.");
  }
  return *index;
}

Result<int32_t> Engine::check(const GenerateRequest& request) const {
  TANDEM_TRY(adapter,
             check_prompt(request.prompt, request.sampling.score_only ? 0 : 1, request.adapter));
  TANDEM_CHECK(check_sampling(request.sampling, model_->config().vocab,
                              static_cast<int64_t>(request.prompt.size())));
  return adapter;
}

std::vector<int32_t> Engine::stop_tokens(const SamplingParams& params) const {
  std::vector<int32_t> out = params.stop_token_ids;
  if (!params.ignore_eos) {
    const auto& ends = tokenizer_->spec().end_of_generation;
    out.insert(out.end(), ends.begin(), ends.end());
  }
  return out;
}

SequenceSpec Engine::make_spec(SequenceId id, const protocol::RequestContext& context,
                               std::vector<int32_t> prompt, const std::string& adapter_name,
                               int32_t adapter) const {
  SequenceSpec spec;
  spec.id = id;
  spec.prompt = std::move(prompt);
  spec.tenant = context.tenant;
  spec.scope = {.salt = context.salt, .adapter = adapter_name};
  spec.adapter = adapter;
  spec.priority = context.priority;
  if (context.deadline.count() > 0)
    spec.deadline = std::chrono::steady_clock::now() + context.deadline;
  return spec;
}

SequenceSpec Engine::choice_spec(const Group& group, SequenceId id, int32_t choice) const {
  const GenerateRequest& request = group.request;
  SequenceSpec spec =
      make_spec(id, request.context, request.prompt, request.adapter, group.adapter);
  spec.deadline = group.deadline;
  spec.max_tokens = request.sampling.max_tokens;
  spec.stop_tokens = stop_tokens(request.sampling);
  spec.generate = !request.sampling.score_only;
  spec.one_token_at_a_time = group.grammar != nullptr;
  spec.score_prompt = choice == 0 && request.sampling.prompt_logprobs.has_value();
  spec.scope.reuse = !spec.score_prompt;
  spec.accepted = choice > 0;
  return spec;
}

namespace {

tl::unexpected<Error> one_leg_only() {
  return invalid_request(
      "Logprobs of the prompt can be had from one worker only, not from a pair.");
}

// Without a seed the handoff's id is one, so that both legs draw the same numbers; a client may
// choose its request's id, and several prompts may have the same.
uint64_t seed_of(const GenerateRequest& request) {
  if (request.sampling.seed) return *request.sampling.seed;
  const std::string& id = request.handoff.handoff_id;
  const std::string drawn = id.empty() ? numerics::random_bytes(sizeof(uint64_t)) : id;
  return numerics::xxh3(std::as_bytes(std::span(drawn)));
}

}  // namespace

Engine::Generation Engine::make_generation(const GenerateRequest& request,
                                           const GrammarPointer& grammar, uint64_t seed,
                                           int32_t choice) const {
  Generation out;
  out.state = std::make_shared<SequenceState>();
  out.state->sampler = sample::SequenceSampler(request.sampling, stop_tokens(request.sampling),
                                               seed, choice, request.prompt);
  out.state->prompt_logprobs = request.sampling.prompt_logprobs.value_or(0);
  out.prompt_tokens = static_cast<int32_t>(request.prompt.size());
  if (grammar) out.matcher.emplace(grammar);
  return out;
}

std::shared_ptr<Engine::Group> Engine::make_group(SequenceId id, GenerateRequest request,
                                                  int32_t adapter, GrammarPointer grammar,
                                                  EventSink sink) const {
  auto group = std::make_shared<Group>();
  group->id = id;
  group->submitted = std::chrono::steady_clock::now();
  if (request.context.deadline.count() > 0)
    group->deadline = group->submitted + request.context.deadline;
  group->seed = seed_of(request);
  group->adapter = adapter;
  group->grammar = std::move(grammar);
  group->sink = std::move(sink);
  group->prompt_sent = !request.sampling.prompt_logprobs.has_value();
  if (!group->prompt_sent) {
    group->prompt.tokens = request.prompt;
    group->prompt.logprobs.reserve(request.prompt.size());
    group->prompt.logprobs.emplace_back();  // the first token follows nothing
  }
  if (request.sampling.score_only) request.sampling.n = request.sampling.best_of = 1;
  group->request = std::move(request);
  return group;
}

void Engine::add_choice(const std::shared_ptr<Group>& group, SequenceId id, int32_t choice) {
  Generation generation = make_generation(group->request, group->grammar, group->seed, choice);
  generation.text.emplace(tokenizer_, group->request.sampling, choice);
  generation.group = group;
  generations_.emplace(id, std::move(generation));
  group->running.push_back(id);
}

// Called when the prompt is computed and whenever a choice ends.
void Engine::start_choices(const std::shared_ptr<Group>& group) {
  const auto most = static_cast<size_t>(std::max(1, options_.max_sequences / 4));
  while (group->next_choice < group->request.sampling.best_of && group->running.size() < most) {
    const SequenceId id = next_id_++;
    const int32_t choice = group->next_choice++;
    (void)scheduler_.add(choice_spec(*group, id, choice));  // accepted: never refused
    add_choice(group, id, choice);
  }
}

Result<SequenceId> Engine::generate(GenerateRequest request, EventSink sink) {
  TANDEM_TRY(adapter, check(request));
  TANDEM_TRY(grammar, grammar_of(request));
  const SequenceId id = next_id_++;
  post([this, id, adapter, grammar = std::move(grammar), request = std::move(request),
        sink = std::move(sink)]() mutable {
    auto group = make_group(id, std::move(request), adapter, std::move(grammar), std::move(sink));
    const SamplingParams& params = group->request.sampling;
    if (params.score_only && !params.prompt_logprobs) {  // nothing is wanted of the model
      ChoiceText text(tokenizer_, params, 0);
      const auto prompt = static_cast<int32_t>(group->request.prompt.size());
      group->sink(text.finish(FinishReason::kLength, {}, {.prompt_tokens = prompt}));
      return;
    }
    if (auto added = scheduler_.add(choice_spec(*group, id, 0)); !added) {
      group->sink(ErrorEvent{added.error()});
      return;
    }
    groups_.emplace(id, group);
    add_choice(group, id, 0);
  });
  return id;
}

Result<SequenceId> Engine::prefill(GenerateRequest request, PrefillSink sink) {
  TANDEM_TRY(adapter, check(request));
  if (protocol::needs_one_leg(request.sampling)) return one_leg_only();
  TANDEM_TRY(grammar, grammar_of(request));
  const SequenceId id = next_id_++;
  post([this, id, adapter, grammar = std::move(grammar), request = std::move(request),
        sink = std::move(sink)]() mutable {
    SequenceSpec spec = make_spec(id, request.context, request.prompt, request.adapter, adapter);
    spec.hold_after_first = true;
    if (auto added = scheduler_.add(std::move(spec)); !added) {
      sink(ErrorEvent{added.error()});
      return;
    }
    Generation generation = make_generation(request, grammar, seed_of(request), 0);
    generation.prefill_sink = std::move(sink);
    generations_.emplace(id, std::move(generation));
  });
  return id;
}

Result<SequenceId> Engine::embed(protocol::EmbedRequest request, EmbedSink sink) {
  TANDEM_TRY(adapter, check_prompt(request.prompt, 0, request.adapter));
  const SequenceId id = next_id_++;
  post([this, id, adapter, request = std::move(request), sink = std::move(sink)]() mutable {
    Generation generation;
    generation.state = std::make_shared<SequenceState>();
    generation.prompt_tokens = static_cast<int32_t>(request.prompt.size());
    generation.state->pool.pooling = request.pooling;
    generation.state->pool.rows = generation.prompt_tokens;
    SequenceSpec spec =
        make_spec(id, request.context, std::move(request.prompt), request.adapter, adapter);
    spec.generate = false;
    spec.pool_prompt = true;
    spec.scope.reuse = request.pooling == protocol::Pooling::kLast;
    if (auto added = scheduler_.add(std::move(spec)); !added) {
      sink(tl::unexpected(added.error()));
      return;
    }
    generation.embed_sink = std::move(sink);
    generations_.emplace(id, std::move(generation));
  });
  return id;
}

void Engine::start_received(SequenceId id, GenerateRequest request,
                            std::vector<protocol::ScoredToken> first_tokens, int32_t cached_tokens,
                            std::vector<IntegrityReport::Fresh> proven, EventSink sink,
                            std::function<void()> started) {
  post([this, id, request = std::move(request), first_tokens = std::move(first_tokens),
        cached_tokens, proven = std::move(proven), sink = std::move(sink),
        started = std::move(started)]() mutable {
    // The offer had room; everything else was checked by the side that computed the prompt, but the
    // other choices run here.
    auto adapter = check(request);
    if (protocol::needs_one_leg(request.sampling)) adapter = one_leg_only();
    auto grammar = grammar_of(request);
    if (!grammar) adapter = tl::unexpected(grammar.error());
    // One that no row of the model stands for would fail a pass with everybody in it.
    const int32_t first = first_tokens.empty() ? -1 : first_tokens.front().token;
    if (first < 0 || first >= model_->config().vocab)
      adapter = make_error(502, "handoff_protocol", "The first token is outside the vocabulary.");
    if (!adapter) {
      kv_.receive_failed(id);
      started();
      sink(ErrorEvent{adapter.error()});
      return;
    }
    guard_.received(proven);
    kv_.receive_done(id, request.prompt);
    started();
    meters_.prompt_tokens.add(static_cast<double>(request.prompt.size()));
    auto group = make_group(id, std::move(request), *adapter, std::move(*grammar), std::move(sink));
    group->cached_tokens = cached_tokens;
    groups_.emplace(id, group);
    add_choice(group, id, 0);
    scheduler_.add_resident(choice_spec(*group, id, 0), std::move(first_tokens.front()));
    deliver_updates();
  });
}

}  // namespace tandem::engine
