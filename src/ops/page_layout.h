// PageLayout: how the keys and values of one block of tokens lie in one page.
//
// Layers are dealt into page groups of equally many layers (model::PageGroup), and a block has one
// page for each group, all of the same size: so one pool serves every group without padding, and a
// group whose layers see only a window can give its pages back early.
//
// Byte order on the CPU (layout id 1): [layer][KV head][K, V]; K transposed, [dim][token]; V as
// [token][dim]. The same bytes are used in memory, on the wire and in tiers. A device whose kernels
// want another order has another layout id, and the sender converts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tandem::ops {

enum class KvDtype : uint8_t {
  kF32 = 0,
  kF16 = 1,
  kBF16 = 2,
  kFp8Static = 3,  // e4m3, one scale per layer and KV head, outside the page
  kFp8Inline =
      4,  // e4m3, one float32 scale per token and head for K and for V, after the head's values
  kInt8Inline = 5,  // -127..127, scales like kFp8Inline's
};

inline constexpr KvDtype kAllKvDtypes[] = {KvDtype::kF32,       KvDtype::kF16,
                                           KvDtype::kBF16,      KvDtype::kFp8Static,
                                           KvDtype::kFp8Inline, KvDtype::kInt8Inline};

// Scales in the page, after each plane's values.
constexpr bool has_inline_scales(KvDtype dtype) {
  return dtype == KvDtype::kFp8Inline || dtype == KvDtype::kInt8Inline;
}

std::string_view kv_dtype_name(KvDtype dtype);                 // "bf16", "fp8", "fp8-inline"
std::optional<KvDtype> parse_kv_dtype(std::string_view name);  // a name of the above
inline constexpr uint32_t kCpuLayoutId = 1;

struct PageLayout {
  KvDtype dtype = KvDtype::kBF16;
  uint32_t layout_id = kCpuLayoutId;
  int32_t layers = 0;  // in one page
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_tokens = 16;
  int32_t groups = 1;  // pages of one block

  size_t element_bytes() const {
    return dtype == KvDtype::kF32 ? 4 : (dtype == KvDtype::kF16 || dtype == KvDtype::kBF16) ? 2 : 1;
  }
  // Bytes of K (or of V) of one head in one layer: its values, and with its scales.
  size_t value_bytes() const {
    return static_cast<size_t>(head_dim) * block_tokens * element_bytes();
  }
  size_t plane_bytes() const {
    return value_bytes() + (has_inline_scales(dtype) ? sizeof(float) * block_tokens : 0);
  }
  size_t layer_bytes() const { return 2 * plane_bytes() * kv_heads; }
  size_t page_bytes() const { return layer_bytes() * layers; }
  size_t k_offset(int layer, int head) const {
    return layer * layer_bytes() + head * 2 * plane_bytes();
  }
  size_t v_offset(int layer, int head) const { return k_offset(layer, head) + plane_bytes(); }

  bool operator==(const PageLayout&) const = default;
};

// Where a layer's K and V lie: in which of the block's pages, and where in it.
struct LayerPlace {
  int32_t group = 0;
  int32_t slot = 0;  // 0 .. layout.layers - 1
};

// kFp8Static's scales of one layer, one for each KV head: a value is its code times the scale. Null
// means 1 for every head. Other dtypes have none. Not owning.
struct KvScaleView {
  const float* k = nullptr;
  const float* v = nullptr;
  float k_of(int32_t head) const { return k == nullptr ? 1.0F : k[head]; }
  float v_of(int32_t head) const { return v == nullptr ? 1.0F : v[head]; }
};

// Where pages are: page p starts at base + p * stride. Not owning; the arena outlives every view.
struct PageArenaView {
  std::byte* base = nullptr;
  size_t stride = 0;  // bytes, at least layout.page_bytes(), a multiple of 64
  int32_t page_count = 0;
  PageLayout layout;
  std::byte* page(int32_t index) const { return base + static_cast<size_t>(index) * stride; }
};

}  // namespace tandem::ops
