#include "ops/cpu/dispatch.h"

#include <string>

#include "base/environment.h"
#include "ops/cpu/scalar.h"

#if defined(__x86_64__)
#include "ops/cpu/amx.h"
#include "ops/cpu/avx2.h"
#include "ops/cpu/avx512.h"
#endif

namespace tandem::ops::cpu {
namespace {

constexpr Kernels kScalarKernels = {
    .isa = Isa::kScalar,
    .name = "scalar",
    .linear_f32 = linear_f32_scalar,
    .linear_i8 = linear_i8_scalar,
    .quantize_row = quantize_row_scalar,
    .rms_norm = rms_norm_scalar,
    .rope = rope_scalar,
    .rope_halves = rope_halves_scalar,
    .silu_mul = silu_mul_scalar,
    .gelu_mul = gelu_mul_scalar,
    .add = add_scalar,
    .add_scaled = add_scaled_scalar,
    .scale = scale_scalar,
    .soft_cap = soft_cap_scalar,
    .attention = attention_scalar,
    .merge_attention = merge_attention_scalar,
    .load_values = load_values_scalar,
    .store_values = store_values_scalar,
    .raise_peaks = raise_peaks_scalar,
};

#if defined(__x86_64__)
constexpr Kernels kAvx2Kernels = {
    .isa = Isa::kAvx2,
    .name = "avx2",
    .linear_f32 = linear_f32_avx2,
    .linear_i8 = linear_i8_avx2,
    .quantize_row = quantize_row_avx2,
    .rms_norm = rms_norm_avx2,
    .rope = rope_avx2,
    .rope_halves = rope_halves_avx2,
    .silu_mul = silu_mul_avx2,
    .gelu_mul = gelu_mul_avx2,
    .add = add_avx2,
    .add_scaled = add_scaled_avx2,
    .scale = scale_avx2,
    .soft_cap = soft_cap_avx2,
    .attention = attention_avx2,
    .merge_attention = merge_attention_avx2,
    .load_values = load_values_avx2,
    .store_values = store_values_avx2,
    .raise_peaks = raise_peaks_avx2,
};

constexpr Kernels kPlainAvx512Kernels = {
    .isa = Isa::kAvx512,
    .name = "avx512",
    .linear_f32 = linear_f32_avx512,
    .linear_i8 = linear_i8_avx512,
    .quantize_row = quantize_row_avx512,
    .rms_norm = rms_norm_avx512,
    .rope = rope_avx512,
    .rope_halves = rope_halves_avx512,
    .silu_mul = silu_mul_avx512,
    .gelu_mul = gelu_mul_avx512,
    .add = add_avx512,
    .add_scaled = add_scaled_avx512,
    .scale = scale_avx512,
    .soft_cap = soft_cap_avx512,
    .attention = attention_avx512,
    .merge_attention = merge_attention_avx512,
    .load_values = load_values_avx512,
    .store_values = store_values_avx512,
    .raise_peaks = raise_peaks_avx512,
};

constexpr Kernels kAmxKernels = [] {
  Kernels kernels = kPlainAvx512Kernels;
  kernels.isa = Isa::kAmx;
  kernels.name = "amx";
  kernels.product_groups = 2;
  kernels.product_rows = 256;
  kernels.linear_i8 = linear_i8_amx;
  kernels.linear_bf16 = linear_bf16_amx;
  kernels.attention = attention_amx;
  kernels.attention_pairs = kWidePairs;
  return kernels;
}();

// Products of BF16 pairs run at twice the float32 rate on Zen 4, at half of it on Emerald Rapids.
const Kernels& avx512_kernels() {
  static const Kernels kKernels = [] {
    __builtin_cpu_init();
    Kernels kernels = kPlainAvx512Kernels;
    if (__builtin_cpu_is("amd")) kernels.linear_bf16 = linear_bf16_avx512;
    return kernels;
  }();
  return kKernels;
}
#endif

}  // namespace

std::string_view isa_name(Isa isa) {
  constexpr std::string_view kNames[] = {"scalar", "avx2", "avx512", "amx"};
  return kNames[static_cast<size_t>(isa)];
}

Isa machine_isa() { return machine_cpu_level(); }

const Kernels& kernels_for([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAmx) return kAmxKernels;
  if (isa == Isa::kAvx512) return avx512_kernels();
  if (isa == Isa::kAvx2) return kAvx2Kernels;
#endif
  return kScalarKernels;
}

Result<const Kernels*> select_kernels() { return select_kernels(environment("TANDEM_ISA")); }

Result<const Kernels*> select_kernels(std::string_view requested) {
  if (requested.empty()) return &kernels_for(machine_isa());
  for (const Isa isa : kCpuLevels) {
    if (requested != isa_name(isa)) continue;
    if (isa > machine_isa()) {
      return make_error(400, "unsupported_isa",
                        "TANDEM_ISA asks for " + std::string(requested) +
                            ", but this machine's highest level is " +
                            std::string(isa_name(machine_isa())));
    }
    return &kernels_for(isa);
  }
  return make_error(
      400, "unsupported_isa",
      "TANDEM_ISA is \"" + std::string(requested) + "\"; it must be scalar, avx2, avx512 or amx");
}

}  // namespace tandem::ops::cpu
