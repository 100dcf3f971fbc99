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
#include <string_view>

namespace tandem::ops {

enum class KvDtype : uint8_t {
  kF32 = 0,
  kF16 = 1,
  kBF16 = 2,
  kFp8Static = 3,  // e4m3, one scale per layer and KV head, outside the page
  kFp8Inline =
      4,  // e4m3, one float32 scale per token and head for K and for V, after the head's values
};

std::string_view kv_dtype_name(KvDtype dtype);
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
  // Bytes of K (or of V) of one head in one layer, scales included.
  size_t plane_bytes() const {
    const size_t values = static_cast<size_t>(head_dim) * block_tokens * element_bytes();
    return values + (dtype == KvDtype::kFp8Inline ? sizeof(float) * block_tokens : 0);
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

// Where pages are: page p starts at base + p * stride. Not owning; the arena outlives every view.
struct PageArenaView {
  std::byte* base = nullptr;
  size_t stride = 0;  // bytes, at least layout.page_bytes(), a multiple of 64
  int32_t page_count = 0;
  PageLayout layout;
  std::byte* page(int32_t index) const { return base + static_cast<size_t>(index) * stride; }
};

}  // namespace tandem::ops
