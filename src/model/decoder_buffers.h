// The activations of one pass, in one allocation.
#pragma once

#include <cstdint>
#include <vector>

#include "model/decoder_spec.h"
#include "model/tensor_loader.h"
#include "ops/operators.h"
#include "ops/packed_matrix.h"

namespace tandem::model {

// Laid out once without memory to count, then with.
class DecoderBuffers {
 public:
  DecoderBuffers(const DecoderSpec& spec, int32_t max_rows, InputForms forms)
      : rows_(max_rows), forms_(forms) {
    lay_out(spec);
    storage_ = ops::allocate_aligned(bytes_);
    if (storage_) lay_out(spec);
  }
  bool valid() const { return storage_ != nullptr; }
  size_t bytes() const { return bytes_; }

  float* x = nullptr;       // the residual stream
  float* delta = nullptr;   // what the last block adds to it
  ops::Activations normed;  // a block's input
  float* q = nullptr;
  float* k = nullptr;
  float* v = nullptr;
  ops::Activations attended;
  float* gate = nullptr;
  float* up = nullptr;
  ops::Activations ffn;
  ops::Activations last;        // the rows whose logits are wanted
  std::vector<float*> cos_sin;  // of each rope table
  std::vector<int32_t> positions;

 private:
  void lay_out(const DecoderSpec& spec) {
    const ModelConfig& c = spec.config;
    bytes_ = 0;
    const int32_t q_columns = c.heads * c.head_dim;
    const int32_t kv_columns = c.kv_heads * c.head_dim;
    x = floats(c.hidden);
    delta = floats(c.hidden);
    normed = activations(c.hidden);
    q = floats(q_columns);
    k = floats(kv_columns);
    v = floats(kv_columns);
    attended = activations(q_columns);
    gate = floats(c.ffn);
    up = floats(c.ffn);
    ffn = activations(c.ffn);
    last = activations(c.hidden);
    cos_sin.clear();
    for (const ops::Rope& rope : spec.ropes) cos_sin.push_back(floats(2 * rope.pairs()));
    positions.resize(static_cast<size_t>(rows_));
  }

  std::byte* take(size_t bytes) {
    std::byte* at = storage_ ? storage_.get() + bytes_ : nullptr;
    bytes_ += (bytes + 63) / 64 * 64;
    return at;
  }
  float* floats(int32_t columns) {
    return reinterpret_cast<float*>(take(static_cast<size_t>(rows_) * columns * sizeof(float)));
  }
  ops::Activations activations(int32_t columns) {
    ops::Activations a;
    a.columns = columns;
    a.values = floats(columns);
    if (forms_.bf16) {
      a.bf16 = reinterpret_cast<uint16_t*>(
          take(static_cast<size_t>(rows_) * a.bf16_per_row() * sizeof(uint16_t)));
    }
    if (forms_.int8 && columns % 32 == 0) {
      a.blocks = reinterpret_cast<ops::cpu::ActivationBlock*>(
          take(static_cast<size_t>(rows_) * (columns / 32) * sizeof(ops::cpu::ActivationBlock)));
    }
    return a;
  }

  int32_t rows_;
  InputForms forms_;
  ops::AlignedBytes storage_;
  size_t bytes_ = 0;
};

}  // namespace tandem::model
