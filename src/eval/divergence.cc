#include "eval/divergence.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include "eval/journal.h"
#include "eval/progress.h"
#include "eval/scoring.h"
#include "numerics/error.h"

namespace tandem::eval {
namespace {

int64_t number(const JsonValue& json, std::string_view key) {
  const JsonValue* value = json.find(key);
  return value == nullptr ? -1 : value->as_integer().value_or(-1);
}

// All windows' results put together.
struct Totals {
  std::vector<double> kl;
  int64_t same_top = 0;
  double max_probability = 0;
  double reference_nll = 0;
  double nll = 0;
  double rest = 0;

  Status add(const JsonValue& result) {
    const JsonValue* values = result.find("kl");
    const auto real = [&](std::string_view key) {
      const JsonValue* value = result.find(key);
      return value == nullptr ? std::nan("") : value->as_double().value_or(std::nan(""));
    };
    if (values == nullptr || std::isnan(real("nll")) || number(result, "same_top") < 0)
      return make_error(400, "invalid_journal", "The finished items are of another kind.");
    for (const JsonValue& value : values->items()) kl.push_back(value.as_double().value_or(0));
    same_top += number(result, "same_top");
    max_probability = std::max(max_probability, real("max_probability"));
    reference_nll += real("reference_nll");
    nll += real("nll");
    rest += real("rest");
    return {};
  }

  double mean_kl() const {
    double sum = 0;
    for (const double value : kl) sum += value;
    return kl.empty() ? 0 : sum / static_cast<double>(kl.size());
  }
};

struct Row {
  PositionDifference difference;
  double nll = 0;
};

JsonValue window_result(const std::vector<ReferencePosition>& reference,
                        const std::vector<Row>& rows) {
  JsonValue kl = JsonValue::array();
  int64_t same_top = 0;
  double max_probability = 0;
  double reference_nll = 0;
  double nll = 0;
  double rest = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    kl.push_back(JsonValue::real(rows[i].difference.kl));
    same_top += rows[i].difference.same_top ? 1 : 0;
    max_probability = std::max(max_probability, rows[i].difference.max_probability);
    reference_nll -= reference[i].target_logprob;
    nll += rows[i].nll;
    rest += std::exp(reference[i].rest_logprob);
  }
  return JsonValue::object({{"kl", std::move(kl)},
                            {"same_top", JsonValue::integer(same_top)},
                            {"max_probability", JsonValue::real(max_probability)},
                            {"reference_nll", JsonValue::real(reference_nll)},
                            {"nll", JsonValue::real(nll)},
                            {"rest", JsonValue::real(rest)}});
}

JsonValue summary(JsonValue run, Totals totals) {
  const auto count = static_cast<double>(std::max<size_t>(totals.kl.size(), 1));
  const double mean = totals.mean_kl();
  std::ranges::sort(totals.kl);
  run.set("positions", JsonValue::integer(static_cast<int64_t>(totals.kl.size())));
  run.set("mean_kl", JsonValue::real(mean));
  JsonValue percentiles = JsonValue::object();
  for (const auto& [name, share] :
       {std::pair{"50", 0.5}, {"90", 0.9}, {"95", 0.95}, {"99", 0.99}, {"100", 1.0}})
    percentiles.set(name, JsonValue::real(percentile(totals.kl, share)));
  run.set("kl_percentiles", std::move(percentiles));
  run.set("top1_agreement", JsonValue::real(static_cast<double>(totals.same_top) / count));
  run.set("max_probability_difference", JsonValue::real(totals.max_probability));
  run.set("reference_perplexity", JsonValue::real(std::exp(totals.reference_nll / count)));
  run.set("perplexity", JsonValue::real(std::exp(totals.nll / count)));
  // Probability the reference gave to tokens that it does not store: 0 makes the KL exact.
  run.set("mean_unstored_probability", JsonValue::real(totals.rest / count));
  return run;
}

}  // namespace

PositionDifference compare_position(const ReferencePosition& reference,
                                    std::span<const float> logits) {
  PositionDifference out;
  const double norm = numerics::log_sum_exp(logits);
  size_t stored = 0;
  double rest = 0;
  for (size_t token = 0; token < logits.size(); ++token) {
    const double logprob = logits[token] - norm;
    if (stored >= reference.tokens.size() ||
        static_cast<size_t>(reference.tokens[stored]) != token) {
      rest += std::exp(logprob);
      continue;
    }
    const double p = std::exp(reference.logprobs[stored]);
    out.kl += p * (reference.logprobs[stored] - logprob);
    out.max_probability = std::max(out.max_probability, std::abs(p - std::exp(logprob)));
    ++stored;
  }
  if (const double p = std::exp(reference.rest_logprob); p > 0 && rest > 0)
    out.kl += p * (reference.rest_logprob - std::log(rest));
  out.kl = std::max(out.kl, 0.0);  // rounding
  out.same_top = numerics::argmax(logits) == static_cast<size_t>(reference.likeliest);
  return out;
}

Result<JsonValue> save_reference(LoadedModel& loaded, const SaveReferenceOptions& options) {
  TANDEM_TRY(text, tokenize_text(options.text, *loaded.tokenizer));
  TANDEM_TRY(runner, WindowRunner::create(*loaded.model, options.text));
  const int32_t vocab = loaded.model->config().vocab;
  JsonValue header = text.identity(options.text);
  header.set("vocab", JsonValue::integer(vocab));
  header.set("top", JsonValue::integer(options.top));
  header.set("model", JsonValue::string(loaded.name));
  header.set("weights", JsonValue::string(loaded.lineage));
  header.set("numeric_path", JsonValue::string(numeric_path_of(*loaded.model)));
  TANDEM_TRY(writer, ReferenceWriter::open(options.file, header));
  const size_t before = std::min(writer.windows(), text.windows.size());
  int64_t finished = 0;
  for (size_t i = 0; i < before; ++i)
    finished += static_cast<int64_t>(text.windows[i].end - text.windows[i].first_scored);
  Progress progress("tokens", text.positions, finished);
  for (size_t i = before; i < text.windows.size(); ++i) {
    const Window& window = text.windows[i];
    std::vector<ReferencePosition> positions(window.end - window.first_scored);
    TANDEM_CHECK(
        runner.run(text, window, [&](size_t at, std::span<const float> logits, int32_t target) {
          positions[at] = reference_position(logits, target, options.top);
        }));
    TANDEM_CHECK(writer.append(encode_positions(positions, vocab)));
    progress.advance(static_cast<int64_t>(positions.size()), "");
  }
  header.set("eval", JsonValue::string("reference"));
  header.set("positions", JsonValue::integer(text.positions));
  header.set("file", JsonValue::string(options.file));
  return header;
}

Result<JsonValue> run_divergence(LoadedModel& loaded, const DivergenceOptions& options) {
  TANDEM_TRY(reader, ReferenceReader::open(options.file));
  const JsonValue& header = reader.header();
  const auto bounded = [&](std::string_view key) {
    return static_cast<int32_t>(std::clamp<int64_t>(number(header, key), 0, 1 << 30));
  };
  const TextOptions text_options{.path = options.text,
                                 .window = bounded("window"),
                                 .stride = bounded("stride"),
                                 .limit = bounded("tokens"),
                                 .threads = options.threads};
  TANDEM_TRY(text, tokenize_text(text_options, *loaded.tokenizer));
  const int32_t vocab = loaded.model->config().vocab;
  const JsonValue* digest = header.find("tokens_digest");
  if (digest == nullptr || digest->as_string() != text.digest || bounded("vocab") != vocab)
    return make_error(400, "invalid_reference",
                      options.file + " is a reference of another text or tokenizer.");
  if (reader.windows() != text.windows.size())
    return make_error(400, "invalid_reference",
                      options.file + " holds " + std::to_string(reader.windows()) + " of " +
                          std::to_string(text.windows.size()) +
                          " windows: run its --save-reference again to finish it.");
  TANDEM_TRY(runner, WindowRunner::create(*loaded.model, text_options));
  JsonValue run =
      JsonValue::object({{"eval", JsonValue::string("kl")},
                         {"reference", header},
                         {"model", JsonValue::string(loaded.name)},
                         {"weights", JsonValue::string(loaded.lineage)},
                         {"numeric_path", JsonValue::string(numeric_path_of(*loaded.model))}});
  TANDEM_TRY(journal, Journal::open(options.journal, run));
  int64_t before = 0;
  for (size_t i = 0; i < text.windows.size(); ++i) {
    if (journal.find(i) != nullptr)
      before += static_cast<int64_t>(text.windows[i].end - text.windows[i].first_scored);
  }
  Totals totals;
  Progress progress("tokens", text.positions, before);
  for (size_t i = 0; i < text.windows.size(); ++i) {
    if (const JsonValue* finished = journal.find(i)) {
      TANDEM_CHECK(totals.add(*finished));
      continue;
    }
    const Window& window = text.windows[i];
    TANDEM_TRY(payload, reader.payload(i));
    TANDEM_TRY(reference, decode_positions(payload, vocab, window.end - window.first_scored));
    std::vector<Row> rows(reference.size());
    TANDEM_CHECK(
        runner.run(text, window, [&](size_t at, std::span<const float> logits, int32_t target) {
          rows[at] = {compare_position(reference[at], logits),
                      numerics::log_sum_exp(logits) - logits[static_cast<size_t>(target)]};
        }));
    const JsonValue result = window_result(reference, rows);
    TANDEM_CHECK(totals.add(result));
    TANDEM_CHECK(journal.append(i, result));
    char note[64];
    std::snprintf(note, sizeof(note), "mean KL %.3e nats", totals.mean_kl());
    progress.advance(static_cast<int64_t>(rows.size()), note);
  }
  return summary(std::move(run), std::move(totals));
}

}  // namespace tandem::eval
