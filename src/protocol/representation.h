// Which stored KV may stand in for which (DESIGN I5): pure, one table.
//
// A block's ContentId names the tokens and the model's lineage, not how a copy is stored: that is
// its representation, named beside it. A reader that wants one representation and is offered
// another takes it as it is, converts it, or refuses.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem::protocol {

struct Representation {
  uint32_t kv_dtype = 0;  // ops::KvDtype
  uint32_t layout_id = 0;
  std::string numeric_path;  // that computed it: "cpu-avx512-fast-2"
  std::string kv_scales;     // digest of the model's static FP8 scales; "1": all are 1
  std::string weights;       // format of the weights that computed it: "Q4_1"
};

// What a reader takes although it is not what it would have computed (`--kv-accept`).
enum KvAccept : uint32_t {
  kAcceptCoarser = 1,  // values rounded more coarsely than its own pages, or in another 8-bit form
  kAcceptWeights = 2,  // computed with other weights of the same lineage
  kAcceptPath = 4,     // by another instruction set, kernel version or numerics, or as BF16 pairs
};
// "coarser", "weights", "path" to a mask; error 400 "invalid_option" names an unknown word.
Result<uint32_t> parse_kv_accepts(std::span<const std::string> words);

std::string_view stored_dtype_name(uint32_t kv_dtype);  // "?" for unknown ones

enum class Reading : uint8_t { kAsIs, kConverted, kRefused };
struct ReadingVerdict {
  Reading reading = Reading::kRefused;
  std::string reason;  // of a refusal, or why it would be one without `accepts`
};

// How `reader` takes pages of `stored`, of the same lineage and shape.
ReadingVerdict decide_reading(const Representation& stored, const Representation& reader,
                              uint32_t accepts);

// Whether the one that stores can do the reader's conversion for it, and it saves bytes: not with
// scales that only the reader has.
bool sender_can_convert(const Representation& stored, const Representation& reader);

}  // namespace tandem::protocol
