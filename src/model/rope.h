// The rules by which configurations stretch rotary positions, turned into one table of frequencies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/config_reader.h"
#include "ops/operators.h"

namespace tandem::model {

struct RopeFacts {
  enum class Rule : uint8_t {
    kPlain,
    kLinear,  // every frequency divided by `factor`
    kLlama3,  // long wavelengths divided by `factor`, short ones kept, a blend between
    kYarn,    // likewise, the blend by rotations over the original context; scaled amplitude
    kLong,    // one divisor per pair, another set beyond the original context; scaled amplitude
  };
  Rule rule = Rule::kPlain;
  double theta = 10000;
  int32_t dims = 0;  // rotated dimensions of a head, even
  double factor = 1;
  double original_context = 0;
  double low_frequency_factor = 1;   // kLlama3
  double high_frequency_factor = 4;  // kLlama3
  double beta_fast = 32;             // kYarn
  double beta_slow = 1;              // kYarn
  bool truncate = true;              // kYarn: whether the blend's borders are whole dimensions
  double amplitude = 0;              // 0: by the rule
  std::vector<double> divisors;      // of each pair, besides the rule; empty: none
  bool long_divisors = false;        // they are those for contexts beyond the original one
};

// Reads "rope_type"/"type" and what belongs to it from a Hugging Face `rope_scaling` or
// `rope_parameters` object into `facts`, whose theta, dims and original_context are defaults.
// `context` is what the model is served with; beyond the original context kLong takes its long
// divisors, for all positions alike, so that a position's rotation never depends on how long a
// sequence has become. Refuses keys that it does not know.
Status read_rope_scaling(const ConfigReader& scaling, int32_t max_context, int32_t served_context,
                         RopeFacts& facts);

// Error: divisors of another number than dims / 2, or a frequency that is not finite.
Result<ops::Rope> make_rope(const RopeFacts& facts, ops::RopePairing pairing);

}  // namespace tandem::model
