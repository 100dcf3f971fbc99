// How far a model's distributions are from those of a reference run over the same text.
#pragma once

#include <span>
#include <string>

#include "base/json_value.h"
#include "base/result.h"
#include "eval/loaded_model.h"
#include "eval/reference_file.h"
#include "eval/windows.h"

namespace tandem::eval {

struct PositionDifference {
  double kl = 0;               // KL(reference || model), nats
  bool same_top = false;       // the same likeliest token
  double max_probability = 0;  // largest |difference of probability| over the stored tokens
};
// Tokens that the reference does not store are taken together: the divergence is then a lower bound
// (exact when all are stored).
PositionDifference compare_position(const ReferencePosition& reference,
                                    std::span<const float> logits);

struct SaveReferenceOptions {
  TextOptions text;
  std::string file;
  int32_t top = 1024;  // 0: all
};
Result<JsonValue> save_reference(LoadedModel& loaded, const SaveReferenceOptions& options);

struct DivergenceOptions {
  std::string text;  // the file; window, stride and length are the reference's
  int32_t threads = 1;
  std::string file;
  std::string journal = {};
};
Result<JsonValue> run_divergence(LoadedModel& loaded, const DivergenceOptions& options);

}  // namespace tandem::eval
