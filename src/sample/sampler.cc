#include "sample/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "sample/softmax.h"

// Cost: two or three passes over the logits. The distance below the maximum (or from the entropy)
// is cut into buckets, whole buckets are kept or dropped, and only the bucket that the edge runs
// through is looked at more closely. Everything is in plain float and double operations in a fixed
// order, so the result does not depend on the machine's math library. Kept tokens stay in order of
// id throughout.

namespace tandem::sample {
namespace {

// Sixteen buckets per nat; the last one takes all that is far away.
constexpr size_t kBuckets = 512;
size_t bucket_of(float distance) {
  return distance < 31.9375F ? static_cast<size_t>(distance * 16) : kBuckets - 1;
}

bool is_allowed(float logit) { return logit > -std::numeric_limits<float>::infinity(); }

// The two things that are filtered: a row of logits, or what an earlier filter left of it.
struct Row {
  std::span<const float> logits;
  size_t size() const { return logits.size(); }
  Candidate operator[](size_t i) const { return {logits[i], static_cast<int32_t>(i)}; }
};
struct List {
  std::span<const Candidate> candidates;
  size_t size() const { return candidates.size(); }
  Candidate operator[](size_t i) const { return candidates[i]; }
};

bool by_token(const Candidate& a, const Candidate& b) { return a.token < b.token; }

// Joins what lies inside the edge with the chosen of the border.
void join(Scratch& scratch) {
  std::sort(scratch.border.begin(), scratch.border.end(), by_token);
  scratch.kept.resize(scratch.other.size() + scratch.border.size());
  std::ranges::merge(scratch.other, scratch.border, scratch.kept.begin(), by_token);
}

template <typename Source, typename Key>
void split_at(const Source& source, const Key& key, size_t edge, Scratch& scratch) {
  scratch.other.clear();
  scratch.border.clear();
  for (size_t i = 0; i < source.size(); ++i) {
    const Candidate candidate = source[i];
    if (!is_allowed(candidate.logit)) continue;
    const size_t bucket = bucket_of(key(candidate.logit));
    if (bucket > edge) continue;
    (bucket < edge ? scratch.other : scratch.border).push_back(candidate);
  }
}

template <typename Source>
void keep_top_k(const Source& source, const Weights& weights, size_t k, Scratch& scratch) {
  const auto key = [&](float logit) { return weights.below(logit); };
  std::array<uint32_t, kBuckets> counts{};
  for (size_t i = 0; i < source.size(); ++i) ++counts[bucket_of(key(source[i].logit))];
  size_t edge = 0;
  for (size_t seen = counts[0]; seen < k && edge + 1 < kBuckets;) seen += counts[++edge];
  split_at(source, key, edge, scratch);
  const size_t wanted = std::min(k - std::min(k, scratch.other.size()), scratch.border.size());
  if (wanted < scratch.border.size() && wanted > 0) {
    // Most likely first, equal ones by id: a total order, so any way of selecting gives one set.
    std::nth_element(scratch.border.begin(),
                     scratch.border.begin() + static_cast<std::ptrdiff_t>(wanted - 1),
                     scratch.border.end(), [](const Candidate& a, const Candidate& b) {
                       return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
                     });
  }
  scratch.border.resize(wanted);
  join(scratch);
}

// How many of `border`, nearest first, are needed on top of `sum` to reach `wanted`: they are moved
// to the front. A flat distribution has everything in one bucket, so halves are taken or left
// before anything is sorted.
template <typename Before>
size_t take_nearest(std::vector<Candidate>& border, const Weights& weights, double sum,
                    double wanted, const Before& before) {
  size_t low = 0;
  size_t high = border.size();
  const auto at = [&](size_t i) { return border.begin() + static_cast<std::ptrdiff_t>(i); };
  while (high - low > 256) {
    const size_t middle = low + (high - low) / 2;
    std::nth_element(at(low), at(middle), at(high), before);
    double half = 0;
    for (size_t i = low; i < middle; ++i) half += weights.of(border[i].logit);
    if (sum + half >= wanted) {
      high = middle;
    } else {
      sum += half;
      low = middle;
    }
  }
  std::sort(at(low), at(high), before);
  while (low < high && sum < wanted) sum += weights.of(border[low++].logit);
  return low;
}

// The tokens with the smallest keys (>= 0) that together hold `share` of the mass, and with
// `ties` also those whose key equals the last one's.
template <typename Source, typename Key>
void keep_mass(const Source& source, const Weights& weights, const Key& key, double share,
               bool ties, Scratch& scratch) {
  std::array<double, kBuckets> masses{};
  for (size_t i = 0; i < source.size(); ++i) {
    const float logit = source[i].logit;
    masses[bucket_of(key(logit))] += weights.of(logit);
  }
  double total = 0;
  for (const double mass : masses) total += mass;
  const double wanted = share * total;
  size_t edge = 0;
  double sum = 0;
  while (edge + 1 < kBuckets && sum + masses[edge] < wanted) sum += masses[edge++];
  split_at(source, key, edge, scratch);
  std::vector<Candidate>& border = scratch.border;
  size_t taken =
      take_nearest(border, weights, sum, wanted, [&](const Candidate& a, const Candidate& b) {
        const float x = key(a.logit);
        const float y = key(b.logit);
        return x != y ? x < y : a.token < b.token;
      });
  if (taken == 0 && scratch.other.empty() && !border.empty()) taken = 1;  // sorted: the nearest
  if (ties && taken > 0) {
    float last = 0;
    for (size_t i = 0; i < taken; ++i) last = std::max(last, key(border[i].logit));
    const auto tied =
        std::partition(border.begin() + static_cast<std::ptrdiff_t>(taken), border.end(),
                       [&](const Candidate& candidate) { return key(candidate.logit) <= last; });
    taken = static_cast<size_t>(tied - border.begin());
  }
  border.resize(taken);
  join(scratch);
}

template <typename Source>
void keep_top_p(const Source& source, const Weights& weights, float top_p, Scratch& scratch) {
  keep_mass(
      source, weights, [&](float logit) { return weights.below(logit); },
      static_cast<double>(top_p), false, scratch);
}

template <typename Source>
void keep_min_p(const Source& source, const Weights& weights, float min_p, Scratch& scratch) {
  const float least = std::min(min_p, 1.0F);
  // Well below the edge nothing needs its weight computed.
  const float far = 0.01F - std::log(least);
  scratch.other.clear();
  for (size_t i = 0; i < source.size(); ++i) {
    const Candidate candidate = source[i];
    const float below = weights.below(candidate.logit);
    if (below <= far && exponential(-below) >= least) scratch.other.push_back(candidate);
  }
  scratch.kept.swap(scratch.other);
}

// A token's information content is `below` plus a constant, and the entropy the mean of that: the
// constant cancels in their distance.
template <typename Source>
void keep_typical(const Source& source, const Weights& weights, float typical_p, Scratch& scratch) {
  double total = 0;
  double weighted = 0;
  for (size_t i = 0; i < source.size(); ++i) {
    const float below = weights.below(source[i].logit);
    const auto weight = static_cast<double>(exponential(-below));
    if (weight <= 0) continue;
    total += weight;
    weighted += weight * static_cast<double>(below);
  }
  const auto mean = static_cast<float>(weighted / total);
  keep_mass(
      source, weights, [&](float logit) { return std::fabs(weights.below(logit) - mean); },
      static_cast<double>(typical_p), true, scratch);
}

// Runs the filters in order, the first of them over the whole row. False: none is on.
bool filter(std::span<const float> logits, const Filters& filters, const Weights& weights,
            Scratch& scratch) {
  bool narrowed = false;
  const auto apply = [&](auto&& keep) {
    if (narrowed) {
      keep(List{scratch.kept});
    } else {
      keep(Row{logits});
    }
    narrowed = true;
  };
  if (filters.top_k > 0 && static_cast<size_t>(filters.top_k) < logits.size()) {
    apply([&](const auto& source) {
      keep_top_k(source, weights, static_cast<size_t>(filters.top_k), scratch);
    });
  }
  if (filters.top_p < 1.0F)
    apply([&](const auto& source) { keep_top_p(source, weights, filters.top_p, scratch); });
  if (filters.min_p > 0.0F)
    apply([&](const auto& source) { keep_min_p(source, weights, filters.min_p, scratch); });
  if (filters.typical_p < 1.0F)
    apply([&](const auto& source) { keep_typical(source, weights, filters.typical_p, scratch); });
  return narrowed;
}

// Inverse transform over candidates in order of id, which no way of selecting them changes.
template <typename Source>
int32_t draw(const Source& source, const Weights& weights, double sum, double random) {
  double left = random * sum;
  int32_t last = -1;
  for (size_t i = 0; i < source.size(); ++i) {
    const double weight = weights.of(source[i].logit);
    if (weight <= 0) continue;
    last = source[i].token;
    left -= weight;
    if (left < 0) break;
  }
  return last;
}

double sum_of(const std::vector<Candidate>& kept, const Weights& weights) {
  double sum = 0;
  for (const Candidate& candidate : kept) sum += weights.of(candidate.logit);
  return sum;
}

// Typical sampling may drop every token that weighs anything in float32 arithmetic relative to the
// largest; then the likeliest that is left is drawn.
int32_t likeliest(const std::vector<Candidate>& kept) {
  return std::ranges::max_element(kept, {}, &Candidate::logit)->token;
}

// Below this a softmax in float32 is a step function.
bool is_greedy(const Filters& filters) {
  constexpr float kGreedyTemperature = 1e-5F;
  return !(filters.temperature > kGreedyTemperature) || filters.top_k == 1;
}

}  // namespace

Result<int32_t> sample(std::span<const float> logits, const Filters& filters, uint64_t seed,
                       uint32_t choice, int64_t position, Scratch& scratch) {
  TANDEM_TRY(top, scan(logits));
  if (is_greedy(filters)) return top.token;
  const double random = uniform(seed, choice, position);
  const Weights weights{top.largest, 1.0F / filters.temperature};
  if (!filter(logits, filters, weights, scratch))
    return draw(Row{logits}, weights, weights.sum(logits), random);
  const int32_t token = draw(List{scratch.kept}, weights, sum_of(scratch.kept, weights), random);
  return token >= 0 ? token : likeliest(scratch.kept);
}

Result<std::vector<protocol::Chance>> kept_tokens(std::span<const float> logits,
                                                  const Filters& filters) {
  TANDEM_TRY(top, scan(logits));
  if (is_greedy(filters)) return std::vector<protocol::Chance>{{top.token, 0.0F}};
  const Weights weights{top.largest, 1.0F / filters.temperature};
  Scratch scratch;
  if (!filter(logits, filters, weights, scratch)) {
    for (size_t i = 0; i < logits.size(); ++i) {
      if (is_allowed(logits[i])) scratch.kept.push_back({logits[i], static_cast<int32_t>(i)});
    }
  }
  const double log_sum = std::log(sum_of(scratch.kept, weights));
  std::vector<protocol::Chance> out;
  out.reserve(scratch.kept.size());
  for (const Candidate& candidate : scratch.kept) {
    out.push_back(
        {candidate.token,
         static_cast<float>(-static_cast<double>(weights.below(candidate.logit)) - log_sum)});
  }
  return out;
}

}  // namespace tandem::sample
