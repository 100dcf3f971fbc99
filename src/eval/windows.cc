#include "eval/windows.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "eval/items.h"
#include "numerics/digest.h"

namespace tandem::eval {
namespace {

constexpr size_t kLogitBytes = size_t{64} << 20;

void for_each_row(size_t count, int32_t threads, const std::function<void(size_t)>& row) {
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) row(i);
  };
  std::vector<std::thread> helpers;
  for (int32_t i = 1; i < threads; ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace

std::vector<Window> plan_windows(size_t tokens, int32_t window, int32_t stride, bool bos) {
  const auto room = static_cast<size_t>(bos ? window - 1 : window);
  const size_t step = stride > 0 ? std::min(static_cast<size_t>(stride), room) : room;
  const size_t unscored = bos ? 0 : 1;
  std::vector<Window> out;
  size_t scored_to = 0;
  for (size_t begin = 0; begin + unscored < tokens && scored_to < tokens; begin += step) {
    const size_t end = std::min(begin + room, tokens);
    out.push_back({begin, end, std::max(begin + unscored, scored_to)});
    scored_to = end;
  }
  return out;
}

Result<TokenizedText> tokenize_text(const TextOptions& options, const text::Tokenizer& tokenizer) {
  if (options.window < 2 || options.stride < 0 || options.stride > options.window)
    return make_error(400, "invalid_option",
                      "--window must be at least 2 tokens and --stride at most the window.");
  TANDEM_TRY(text, read_file(options.path));
  TokenizedText out;
  out.tokens = tokenizer.encode(text);
  if (options.limit > 0 && out.tokens.size() > static_cast<size_t>(options.limit))
    out.tokens.resize(static_cast<size_t>(options.limit));
  if (out.tokens.size() < 2)
    return make_error(400, "invalid_data", options.path + " holds fewer than two tokens.");
  out.digest = numerics::to_hex(numerics::sha256(std::as_bytes(std::span(out.tokens))));
  if (tokenizer.spec().add_bos) out.bos = tokenizer.bos();
  out.windows = plan_windows(out.tokens.size(), options.window, options.stride, out.bos >= 0);
  for (const Window& window : out.windows)
    out.positions += static_cast<int64_t>(window.end - window.first_scored);
  return out;
}

JsonValue TokenizedText::identity(const TextOptions& options) const {
  return JsonValue::object(
      {{"tokens", JsonValue::integer(static_cast<int64_t>(tokens.size()))},
       {"tokens_digest", JsonValue::string(digest)},
       {"window", JsonValue::integer(options.window)},
       {"stride", JsonValue::integer(options.stride > 0 ? options.stride : options.window)}});
}

Result<WindowRunner> WindowRunner::create(model::Model& model, const TextOptions& options) {
  if (options.window > model.config().context_length)
    return make_error(400, "context_length_exceeded",
                      "The window of " + std::to_string(options.window) +
                          " tokens is longer than this model's maximum context length of " +
                          std::to_string(model.config().context_length) + " tokens.");
  TANDEM_TRY(runner, model::SequenceRunner::create(model, 1, options.window));
  const auto vocab = model.config().vocab;
  const auto fit =
      static_cast<int32_t>(kLogitBytes / sizeof(float) / static_cast<size_t>(std::max(vocab, 1)));
  return WindowRunner(std::move(runner), vocab, std::clamp(fit, 1, model.max_rows()),
                      std::max(options.threads, 1));
}

Status WindowRunner::run(const TokenizedText& text, const Window& window, const Row& row) {
  std::vector<int32_t> input;
  if (text.bos >= 0) input.push_back(text.bos);
  const size_t shift = input.size();
  input.insert(input.end(), text.tokens.begin() + static_cast<std::ptrdiff_t>(window.begin),
               text.tokens.begin() + static_cast<std::ptrdiff_t>(window.end));
  runner_.truncate(0, 0);
  // The last token is only predicted, never read.
  const size_t last = input.size() - 1;
  // The row whose logits predict the first scored token.
  const size_t first_row = window.first_scored - window.begin + shift - 1;
  const auto vocab = static_cast<size_t>(vocab_);
  for (size_t at = 0; at < last;) {
    const bool scored = at >= first_row;
    const size_t stop = scored ? last : std::min(first_row, last);
    const size_t count = std::min(stop - at, static_cast<size_t>(rows_));
    TANDEM_TRY(logits, runner_.append(0, std::span(input).subspan(at, count), scored));
    if (scored) {
      for_each_row(count, threads_, [&](size_t i) {
        row(at + i - first_row, std::span(logits).subspan(i * vocab, vocab), input[at + i + 1]);
      });
    }
    at += count;
  }
  return {};
}

}  // namespace tandem::eval
