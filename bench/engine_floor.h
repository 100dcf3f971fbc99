// The plan of a CPU engine: for each phase the least time that its operations and its bytes take on
// this machine, whichever is longer. What is measured is then a share of that floor.
//
// Counted: the multiply-adds of all linear layers (two operations each), attention's two products,
// every weight once for each pass, every key and value that a pass reads. Not counted, and so part
// of what a share below one pays for: norms, rotations, softmax, quantizing activations, sampling,
// barriers.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tandem::bench {

struct EngineShape {
  double layers = 0;
  double hidden = 0;
  double heads = 0;
  double kv_heads = 0;
  double head_dim = 0;
  double ffn = 0;
  double vocab = 0;
  double weight_bytes = 0;    // of the linear layers and the output head
  double kv_bytes = 0;        // of one position in all layers
  bool int8_products = true;  // linear layers run on int8 products, else on float32
  int32_t window = 0;         // of the windowed layers
  double windowed_layers = 0;

  double layer_weights() const {  // elements of all layers' matrices
    return layers * (hidden * (heads + 2 * kv_heads) * head_dim + heads * head_dim * hidden +
                     3 * hidden * ffn);
  }
  double head_weights() const { return hidden * vocab; }
};

struct Ceilings {  // per second, of all threads together
  double memory_bytes = 0;
  double float_operations = 0;
  double int8_operations = 0;
};

struct Floor {
  double operations_seconds = 0;
  double bytes_seconds = 0;
  double seconds() const { return std::max(operations_seconds, bytes_seconds); }
  const char* bound() const { return bytes_seconds > operations_seconds ? "memory" : "arithmetic"; }
};

// One pass: `rows` tokens of each of `sequences` sequences that hold `depth` positions already,
// with `logits` rows through the output head.
inline Floor pass_floor(const EngineShape& shape, const Ceilings& ceilings, double sequences,
                        double depth, double rows, double logits) {
  const double tokens = sequences * rows;
  const double linear = 2 * (tokens * shape.layer_weights() + logits * shape.head_weights());
  const double mean = depth + (rows + 1) / 2;  // positions that a row attends to
  const double full_layers = shape.layers - shape.windowed_layers;
  const double seen =
      full_layers * mean + shape.windowed_layers * std::min<double>(mean, shape.window);
  const double attention = 4 * tokens * shape.heads * shape.head_dim * seen;
  const double last = depth + rows;
  const double share =
      (full_layers * last + shape.windowed_layers * std::min<double>(last, shape.window)) /
      shape.layers;
  Floor floor;
  floor.operations_seconds =
      linear / (shape.int8_products ? ceilings.int8_operations : ceilings.float_operations) +
      attention / ceilings.float_operations;
  floor.bytes_seconds =
      (shape.weight_bytes + sequences * share * shape.kv_bytes) / ceilings.memory_bytes;
  return floor;
}

// A prompt of `tokens` behind `depth` positions, in chunks; the last row alone needs logits.
inline Floor prefill_floor(const EngineShape& shape, const Ceilings& ceilings, int32_t tokens,
                           int32_t chunk, int32_t depth) {
  Floor floor;
  for (int32_t done = 0; done < tokens; done += chunk) {
    const int32_t rows = std::min(chunk, tokens - done);
    const Floor part =
        pass_floor(shape, ceilings, 1, depth + done, rows, done + rows == tokens ? 1 : 0);
    floor.operations_seconds += part.operations_seconds;
    floor.bytes_seconds += part.bytes_seconds;
  }
  return floor;
}

}  // namespace tandem::bench
