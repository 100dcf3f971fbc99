#include "protocol/representation.h"

#include <array>

namespace tandem::protocol {
namespace {

// By ops::KvDtype. Of two ranks the higher one keeps more of a value.
struct DtypeFacts {
  std::string_view name;
  int rank;
  bool static_scales;
  int value_bytes;
};
constexpr std::array<DtypeFacts, 6> kDtypes = {{{"f32", 3, false, 4},
                                                {"f16", 2, false, 2},
                                                {"bf16", 2, false, 2},
                                                {"fp8", 1, true, 1},
                                                {"fp8-inline", 1, false, 1},
                                                {"int8", 1, false, 1}}};

struct AcceptWord {
  std::string_view word;
  KvAccept accept;
};
constexpr std::array<AcceptWord, 3> kAcceptWords = {
    {{"coarser", kAcceptCoarser}, {"weights", kAcceptWeights}, {"path", kAcceptPath}}};

ReadingVerdict refuse(std::string reason) { return {Reading::kRefused, std::move(reason)}; }

std::string against(std::string_view stored, std::string_view wanted) {
  return std::string(stored) + " against " + std::string(wanted);
}

}  // namespace

Result<uint32_t> parse_kv_accepts(std::span<const std::string> words) {
  uint32_t accepts = 0;
  for (const std::string& text : words) {
    uint32_t found = 0;
    for (const AcceptWord& known : kAcceptWords) {
      if (text == known.word) found = known.accept;
    }
    if (found == 0) {
      return make_error(400, "invalid_option",
                        "--kv-accept: \"" + text + "\" is none of coarser, weights, path.");
    }
    accepts |= found;
  }
  return accepts;
}

std::string_view stored_dtype_name(uint32_t kv_dtype) {
  return kv_dtype < kDtypes.size() ? kDtypes[kv_dtype].name : "?";
}

ReadingVerdict decide_reading(const Representation& stored, const Representation& reader,
                              uint32_t accepts) {
  if (stored.kv_dtype >= kDtypes.size() || reader.kv_dtype >= kDtypes.size())
    return refuse("a page format is unknown here");
  if (stored.layout_id != reader.layout_id) {
    return refuse("their pages have different layouts (" +
                  against(std::to_string(stored.layout_id), std::to_string(reader.layout_id)) +
                  ")");
  }
  const DtypeFacts& from = kDtypes[stored.kv_dtype];
  const DtypeFacts& to = kDtypes[reader.kv_dtype];
  // Codes mean nothing without the scales they were made with, and the reader has only its own.
  if (from.static_scales && stored.kv_scales != reader.kv_scales) {
    return refuse("their FP8 scales differ (" + against(stored.kv_scales, reader.kv_scales) + ")");
  }
  if (stored.weights != reader.weights && (accepts & kAcceptWeights) == 0) {
    return refuse("the KV was computed with other weights of this lineage (" +
                  against(stored.weights, reader.weights) +
                  "); --kv-accept weights on the decode worker allows it");
  }
  if (stored.numeric_path != reader.numeric_path && (accepts & kAcceptPath) == 0) {
    return refuse("their KV is computed in different ways (" +
                  against(stored.numeric_path, reader.numeric_path) +
                  "); --kv-accept path on the decode worker allows it");
  }
  if (stored.kv_dtype == reader.kv_dtype) return {Reading::kAsIs, ""};
  if (from.rank <= to.rank && (accepts & kAcceptCoarser) == 0) {
    return refuse("the KV is stored as " + std::string(from.name) + " and would be read as " +
                  std::string(to.name) + ", which cannot restore what was rounded away" +
                  "; --kv-accept coarser on the decode worker allows it");
  }
  return {Reading::kConverted, ""};
}

bool sender_can_convert(const Representation& stored, const Representation& reader) {
  if (stored.kv_dtype >= kDtypes.size() || reader.kv_dtype >= kDtypes.size()) return false;
  const DtypeFacts& from = kDtypes[stored.kv_dtype];
  const DtypeFacts& to = kDtypes[reader.kv_dtype];
  return to.value_bytes < from.value_bytes && stored.layout_id == reader.layout_id &&
         (stored.kv_scales == reader.kv_scales || !(from.static_scales || to.static_scales));
}

}  // namespace tandem::protocol
