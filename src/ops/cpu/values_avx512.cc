// The simd header must come first: the shared bodies are written in its types.
// clang-format off
#include "ops/cpu/simd_avx512.h"
#include "ops/cpu/values.inl.h"
// clang-format on
#include "ops/cpu/avx512.h"

namespace tandem::ops::cpu {

void load_values_avx512(const StoredValues& from, const std::byte* values, float* out) {
  load_values(from, values, out);
}
void store_values_avx512(const StoredValues& to, const float* x, std::byte* out) {
  store_values(to, x, out);
}
void raise_peaks_avx512(const float* x, int32_t count, float* in_out) {
  raise_peaks(x, count, in_out);
}

}  // namespace tandem::ops::cpu
