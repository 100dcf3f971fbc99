// Perplexity of a model over a text.
#pragma once

#include <string>

#include "base/json_value.h"
#include "base/result.h"
#include "eval/loaded_model.h"
#include "eval/windows.h"

namespace tandem::eval {

struct PerplexityOptions {
  TextOptions text;
  std::string journal;  // empty: none
};

// The summary: perplexity, mean negative log-likelihood in nats, positions, and what they are of.
Result<JsonValue> run_perplexity(LoadedModel& loaded, const PerplexityOptions& options);

}  // namespace tandem::eval
