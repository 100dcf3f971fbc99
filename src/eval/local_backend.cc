#include <algorithm>
#include <atomic>
#include <future>
#include <utility>

#include "engine/engine.h"
#include "eval/backend.h"
#include "model/memory_budget.h"
#include "model/sequence_runner.h"
#include "numerics/error.h"
#include "observe/metrics.h"
#include "ops/packed_matrix.h"
#include "text/chat_template.h"

namespace tandem::eval {
namespace {

constexpr int32_t kBlockTokens = 16;
constexpr auto kPoll = std::chrono::seconds(1);
constexpr text::EncodeOptions kWholePrompt{.parse_special = true, .add_bos = true};

class LocalGenerator final : public Generator {
 public:
  LocalGenerator(LoadedModel loaded, ops::AlignedBytes pages, ops::PageArenaView view,
                 engine::EngineOptions options)
      : tokenizer_(loaded.tokenizer),
        chat_template_(std::move(loaded.chat_template)),
        pages_(std::move(pages)),
        engine_(
            std::move(loaded.model), tokenizer_, view, [](int32_t, uint64_t) {}, std::move(options),
            metrics_) {}

  Result<Generated> generate(const Prompt& prompt, const Generation& how) override {
    TANDEM_TRY(tokens, encode(prompt));
    protocol::GenerateRequest request;
    request.context.request_id = "eval-" + std::to_string(next_++);
    request.prompt = std::move(tokens);
    request.sampling.temperature = static_cast<float>(how.temperature);
    request.sampling.seed = how.seed;
    request.sampling.max_tokens = how.max_tokens;
    request.sampling.stop = how.stop;
    struct Collected {
      Generated generated;
      std::promise<Result<Generated>> done;
    };
    auto collected = std::make_shared<Collected>();
    auto done = collected->done.get_future();
    TANDEM_TRY(sequence,
               engine_.generate(std::move(request), [collected](protocol::TokenEvent event) {
                 if (auto* text = std::get_if<protocol::TextEvent>(&event)) {
                   collected->generated.text += text->text;
                 } else if (auto* finish = std::get_if<protocol::FinishEvent>(&event)) {
                   collected->generated.cut = finish->reason == protocol::FinishReason::kLength;
                   collected->done.set_value(std::move(collected->generated));
                 } else if (auto* failed = std::get_if<protocol::ErrorEvent>(&event)) {
                   collected->done.set_value(tl::unexpected(failed->error));
                 }
               }));
    while (done.wait_for(kPoll) != std::future_status::ready) {
      if (!engine_.stalled()) continue;
      engine_.abort(sequence);
      return internal_error("A forward pass does not end.");
    }
    return done.get();
  }

 private:
  Result<std::vector<int32_t>> encode(const Prompt& prompt) const {
    if (!prompt.messages.is_array()) return tokenizer_->encode(prompt.text, kWholePrompt);
    if (!chat_template_)
      return make_error(400, "no_chat_template",
                        "This model has no chat template: leave --chat out.");
    return text::encode_chat(*tokenizer_, *chat_template_, prompt.messages, {}, true);
  }

  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::optional<text::ChatTemplate> chat_template_;
  ops::AlignedBytes pages_;
  observe::Metrics metrics_;
  std::atomic<uint64_t> next_{0};
  engine::Engine engine_;
};

size_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

class LocalScorer final : public Scorer {
 public:
  LocalScorer(LoadedModel& loaded, model::SequenceRunner runner, int32_t room)
      : tokenizer_(loaded.tokenizer),
        runner_(std::move(runner)),
        vocab_(static_cast<size_t>(loaded.model->config().vocab)),
        context_length_(loaded.model->config().context_length),
        room_(room),
        rows_(static_cast<size_t>(std::min(loaded.model->max_rows(), 256))) {}

  int32_t parallel() const override { return 1; }

  Result<std::vector<Score>> score(const std::string& context,
                                   std::span<const std::string> continuations) override {
    const auto before = tokenizer_->encode(context, kWholePrompt);
    std::vector<Score> out;
    for (const std::string& continuation : continuations) {
      const auto tokens = tokenizer_->encode(context + continuation, kWholePrompt);
      // A token that straddles the border belongs to the continuation; the very first token has no
      // probability.
      const size_t first = std::max<size_t>(1, common_prefix(before, tokens));
      TANDEM_TRY(one, score_tokens(tokens, first));
      out.push_back(one);
    }
    return out;
  }

 private:
  Result<Score> score_tokens(std::span<const int32_t> tokens, size_t first) {
    Score out;
    if (tokens.size() <= first) return out;
    if (tokens.size() > static_cast<size_t>(room_)) {
      const std::string limit =
          room_ == context_length_
              ? "This model's maximum context length is " + std::to_string(room_) + " tokens"
              : "Choices are scored in this process within " + std::to_string(room_) +
                    " tokens (a server, --url, takes this model's " +
                    std::to_string(context_length_) + ")";
      return make_error(
          400, "context_length_exceeded",
          limit + ", but question and choice have " + std::to_string(tokens.size()) + ".");
    }
    // The last token is only predicted. The row before the first scored token must be computed.
    const auto input = tokens.first(tokens.size() - 1);
    const size_t keep = std::min(common_prefix(computed_, input), first - 1);
    runner_.truncate(0, static_cast<int32_t>(keep));
    computed_.resize(keep);
    for (size_t at = keep; at < input.size();) {
      const bool scored = at >= first - 1;
      const size_t stop = scored ? input.size() : first - 1;
      const auto chunk = input.subspan(at, std::min(stop - at, rows_));
      TANDEM_TRY(logits, runner_.append(0, chunk, scored));
      computed_.insert(computed_.end(), chunk.begin(), chunk.end());
      for (size_t i = 0; scored && i < chunk.size(); ++i) {
        const auto row = std::span(logits).subspan(i * vocab_, vocab_);
        out.logprob += row[static_cast<size_t>(tokens[at + i + 1])] - numerics::log_sum_exp(row);
        ++out.tokens;
      }
      at += chunk.size();
    }
    return out;
  }

  std::shared_ptr<const text::Tokenizer> tokenizer_;
  model::SequenceRunner runner_;
  size_t vocab_;
  int32_t context_length_;
  int32_t room_;  // tokens that the runner's pages hold
  size_t rows_;
  std::vector<int32_t> computed_;  // tokens in the runner
};

}  // namespace

Result<std::unique_ptr<Generator>> make_local_generator(LoadedModel loaded, size_t kv_bytes,
                                                        int32_t prefill_chunk,
                                                        int32_t max_sequences) {
  const ops::PageLayout layout = loaded.model->page_layout(kBlockTokens);
  const std::vector<model::PageGroup> groups = loaded.model->page_groups();
  TANDEM_TRY(budget, model::plan_memory(loaded.model->memory(), layout, kv_bytes,
                                        {.groups = groups,
                                         .pass_tokens = prefill_chunk,
                                         .min_tokens = int64_t{4} * kBlockTokens}));
  const size_t stride = budget.page_stride;
  auto pages = ops::allocate_aligned(stride * static_cast<size_t>(budget.pages));
  if (!pages) return make_error(500, "out_of_memory", "There is no memory for KV pages.");
  const ops::PageArenaView view{pages.get(), stride, budget.pages, layout};
  engine::EngineOptions options;
  options.prefill_chunk = prefill_chunk;
  options.max_sequences = max_sequences;
  options.lineage = loaded.lineage;
  return std::make_unique<LocalGenerator>(std::move(loaded), std::move(pages), view,
                                          std::move(options));
}

Result<std::unique_ptr<Scorer>> make_local_scorer(LoadedModel& loaded, int32_t most_tokens) {
  const int32_t room = std::min(loaded.model->config().context_length, most_tokens);
  TANDEM_TRY(runner, model::SequenceRunner::create(*loaded.model, 1, room));
  return std::make_unique<LocalScorer>(loaded, std::move(runner), room);
}

}  // namespace tandem::eval
