#include "ops/kv_scales.h"

#include <span>

#include "numerics/digest.h"

namespace tandem::ops {

std::string KvScales::digest() const {
  if (k.empty()) return "1";
  std::vector<float> all = k;
  all.insert(all.end(), v.begin(), v.end());
  return numerics::to_hex(numerics::sha256(std::as_bytes(std::span(all)))).substr(0, 16);
}

}  // namespace tandem::ops
