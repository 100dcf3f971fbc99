#include "ops/page_layout.h"

namespace tandem::ops {

std::string_view kv_dtype_name(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::kF32:
      return "f32";
    case KvDtype::kF16:
      return "f16";
    case KvDtype::kBF16:
      return "bf16";
    case KvDtype::kFp8Static:
      return "fp8";
    case KvDtype::kFp8Inline:
      return "fp8-inline";
    case KvDtype::kInt8Inline:
      return "int8";
  }
  return "?";
}

std::optional<KvDtype> parse_kv_dtype(std::string_view name) {
  for (const KvDtype dtype : kAllKvDtypes) {
    if (name == kv_dtype_name(dtype)) return dtype;
  }
  return std::nullopt;
}

}  // namespace tandem::ops
