// Columns of keys and values out of pages as the rows of B that AMX multiplies: sixteen columns of
// 64 bytes, two BF16 numbers (neighbouring dims of a key, or two tokens' values) side by side.
//
// Both come from two runs of sixteen elements: the tokens of dims d and d + 1, or sixteen dims of
// tokens t and t + 1. BF16: one permutation of bytes for each 64 bytes. Codes of one byte go
// through a table of their 128 magnitudes, a permutation for either byte of the number (three
// operations each, and NaN needs no care): about 7 operations for 32 of them, and exact. Included
// after the simd header.
#pragma once

#include "ops/cpu/attention_span.inl.h"

namespace tandem::ops::cpu {
namespace {

// BF16 bits of the magnitudes 0 .. 127 of a dtype's codes, low bytes and high bytes.
struct CodeTable {
  alignas(64) uint8_t low[128];
  alignas(64) uint8_t high[128];
};

constexpr uint16_t bf16_of(uint32_t integer, int32_t exponent) {  // integer * 2^exponent, exact
  if (integer == 0) return 0;
  const int32_t top = 31 - __builtin_clz(integer);
  return static_cast<uint16_t>((127 + top + exponent) << 7 | ((integer << 7 >> top) & 0x7F));
}

template <typename Element>
constexpr CodeTable make_table() {
  CodeTable table{};
  for (uint32_t code = 0; code < 128; ++code) {
    uint16_t bits = bf16_of(code, 0);
    if constexpr (__is_same(Element, E4m3)) {  // divided by 256, as load_e4m3's
      const uint32_t exponent = code >> 3;
      const uint32_t mantissa = code & 7;
      bits = exponent > 0 ? bf16_of(8 + mantissa, static_cast<int32_t>(exponent) - 18)
                          : bf16_of(mantissa, -17);
      if (code == 0x7F) bits = 0x7FC0;
    }
    table.low[code] = static_cast<uint8_t>(bits);
    table.high[code] = static_cast<uint8_t>(bits >> 8);
  }
  return table;
}

template <typename Element>
constexpr CodeTable kCodeTable = make_table<Element>();

// Where the bytes of two interleaved runs of words come from: run x is words 0 .. 15, run y 16 ..
struct WordOrder {
  alignas(64) uint8_t from[64];
};
constexpr WordOrder kWordPairs = [] {
  WordOrder order{};
  for (int i = 0; i < 64; ++i)
    order.from[i] = static_cast<uint8_t>((i / 4 + i / 2 % 2 * 16) * 2 + i % 2);
  return order;
}();
// Of four runs of sixteen bytes (at these places in 64), interleaved two by two so that unpacking
// low halves of lanes gives the first row's words, high halves the second's.
constexpr WordOrder byte_order(int x0, int y0, int x1, int y1) {
  WordOrder order{};
  for (int i = 0; i < 64; ++i) {
    const int at = i / 16 * 4 + i % 8 / 2;
    const int run = i % 16 < 8 ? (i % 2 == 0 ? x0 : y0) : (i % 2 == 0 ? x1 : y1);
    order.from[i] = static_cast<uint8_t>(run + at);
  }
  return order;
}
constexpr WordOrder kKeyBytes = byte_order(0, 16, 32, 48);    // four dims
constexpr WordOrder kValueBytes = byte_order(0, 32, 16, 48);  // two halves of two tokens

inline __m512i permute_bytes(const WordOrder& order, __m512i x) {
  return _mm512_permutexvar_epi8(_mm512_load_si512(order.from), x);
}

// The numbers of 64 codes: words of the low and of the high halves of lanes.
template <typename Element>
inline void widen_codes(__m512i codes, __m512i& low_halves, __m512i& high_halves) {
  const CodeTable& table = kCodeTable<Element>;
  __m512i magnitude = codes;  // a table's place is seven bits
  if constexpr (__is_same(Element, I8)) magnitude = _mm512_abs_epi8(codes);
  const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(table.low), magnitude,
                                               _mm512_load_si512(table.low + 64));
  const __m512i high = _mm512_permutex2var_epi8(_mm512_load_si512(table.high), magnitude,
                                                _mm512_load_si512(table.high + 64));
  // high | (codes & 0x80)
  const __m512i top = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8(-128), 0xF8);
  low_halves = _mm512_unpacklo_epi8(low, top);
  high_halves = _mm512_unpackhi_epi8(low, top);
}

inline __m512i two_halves(__m256i x, __m256i y) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(x), y, 1);
}
inline __m256i load_half(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
inline void store_row(uint16_t* row, __m512i x) { _mm512_store_si512(row, x); }

// A column of sixteen keys, `dims` rows `stride` elements apart, to a row of B for each two dims;
// zeros from there up to `rows`. Asks for as many bytes from `ahead` on.
template <size_t kStride>
inline void pair_keys(const uint16_t* keys, size_t stride, int32_t dims, int32_t rows,
                      const std::byte* ahead, uint16_t* panel) {
  if constexpr (kStride > 0) stride = kStride;
  const __m512i order = _mm512_load_si512(kWordPairs.from);
  int32_t row = 0;
#pragma clang loop unroll_count(4)
  for (; row < dims / 2; ++row, keys += 2 * stride, panel += 32, ahead += 64) {
    ask_for(ahead);
    const __m512i both = kStride == 16 ? _mm512_loadu_si512(keys)
                                       : two_halves(load_half(keys), load_half(keys + stride));
    store_row(panel, _mm512_permutexvar_epi8(order, both));
  }
  if (dims % 2 != 0) {
    const __m512i last = _mm512_zextsi256_si512(load_half(keys));
    store_row(panel, _mm512_permutexvar_epi8(order, last));
    ++row;
    panel += 32;
  }
  for (; row < rows; ++row, panel += 32) store_row(panel, _mm512_setzero_si512());
}

template <typename Element, size_t kStride>
inline void pair_codes(const uint8_t* keys, size_t stride, int32_t dims, int32_t rows,
                       const std::byte* ahead, uint16_t* panel) {
  if constexpr (kStride > 0) stride = kStride;
  int32_t d = 0;
  for (; d < dims; d += 4, keys += 4 * stride, panel += 64, ahead += 64) {
    ask_for(ahead);
    __m512i four;
    if (kStride == 16 && d + 4 <= dims) {
      four = _mm512_loadu_si512(keys);
    } else {
      alignas(64) uint8_t runs[64] = {};
      for (int32_t i = 0; i < 4 && d + i < dims; ++i)
        _mm_store_si128(reinterpret_cast<__m128i*>(runs + 16 * i),
                        _mm_loadu_si128(reinterpret_cast<const __m128i*>(keys + i * stride)));
      four = _mm512_load_si512(runs);
    }
    __m512i first;
    __m512i second;
    widen_codes<Element>(permute_bytes(kKeyBytes, four), first, second);
    store_row(panel, first);
    store_row(panel + 32, second);
  }
  for (int32_t row = d / 2; row < rows; ++row, panel += 32)
    store_row(panel, _mm512_setzero_si512());
}

// Dims [0, 32) of two tokens' values to one row of B for each sixteen.
template <typename Element>
inline void pair_values(const RawOf<Element>* x, const RawOf<Element>* y, uint16_t* first,
                        uint16_t* second) {
  if constexpr (__is_same(Element, BF16)) {
    store_row(first, permute_bytes(kWordPairs, two_halves(load_half(x), load_half(y))));
    store_row(second, permute_bytes(kWordPairs, two_halves(load_half(x + 16), load_half(y + 16))));
  } else {
    __m512i low;
    __m512i high;
    widen_codes<Element>(permute_bytes(kValueBytes, two_halves(load_half(x), load_half(y))), low,
                         high);
    store_row(first, low);
    store_row(second, high);
  }
}

}  // namespace
}  // namespace tandem::ops::cpu
