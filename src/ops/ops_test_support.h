// Shared by the operators' tests: the machine's instruction sets, random data, packed matrices.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "numerics/float_formats.h"
#include "ops/cpu/dispatch.h"
#include "ops/executor.h"
#include "ops/packed_matrix.h"
#include "weights/format.h"

namespace tandem::ops {

inline std::vector<const cpu::Kernels*> machine_kernels() {
  std::vector<const cpu::Kernels*> all;
  for (const cpu::Isa isa : kCpuLevels) {
    if (isa <= cpu::machine_isa()) all.push_back(&cpu::kernels_for(isa));
  }
  return all;
}

inline std::vector<float> random_values(size_t count, uint32_t seed, float deviation = 1.0F) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// Of attention.
struct TestShape {
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t block_tokens;
  int32_t window = 0;
  float softcap = 0;
};

// A matrix in file order, packed, and decoded by the normative decoder.
struct TestMatrix {
  std::vector<std::byte> file;
  PackedMatrix packed;
  std::vector<float> decoded;  // [rows][columns]
};

inline TestMatrix make_matrix(weights::Format format, int32_t rows, int32_t columns, uint32_t seed,
                              Pairs pairs = Pairs::kNone) {
  TestMatrix matrix;
  const auto values = random_values(static_cast<size_t>(rows) * columns, seed, 0.1F);
  const size_t size = weights::row_bytes(format, columns);
  matrix.file.resize(size * rows);
  matrix.decoded.resize(values.size());
  for (int32_t row = 0; row < rows; ++row) {
    const auto bytes = std::span(matrix.file).subspan(row * size, size);
    const size_t at = static_cast<size_t>(row) * columns;
    weights::quantize_row(format, std::span(values).subspan(at, columns), bytes);
    weights::dequantize_row(format, bytes, std::span(matrix.decoded).subspan(at, columns));
  }
  if (packed_in_pairs(format, pairs)) {
    for (float& value : matrix.decoded) value = numerics::bf16_to_f32(numerics::f32_to_bf16(value));
  }
  device::ComputeThreads threads(1);
  auto packed = PackedMatrix::pack(format, rows, columns, matrix.file, threads, nullptr, pairs);
  EXPECT_TRUE(packed);
  matrix.packed = std::move(*packed);
  return matrix;
}

}  // namespace tandem::ops
