// KvLayout: which rank of a worker holds which part of a sequence's KV, and where in its pages.
//
// Ranks are numbered (stage * data_ranks + data rank) * tensor_ranks + tensor rank. A pipeline
// stage holds a run of layers. With data-parallel attention a sequence's KV is kept by one data
// rank, its owner; within it:
//   * Layers with KV heads are split over the tensor ranks, evenly: with fewer ranks than heads
//     rank t holds heads t * n .. (t + 1) * n - 1, with more ranks than heads each head is held by
//     tensor_ranks / heads neighbouring ranks.
//   * Layers with a latent vector (MLA) are held by every tensor rank, or dealt block by block:
//     block b is held by tensor rank b mod tensor_ranks.
//
// A rank has one page for each block (that it holds) and page group of its stage. Byte order of
// a page (layout id 1): [slot][local head][K, V], where K is [dim][token] and V is [token][dim]; a
// latent layer has one plane, [token][dim]. Each plane is followed by its inline scales, one per
// token, where the representation has them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem::kv {

// What one token leaves in one layer: the same for every worker of a model.
struct LayerShape {
  bool latent = false;
  int32_t heads = 0;  // KV heads; 1 for a latent layer
  int32_t k_dim = 0;  // values of K in one head, or of the latent vector
  int32_t v_dim = 0;  // 0 for a latent layer
  bool operator==(const LayerShape&) const = default;
};

// How one value is stored. Ids are the representation's; equal formats are copied byte by byte.
struct ValueFormat {
  uint32_t dtype = 0;
  int32_t value_bytes = 2;
  int32_t scale_bytes = 0;  // inline scale of a token in a plane
  bool operator==(const ValueFormat&) const = default;
};

enum class LatentPlacement : uint8_t { kReplicated, kByBlock };

struct LayerPage {
  int32_t group = 0;  // of its stage's pages
  int32_t slot = 0;   // place in the group's page
  bool operator==(const LayerPage&) const = default;
};

struct KvLayout {
  int32_t tensor_ranks = 1;
  int32_t data_ranks = 1;
  std::vector<int32_t> stages{0};  // first layer of each pipeline stage
  LatentPlacement latent = LatentPlacement::kReplicated;
  std::vector<LayerPage> pages;  // by layer
  int32_t block_tokens = 16;
  uint32_t layout_id = 1;
  ValueFormat format;

  int32_t ranks() const { return static_cast<int32_t>(stages.size()) * data_ranks * tensor_ranks; }
};

// A worker's part in a copy: its layout, and which data rank owns the sequence there.
struct KvPlace {
  KvLayout layout;
  int32_t owner = 0;
};

inline constexpr int32_t kMaxReshardRanks = 1 << 16;
inline constexpr int32_t kMaxReshardLayers = 1 << 12;

// Errors: code "kv_layout"; the sentence names `side` ("prefill", "decode") and what is wrong.
Status check_place(const std::vector<LayerShape>& model, const KvPlace& place,
                   std::string_view side);
// Both are possible, but may not be copied into each other: block sizes and value formats that
// differ at once, byte orders that differ.
Status check_pair(const std::vector<LayerShape>& model, const KvPlace& source, const KvPlace& dest);

}  // namespace tandem::kv
