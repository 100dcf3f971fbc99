#include "ops/cpu/probes.h"
#include "ops/cpu/tiles_amx.h"

namespace tandem::ops::cpu {
namespace {

constexpr int kProducts = 4;

void load_config(int32_t depth_rows) {
  TileConfig config;
  for (int i = 0; i < kProducts; ++i) config.set(i, 16, 64);
  config.set(4, 16, depth_rows * 4);
  config.set(5, depth_rows, 64);
  config.load();
  _tile_zero(4);
  _tile_zero(5);
}

int32_t result() {
  alignas(64) int32_t sums[256];
  _tile_stored(0, sums, 64);
  _tile_release();
  return sums[0];
}

// `products`: kProducts of tiles 4 and 5, whose depth is so many rows.
template <typename Products>
int32_t repeat(int64_t rounds, int32_t depth_rows, Products products) {
  load_config(depth_rows);
  for (int64_t i = 0; i < rounds; ++i) products();
  return result();
}

int32_t int8_dots(int64_t rounds) {
  return repeat(rounds, 8, [] {
    _tile_dpbssd(0, 4, 5);
    _tile_dpbssd(1, 4, 5);
    _tile_dpbssd(2, 4, 5);
    _tile_dpbssd(3, 4, 5);
  });
}

float bf16_dots(int64_t rounds) {
  return static_cast<float>(repeat(rounds, 16, [] {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
  }));
}

}  // namespace

Probes probes_amx() {
  constexpr double kOperations = 2.0 * 16 * 16 * 32 * kProducts;
  Probes probes = probes_avx512();
  probes.int8_dots = int8_dots;
  probes.int8_operations_per_round = kOperations;
  probes.bf16_dots = bf16_dots;
  probes.bf16_operations_per_round = kOperations;
  return probes;
}

}  // namespace tandem::ops::cpu
