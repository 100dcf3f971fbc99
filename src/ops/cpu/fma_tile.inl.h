// The float32 micro-kernel that linear and attention share: out[m][0..15] += sum over k of x[m][k]
// * w[k][0..15].
//
// One fused multiply-add per weight vector and row, in order of k, one accumulator per output,
// whatever the number of rows: that is what makes GEMV equal GEMM bit for bit. The weights come
// through a loader, so pages and F16 or BF16 weights widen on the fly. Per k: one load (and a
// widening), kRows broadcasts folded into the multiply-adds.
//
// Included after simd_avx2.h or simd_avx512.h, which define Vec; internal linkage like those.
#pragma once

namespace tandem::ops::cpu {
namespace {

struct LoadF32 {
  const float* data;
  size_t stride;  // elements from one k to the next
  Vec operator()(size_t k) const { return load(data + k * stride); }
};
struct LoadF16 {
  const uint16_t* data;
  size_t stride;
  Vec operator()(size_t k) const { return load_f16(data + k * stride); }
};
struct LoadBF16 {
  const uint16_t* data;
  size_t stride;
  Vec operator()(size_t k) const { return load_bf16(data + k * stride); }
};

// e4m3 codes as value / 256 (load_e4m3); the factor is folded into what is computed with them.
struct LoadE4m3 {
  const uint8_t* data;
  size_t stride;
  Vec operator()(size_t k) const { return load_e4m3(data + k * stride); }
};
struct LoadI8 {
  const int8_t* data;
  size_t stride;
  Vec operator()(size_t k) const { return to_float(widen_i8(data + k * stride)); }
};

template <int kRows, typename Loader>
inline void fma_tile(Loader weights, int32_t depth, const float* x, size_t stride_x, float* out,
                     size_t stride_out) {
  Vec acc[kRows];
#pragma clang loop unroll(full)
  for (int m = 0; m < kRows; ++m) acc[m] = load(out + m * stride_out);
  for (int32_t k = 0; k < depth; ++k) {
    const Vec w = weights(static_cast<size_t>(k));
#pragma clang loop unroll(full)
    for (int m = 0; m < kRows; ++m) acc[m] = fma(w, splat(x[m * stride_x + k]), acc[m]);
  }
#pragma clang loop unroll(full)
  for (int m = 0; m < kRows; ++m) store(out + m * stride_out, acc[m]);
}

// `rows` rows, adding to what `out` holds.
template <typename Loader>
void fma_rows(Loader weights, int32_t depth, const float* x, size_t stride_x, int32_t rows,
              float* out, size_t stride_out) {
  for (; rows >= kMaxTileRows; rows -= kMaxTileRows) {
    fma_tile<kMaxTileRows>(weights, depth, x, stride_x, out, stride_out);
    x += kMaxTileRows * stride_x;
    out += kMaxTileRows * stride_out;
  }
  if (rows >= 4) {
    fma_tile<4>(weights, depth, x, stride_x, out, stride_out);
    x += 4 * stride_x;
    out += 4 * stride_out;
    rows -= 4;
  }
  switch (rows) {
    case 3:
      fma_tile<3>(weights, depth, x, stride_x, out, stride_out);
      break;
    case 2:
      fma_tile<2>(weights, depth, x, stride_x, out, stride_out);
      break;
    case 1:
      fma_tile<1>(weights, depth, x, stride_x, out, stride_out);
      break;
    default:
      break;
  }
}

}  // namespace
}  // namespace tandem::ops::cpu
