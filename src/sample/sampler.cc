#include "sample/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

// Cost: two or three passes over the logits. Nothing is sorted except what lies at the edge of a
// filter: the distance below the maximum is cut into buckets, whole buckets are kept or dropped,
// and only the bucket that the edge runs through is put in order. Everything is in plain float and
// double operations in a fixed order, so the result does not depend on the machine's math library.

namespace tandem::sample {

Philox philox4x32_10(const uint32_t (&counter)[4], const uint32_t (&key)[2]) {
  uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]};
  uint32_t k[2] = {key[0], key[1]};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * c[2];
    const uint32_t next[4] = {
        static_cast<uint32_t>(b >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(b),
        static_cast<uint32_t>(a >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(a)};
    std::copy(std::begin(next), std::end(next), std::begin(c));
    k[0] += 0x9E3779B9;
    k[1] += 0xBB67AE85;
  }
  return {{c[0], c[1], c[2], c[3]}};
}

double uniform(uint64_t seed, uint32_t choice, int64_t position, uint32_t stream) {
  const auto at = static_cast<uint64_t>(position);
  const Philox random =
      philox4x32_10({static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32), choice, stream},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = static_cast<uint64_t>(random.word[0]) << 32 | random.word[1];
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

namespace {

struct Scan {
  float largest;
  int32_t token;
};

// The first of the largest logits; an error when something is not a number a softmax can take.
Result<Scan> scan(std::span<const float> logits) {
  float largest = -std::numeric_limits<float>::infinity();
  int32_t token = -1;
  bool bad = false;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float logit = logits[i];
    bad |= !(logit <= std::numeric_limits<float>::max());  // NaN and +infinity
    if (logit > largest) {
      largest = logit;
      token = static_cast<int32_t>(i);
    }
  }
  if (bad || token < 0) {
    return make_error(500, "bad_logits", "the model produced logits that are not finite numbers");
  }
  return Scan{largest, token};
}

// exp(x) for x <= 0, relative error below 3e-7 (below -87: zero). Cody-Waite reduction by ln 2,
// then the Taylor polynomial of degree 6 on |r| <= ln(2)/2 (its remainder is 2e-7 there at most).
// Vectorizes.
inline float exponential(float x) {
  const float clamped = x < -87.0F ? -87.0F : x;
  const float shifted = clamped * 1.44269504F - 0.5F;
  const auto n = static_cast<int32_t>(shifted);  // truncation of a negative number: rounds half up
  const auto whole = static_cast<float>(n);
  const float r = (clamped - whole * 0.693359375F) + whole * 2.12194440e-4F;
  float p = 1.0F / 720;
  p = p * r + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  const float value = p * std::bit_cast<float>((n + 127) << 23);
  return x < -87.0F ? 0.0F : value;
}

// The weights of a softmax at one temperature, relative to the largest.
struct Weights {
  float largest;
  float scale;
  float below(float logit) const { return (largest - logit) * scale; }  // >= 0, in nats
  double of(float logit) const { return static_cast<double>(exponential(-below(logit))); }

  // In a fixed order: eight partial sums, combined in order.
  double sum(std::span<const float> logits) const {
    double partial[8] = {};
    size_t i = 0;
    for (; i + 8 <= logits.size(); i += 8) {
      for (size_t lane = 0; lane < 8; ++lane) partial[lane] += of(logits[i + lane]);
    }
    for (size_t lane = 0; i < logits.size(); ++i, ++lane) partial[lane] += of(logits[i]);
    double total = 0;
    for (const double part : partial) total += part;
    return total;
  }
};

struct Candidate {
  float logit;
  int32_t token;
};

// Most likely first, equal ones by id: a total order, so any way of sorting gives the same list.
bool before(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// Sixteen buckets per nat below the maximum; the last one takes all that is unlikely.
constexpr size_t kBuckets = 512;
size_t bucket_of(float below) {
  return below < 31.9375F ? static_cast<size_t>(below * 16) : kBuckets - 1;
}

// Candidates of the buckets before `edge` in `inside`, those of `edge` in `border`, both in order
// of id.
void split_at(std::span<const float> logits, const Weights& weights, size_t edge,
              std::vector<Candidate>& inside, std::vector<Candidate>& border) {
  for (size_t i = 0; i < logits.size(); ++i) {
    const float logit = logits[i];
    if (!(logit > -std::numeric_limits<float>::infinity())) continue;
    const size_t bucket = bucket_of(weights.below(logit));
    if (bucket > edge) continue;
    (bucket < edge ? inside : border).push_back({logit, static_cast<int32_t>(i)});
  }
}

// Drops the least likely of `kept` while the others still hold `top_p` of its mass.
void keep_nucleus(std::vector<Candidate>& kept, const Weights& weights, double top_p) {
  std::sort(kept.begin(), kept.end(), before);
  double total = 0;
  for (const Candidate& candidate : kept) total += weights.of(candidate.logit);
  double sum = 0;
  for (size_t i = 0; i < kept.size(); ++i) {
    sum += weights.of(kept[i].logit);
    if (sum >= top_p * total) {
      kept.resize(i + 1);
      return;
    }
  }
}

std::vector<Candidate> top_k(std::span<const float> logits, const Weights& weights, size_t k) {
  std::array<uint32_t, kBuckets> counts{};
  for (const float logit : logits) ++counts[bucket_of(weights.below(logit))];
  size_t edge = 0;
  for (size_t seen = counts[0]; seen < k && edge + 1 < kBuckets;) seen += counts[++edge];
  std::vector<Candidate> kept;
  std::vector<Candidate> border;
  split_at(logits, weights, edge, kept, border);
  const size_t wanted = std::min(k - std::min(k, kept.size()), border.size());
  if (wanted < border.size() && wanted > 0) {
    std::nth_element(border.begin(), border.begin() + static_cast<ptrdiff_t>(wanted - 1),
                     border.end(), before);
  }
  kept.insert(kept.end(), border.begin(), border.begin() + static_cast<ptrdiff_t>(wanted));
  return kept;
}

std::vector<Candidate> nucleus(std::span<const float> logits, const Weights& weights,
                               double top_p) {
  std::array<double, kBuckets> masses{};
  for (const float logit : logits) {
    const float below = weights.below(logit);
    masses[bucket_of(below)] += static_cast<double>(exponential(-below));
  }
  double total = 0;
  for (const double mass : masses) total += mass;
  const double wanted = top_p * total;
  size_t edge = 0;
  double sum = 0;
  while (edge + 1 < kBuckets && sum + masses[edge] < wanted) sum += masses[edge++];
  std::vector<Candidate> kept;
  std::vector<Candidate> border;
  split_at(logits, weights, edge, kept, border);
  std::sort(border.begin(), border.end(), before);
  for (const Candidate& candidate : border) {
    if (!kept.empty() && sum >= wanted) break;
    kept.push_back(candidate);
    sum += weights.of(candidate.logit);
  }
  return kept;
}

// Inverse transform over candidates in order of id, which no way of selecting them changes.
int32_t draw(std::vector<Candidate>& kept, const Weights& weights, double random) {
  std::sort(kept.begin(), kept.end(),
            [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
  double sum = 0;
  for (const Candidate& candidate : kept) sum += weights.of(candidate.logit);
  double left = random * sum;
  int32_t last = kept.front().token;
  for (const Candidate& candidate : kept) {
    const double weight = weights.of(candidate.logit);
    if (weight <= 0) continue;
    last = candidate.token;
    left -= weight;
    if (left < 0) break;
  }
  return last;
}

// Without filters: the same walk over all of them.
int32_t draw_any(std::span<const float> logits, const Weights& weights, double random) {
  double left = random * weights.sum(logits);
  int32_t last = -1;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double weight = weights.of(logits[i]);
    if (weight <= 0) continue;
    last = static_cast<int32_t>(i);
    left -= weight;
    if (left < 0) break;
  }
  return last;
}

int32_t draw_filtered(std::span<const float> logits, const Filters& filters, const Weights& weights,
                      double random) {
  const auto top_p = static_cast<double>(filters.top_p);
  std::vector<Candidate> kept;
  if (filters.top_k > 0 && static_cast<size_t>(filters.top_k) < logits.size()) {
    kept = top_k(logits, weights, static_cast<size_t>(filters.top_k));
    if (filters.top_p < 1.0F) keep_nucleus(kept, weights, top_p);
  } else {
    kept = nucleus(logits, weights, top_p);
  }
  return draw(kept, weights, random);
}

}  // namespace

Result<Sampled> sample(std::span<const float> logits, const Filters& filters, uint64_t seed,
                       uint32_t choice, int64_t position) {
  TANDEM_TRY(top, scan(logits));
  Sampled sampled;
  // Below this a softmax in float32 is a step function.
  constexpr float kGreedyTemperature = 1e-5F;
  if (!(filters.temperature > kGreedyTemperature) || filters.top_k == 1) {
    sampled.token = top.token;
  } else {
    const double random = uniform(seed, choice, position);
    const Weights weights{top.largest, 1.0F / filters.temperature};
    const bool filtered = filters.top_p < 1.0F ||
                          (filters.top_k > 0 && static_cast<size_t>(filters.top_k) < logits.size());
    sampled.token = filtered ? draw_filtered(logits, filters, weights, random)
                             : draw_any(logits, weights, random);
  }
  const double log_sum = std::log(Weights{top.largest, 1.0F}.sum(logits));
  sampled.logprob = static_cast<float>(
      static_cast<double>(logits[static_cast<size_t>(sampled.token)] - top.largest) - log_sum);
  return sampled;
}

}  // namespace tandem::sample
