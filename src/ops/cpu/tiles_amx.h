// AMX's tile registers: eight of up to 16 rows of 64 bytes, whose shapes stand in one
// configuration.
//
// Products are of A (rows of activations) and B (columns of weights, four int8 or two BF16 of one
// output side by side): tdpbssd adds 16 x 16 x 64 int8 products to int32 sums, tdpbf16ps 16 x 16 x
// 32 of BF16 to float32 sums, each in 16 cycles however few the rows are. A row of the sums depends
// on its own row of A only. (Intel's Architecture Instruction Set Extensions Programming Reference,
// chapter 3.)
#pragma once

#include <cstdint>

#include <immintrin.h>

namespace tandem::ops::cpu {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int32_t tile_rows, int32_t bytes) {
    rows[tile] = static_cast<uint8_t>(tile_rows);
    row_bytes[tile] = static_cast<uint16_t>(bytes);
  }
  // Makes this the thread's configuration; all tiles become zero. _tile_release() ends it, and must
  // be called before the kernel returns: the system saves tiles in use at every switch of threads.
  void load() const { _tile_loadconfig(this); }
};
static_assert(sizeof(TileConfig) == 64);

}  // namespace
}  // namespace tandem::ops::cpu
