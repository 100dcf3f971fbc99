// The int8 dot product of AVX2, eight rows of weights at a time.
//
// vpmaddubsw multiplies unsigned codes with signed activations and adds pairs in int16: 2 * code *
// 127 each. As many as fit below 32,767 are added before one vpmaddwd widens them: eight for codes
// up to 15 (30,480), four up to 31 (31,496), two up to 63 (32,004). Larger codes (Q8_0, IQ4) are
// taken signed, with their sign moved to the activation: 128 * 127 * 2 = 32,512 fits one. The
// integer sums equal the AVX-512 ones, and so does the float32 arithmetic that follows.
// clang-format off: the vector types come first
#include "ops/cpu/bytes_avx2.h"
#include "ops/cpu/tile.inl.h"
#include "ops/cpu/kernels.h"
// clang-format on

namespace tandem::ops::cpu {
namespace {

constexpr int kMaxI8Rows = 2;  // from kPanelFrom on through panels
constexpr int kDotRows = 1;
constexpr bool kInlineTiles = false;
template <Format kFormat>
constexpr int kTileUnroll = 1;  // two halves of a tile are enough to do at once
// Zen 3: asking early gave 35 instead of 27 GB/s on two threads. Zen 4: faster at 4 KiB than at 1
// for most formats; with nothing asked for, 4-bit codes are faster still and all others slower.
constexpr size_t kStreamAhead = 4096;
inline bool asks_early() { return true; }
template <Format kFormat>
constexpr bool kSignedCodes = largest_code<kFormat>() * 254 > 32767;

inline __m256i dot_signed(const Bytes* code, const int32_t* four, int count) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i sum = _mm256_setzero_si256();
#pragma clang loop unroll(full)
  for (int j = 0; j < count; ++j) {
    const __m256i signed_x = _mm256_sign_epi8(_mm256_set1_epi32(four[j]), code[j]);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(code[j]), signed_x);
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
  }
  return sum;
}

// How many products of kCount are added in int16.
template <int kLargest, int kCount>
constexpr int run_length() {
  constexpr int kFits = 32767 / (254 * kLargest);
  return kFits < kCount ? (kFits >= 4 ? 4 : kFits >= 2 ? 2 : 1) : kCount;
}

template <int kLargest, int kCount>
inline __m256i dot_unsigned(const Bytes* code, const int32_t* four, __m256i sum) {
  constexpr int kRun = run_length<kLargest, kCount>();
  const __m256i ones = _mm256_set1_epi16(1);
#pragma clang loop unroll(full)
  for (int first = 0; first < kCount; first += kRun) {
    __m256i pairs = _mm256_maddubs_epi16(code[first], _mm256_set1_epi32(four[first]));
#pragma clang loop unroll(full)
    for (int j = first + 1; j < first + kRun; ++j) {
      pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(code[j], _mm256_set1_epi32(four[j])));
    }
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
  }
  return sum;
}

// -zero * sum(q) in every lane.
template <int kZero, int kSubs>
inline __m256i zero_share(const ActivationBlock& x, int sub) {
  constexpr int kStored = kSubs == 1 ? 8 : 1;  // what the block's sums are multiplied with already
  constexpr int kShift = __builtin_ctz(kZero / kStored);
  static_assert(kZero == kStored << kShift);
  const int32_t sum = kSubs == 1 ? x.minus_8_sum : x.minus_half[sub];
  return _mm256_slli_epi32(_mm256_set1_epi32(sum), kShift);
}

// Sum over the tile's (or sub-tile's) columns of code * q as float32.
template <Format kFormat, int kSubs>
inline Floats dot(const Bytes* code, const ActivationBlock& x, int sub) {
  constexpr int kCount = 8 / kSubs;
  const auto* four = reinterpret_cast<const int32_t*>(x.q) + sub * kCount;
  if constexpr (kSignedCodes<kFormat>) {
    return _mm256_cvtepi32_ps(dot_signed(code, four, kCount));
  } else {
    constexpr int kZero = unsigned_zero<kFormat>();
    __m256i sum = _mm256_setzero_si256();
    if constexpr (kZero != 0) sum = zero_share<kZero, kSubs>(x, sub);
    return _mm256_cvtepi32_ps(dot_unsigned<largest_code<kFormat>(), kCount>(code, four, sum));
  }
}

template <Format kFormat, int kSubs>
inline void dots(const Bytes* code, const ActivationBlock* x, size_t, int sub, Floats (&out)[1]) {
  out[0] = dot<kFormat, kSubs>(code, *x, sub);
}

}  // namespace
}  // namespace tandem::ops::cpu

// clang-format off: written in terms of the above
#include "ops/cpu/panel_avx2.h"
#include "ops/cpu/linear_i8.inl.h"
#include "ops/cpu/avx2.h"
// clang-format on

namespace tandem::ops::cpu {

void linear_i8_avx2(const LinearI8& params) { linear_i8(params); }

}  // namespace tandem::ops::cpu
