#include "eval/perplexity.h"

#include <cmath>
#include <cstdio>
#include <vector>

#include "eval/journal.h"
#include "eval/progress.h"
#include "numerics/error.h"

namespace tandem::eval {

Result<JsonValue> run_perplexity(LoadedModel& loaded, const PerplexityOptions& options) {
  TANDEM_TRY(text, tokenize_text(options.text, *loaded.tokenizer));
  TANDEM_TRY(runner, WindowRunner::create(*loaded.model, options.text));
  JsonValue run = text.identity(options.text);
  run.set("eval", JsonValue::string("perplexity"));
  run.set("weights", JsonValue::string(loaded.lineage));
  run.set("numeric_path", JsonValue::string(numeric_path_of(*loaded.model)));
  TANDEM_TRY(journal, Journal::open(options.journal, run));

  double sum = 0;
  int64_t positions = 0;
  const auto take = [&](const JsonValue& result) -> Status {
    const JsonValue* nll = result.find("nll");
    const JsonValue* count = result.find("positions");
    if (nll == nullptr || !nll->as_double() || count == nullptr || !count->as_integer())
      return make_error(400, "invalid_journal", options.journal + " holds another kind of result.");
    sum += *nll->as_double();
    positions += *count->as_integer();
    return {};
  };
  int64_t before = 0;
  for (size_t i = 0; i < text.windows.size(); ++i) {
    if (journal.find(i) != nullptr)
      before += static_cast<int64_t>(text.windows[i].end - text.windows[i].first_scored);
  }
  {
    Progress progress("tokens", text.positions, before);
    for (size_t i = 0; i < text.windows.size(); ++i) {
      const Window& window = text.windows[i];
      if (const JsonValue* finished = journal.find(i)) {
        TANDEM_CHECK(take(*finished));
        continue;
      }
      std::vector<double> losses(window.end - window.first_scored);
      TANDEM_CHECK(
          runner.run(text, window, [&](size_t at, std::span<const float> logits, int32_t target) {
            losses[at] = numerics::log_sum_exp(logits) - logits[static_cast<size_t>(target)];
          }));
      double nll = 0;
      for (const double loss : losses) nll += loss;
      if (!std::isfinite(nll))
        return make_error(500, "bad_logits", "The model gave logits that are not finite.");
      const JsonValue result = JsonValue::object(
          {{"nll", JsonValue::real(nll)},
           {"positions", JsonValue::integer(static_cast<int64_t>(losses.size()))}});
      TANDEM_CHECK(journal.append(i, result));
      TANDEM_CHECK(take(result));
      char note[64];
      std::snprintf(note, sizeof(note), "perplexity %.4f",
                    std::exp(sum / static_cast<double>(positions)));
      progress.advance(static_cast<int64_t>(losses.size()), note);
    }
  }
  const double mean = sum / static_cast<double>(positions);
  run.set("model", JsonValue::string(loaded.name));
  run.set("positions", JsonValue::integer(positions));
  run.set("mean_nll", JsonValue::real(mean));
  run.set("perplexity", JsonValue::real(std::exp(mean)));
  return run;
}

}  // namespace tandem::eval
