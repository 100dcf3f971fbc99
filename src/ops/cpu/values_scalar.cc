// The normative conversions between float32 and what pages store: PageTrait over runs of values.
#include <bit>
#include <cstring>

#include "ops/cpu/scalar.h"
#include "ops/page_trait.h"

namespace tandem::ops::cpu {
namespace {

// Calls `body` with the trait of `dtype`.
template <typename Body>
void with_trait(KvDtype dtype, const Body& body) {
  switch (dtype) {
    case KvDtype::kF32:
      return body(PageTrait<KvDtype::kF32>{});
    case KvDtype::kF16:
      return body(PageTrait<KvDtype::kF16>{});
    case KvDtype::kBF16:
      return body(PageTrait<KvDtype::kBF16>{});
    case KvDtype::kFp8Static:
      return body(PageTrait<KvDtype::kFp8Static>{});
    case KvDtype::kFp8Inline:
      return body(PageTrait<KvDtype::kFp8Inline>{});
    case KvDtype::kInt8Inline:
      return body(PageTrait<KvDtype::kInt8Inline>{});
  }
}

}  // namespace

void load_values_scalar(const StoredValues& from, const std::byte* values, float* out) {
  with_trait(from.dtype, [&]<typename Trait>(Trait) {
    for (int32_t i = 0; i < from.count; ++i) {
      typename Trait::Element value;
      std::memcpy(&value, values + i * sizeof(value), sizeof(value));
      out[i] = Trait::load(value, Trait::kScaled ? from.scales[i * from.scale_step] : 1.0F);
    }
  });
}

void store_values_scalar(const StoredValues& to, const float* x, std::byte* out) {
  with_trait(to.dtype, [&]<typename Trait>(Trait) {
    for (int32_t i = 0; i < to.count; ++i) {
      const auto value = Trait::store(x[i], Trait::kScaled ? to.scales[i * to.scale_step] : 1.0F);
      std::memcpy(out + i * sizeof(value), &value, sizeof(value));
    }
  });
}

void raise_peaks_scalar(const float* x, int32_t count, float* in_out) {
  // Magnitudes compare as integers, and there NaN is largest.
  for (int32_t i = 0; i < count; ++i) {
    const auto magnitude = std::bit_cast<int32_t>(x[i]) & 0x7FFFFFFF;
    if (magnitude > std::bit_cast<int32_t>(in_out[i])) in_out[i] = std::bit_cast<float>(magnitude);
  }
}

}  // namespace tandem::ops::cpu
