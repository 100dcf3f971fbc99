#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tandem::model {
namespace {

using Rule = RopeFacts::Rule;

Result<Rule> rule_named(const std::string& type, const std::string& key) {
  if (type == "default" || type == "none") return Rule::kPlain;
  if (type == "linear") return Rule::kLinear;
  if (type == "llama3") return Rule::kLlama3;
  if (type == "yarn") return Rule::kYarn;
  if (type == "longrope" || type == "su") return Rule::kLong;
  return unsupported_model(key + " \"" + type + "\" is not supported");
}

double yarn_amplitude(double factor, double multiplier) {
  return factor <= 1 ? 1.0 : 0.1 * multiplier * std::log(factor) + 1.0;
}

Status read_yarn(const ConfigReader& scaling, RopeFacts& facts) {
  TANDEM_TRY(fast, scaling.positive_real("beta_fast", facts.beta_fast));
  TANDEM_TRY(slow, scaling.positive_real("beta_slow", facts.beta_slow));
  TANDEM_TRY(truncate, scaling.boolean("truncate", true));
  facts.beta_fast = fast;
  facts.beta_slow = slow;
  facts.truncate = truncate;
  if (scaling.has("mscale") && scaling.has("mscale_all_dim")) {
    TANDEM_TRY(one, scaling.positive_real("mscale"));
    TANDEM_TRY(all, scaling.positive_real("mscale_all_dim"));
    if (facts.amplitude == 0)
      facts.amplitude = yarn_amplitude(facts.factor, one) / yarn_amplitude(facts.factor, all);
  }
  return {};
}

Status read_long(const ConfigReader& scaling, int32_t max_context, int32_t served_context,
                 RopeFacts& facts) {
  TANDEM_TRY(shorter, scaling.positive_reals("short_factor"));
  TANDEM_TRY(longer, scaling.positive_reals("long_factor"));
  if (facts.original_context <= 1)
    return invalid_model(scaling.name("original_max_position_embeddings") + " is missing");
  if (!scaling.has("factor")) facts.factor = max_context / facts.original_context;
  facts.long_divisors = served_context > facts.original_context;
  facts.divisors = facts.long_divisors ? longer : shorter;
  return {};
}

// How much of the unscaled frequency a pair keeps.
double yarn_share(const RopeFacts& facts, int32_t pair) {
  const auto border = [&](double rotations) {
    return facts.dims * std::log(facts.original_context / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(facts.theta));
  };
  double low = border(facts.beta_fast);
  double high = border(facts.beta_slow);
  if (facts.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(facts.dims - 1));
  if (low == high) high += 0.001;
  return 1 - std::clamp((pair - low) / (high - low), 0.0, 1.0);
}

float stretch(const RopeFacts& facts, int32_t pair, float frequency) {
  const auto factor = static_cast<float>(facts.factor);
  switch (facts.rule) {
    case Rule::kPlain:
    case Rule::kLong:
      return frequency;
    case Rule::kLinear:
      return frequency / factor;
    case Rule::kLlama3: {
      const double wavelength = 2 * std::numbers::pi / frequency;
      if (wavelength > facts.original_context / facts.low_frequency_factor)
        return frequency / factor;
      if (wavelength < facts.original_context / facts.high_frequency_factor) return frequency;
      const double share = (facts.original_context / wavelength - facts.low_frequency_factor) /
                           (facts.high_frequency_factor - facts.low_frequency_factor);
      return static_cast<float>((1 - share) * frequency / facts.factor + share * frequency);
    }
    case Rule::kYarn: {
      const double share = yarn_share(facts, pair);
      return static_cast<float>(frequency / facts.factor * (1 - share) + frequency * share);
    }
  }
  return frequency;
}

double amplitude_of(const RopeFacts& facts) {
  if (facts.amplitude > 0) return facts.amplitude;
  if (facts.rule == Rule::kYarn) return yarn_amplitude(facts.factor, 1);
  if (facts.rule == Rule::kLong && facts.factor > 1)
    return std::sqrt(1 + std::log(facts.factor) / std::log(facts.original_context));
  return 1;
}

}  // namespace

Status read_rope_scaling(const ConfigReader& scaling, int32_t max_context, int32_t served_context,
                         RopeFacts& facts) {
  scaling.ignore("type");
  TANDEM_TRY(old_name, scaling.string("type", "default"));
  TANDEM_TRY(type, scaling.string("rope_type", old_name));
  TANDEM_TRY(rule, rule_named(type, scaling.name("rope_type")));
  facts.rule = rule;
  TANDEM_TRY(theta, scaling.positive_real("rope_theta", facts.theta));
  facts.theta = theta;
  if (rule != Rule::kPlain) {
    TANDEM_TRY(original, scaling.positive_real("original_max_position_embeddings",
                                               facts.original_context > 0
                                                   ? facts.original_context
                                                   : static_cast<double>(max_context)));
    TANDEM_TRY(factor, scaling.positive_real("factor", rule == Rule::kLong
                                                           ? std::optional<double>(facts.factor)
                                                           : std::nullopt));
    facts.original_context = original;
    facts.factor = factor;
    if (scaling.has("attention_factor")) {
      TANDEM_TRY(amplitude, scaling.positive_real("attention_factor"));
      facts.amplitude = amplitude;
    }
  }
  if (rule == Rule::kLlama3) {
    TANDEM_TRY(low, scaling.positive_real("low_freq_factor"));
    TANDEM_TRY(high, scaling.positive_real("high_freq_factor"));
    if (!(high > low)) return invalid_model(scaling.name("high_freq_factor") + " is too small");
    facts.low_frequency_factor = low;
    facts.high_frequency_factor = high;
  }
  if (rule == Rule::kYarn) TANDEM_CHECK(read_yarn(scaling, facts));
  if (rule == Rule::kLong) TANDEM_CHECK(read_long(scaling, max_context, served_context, facts));
  return scaling.finish();
}

Result<ops::Rope> make_rope(const RopeFacts& facts, ops::RopePairing pairing) {
  const int32_t pairs = facts.dims / 2;
  if (!facts.divisors.empty() && facts.divisors.size() != static_cast<size_t>(pairs)) {
    return invalid_model("the model has " + std::to_string(facts.divisors.size()) +
                         " rotary divisors for " + std::to_string(pairs) + " pairs");
  }
  ops::Rope rope;
  rope.pairing = pairing;
  rope.amplitude = static_cast<float>(amplitude_of(facts));
  for (int32_t i = 0; i < pairs; ++i) {
    // In float32 like the reference.
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(facts.dims);
    const auto power = static_cast<float>(std::pow(
        static_cast<double>(static_cast<float>(facts.theta)), static_cast<double>(exponent)));
    float frequency = 1.0F / power;
    if (!facts.divisors.empty()) frequency /= static_cast<float>(facts.divisors[i]);
    frequency = stretch(facts, i, frequency);
    if (!std::isfinite(frequency))
      return invalid_model("the rotary divisors hold a zero or a non-finite number");
    rope.frequencies.push_back(frequency);
  }
  return rope;
}

}  // namespace tandem::model
