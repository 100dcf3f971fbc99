// For tests: random layouts, and a resharding done element by element on pages whose bytes are
// their own coordinates.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "kv/reshard/reshard_plan.h"

namespace tandem::kv {

using PageKey = std::tuple<int32_t, int32_t, int64_t>;  // rank, group, block
struct ShadowPage {
  std::vector<uint64_t> bytes;  // coordinate of each byte + 1; 0: nothing
  std::vector<uint8_t> writes;
};
using Shadow = std::map<PageKey, ShadowPage>;

// What a worker's pages hold of `tokens`, straight from the words in kv_layout.h. `pages` has every
// block that holds one of the tokens.
inline Shadow fill_shadow(const std::vector<LayerShape>& model, const KvPlace& place,
                          TokenRange tokens) {
  const KvLayout& layout = place.layout;
  Shadow shadow;
  for (int32_t layer = 0; layer < static_cast<int32_t>(model.size()); ++layer) {
    const LayerShape& shape = model[static_cast<size_t>(layer)];
    const LayerPage& page = layout.pages[static_cast<size_t>(layer)];
    int32_t stage = 0;
    while (stage + 1 < static_cast<int32_t>(layout.stages.size()) &&
           layout.stages[static_cast<size_t>(stage) + 1] <= layer)
      ++stage;
    const int64_t block_tokens = layout.block_tokens;
    const int64_t scales = layout.format.scale_bytes;
    const int64_t value = layout.format.value_bytes;
    const int64_t k_plane = block_tokens * (shape.k_dim * value + scales);
    const int64_t v_plane = shape.v_dim == 0 ? 0 : block_tokens * (shape.v_dim * value + scales);
    for (int32_t tensor = 0; tensor < layout.tensor_ranks; ++tensor) {
      const int32_t rank = (stage * layout.data_ranks + place.owner) * layout.tensor_ranks + tensor;
      std::vector<int32_t> heads;
      for (int32_t head = 0; head < shape.heads; ++head) {
        const bool held = shape.latent ? true
                          : layout.tensor_ranks <= shape.heads
                              ? head / (shape.heads / layout.tensor_ranks) == tensor
                              : tensor / (layout.tensor_ranks / shape.heads) == head;
        if (held) heads.push_back(head);
      }
      const auto layer_bytes = static_cast<int64_t>(heads.size()) * (k_plane + v_plane);
      for (int64_t token = tokens.first; token < tokens.end; ++token) {
        const int64_t block = token / block_tokens;
        const int64_t at = token % block_tokens;
        if (shape.latent && layout.latent == LatentPlacement::kByBlock &&
            block % layout.tensor_ranks != tensor)
          continue;
        ShadowPage& target = shadow[{rank, page.group, block}];
        const auto needed = static_cast<size_t>((page.slot + 1) * layer_bytes);
        if (target.bytes.size() < needed) target.bytes.resize(needed);
        const auto put = [&](int64_t offset, int64_t head, int64_t plane, int64_t dim,
                             int64_t byte) {
          const int64_t id =
              ((((layer * 16 + head) * 4 + plane) * 16 + dim) * 16 + byte) * 4096 + token + 1;
          target.bytes[static_cast<size_t>(page.slot * layer_bytes + offset)] =
              static_cast<uint64_t>(id);
        };
        for (size_t i = 0; i < heads.size(); ++i) {
          const int64_t k = static_cast<int64_t>(i) * (k_plane + v_plane);
          const int64_t v = k + k_plane;
          for (int64_t byte = 0; byte < value; ++byte) {
            for (int64_t dim = 0; dim < shape.k_dim; ++dim) {
              const int64_t element =
                  shape.latent ? at * shape.k_dim + dim : dim * block_tokens + at;
              put(k + element * value + byte, heads[i], 0, dim, byte);
            }
            for (int64_t dim = 0; dim < shape.v_dim; ++dim)
              put(v + (at * shape.v_dim + dim) * value + byte, heads[i], 1, dim, byte);
          }
          for (int64_t byte = 0; byte < scales; ++byte) {
            put(k + block_tokens * shape.k_dim * value + at * scales + byte, heads[i], 2, 0, byte);
            if (shape.v_dim > 0)
              put(v + block_tokens * shape.v_dim * value + at * scales + byte, heads[i], 3, 0,
                  byte);
          }
        }
      }
    }
  }
  for (auto& [key, page] : shadow) page.writes.resize(page.bytes.size());
  return shadow;
}

// Carries the plan out. Empty when every byte that the dest must hold was written exactly once with
// the right one, and nothing else was touched; else what went wrong.
inline std::string run_on_shadow(const std::vector<LayerShape>& model, const KvPlace& source,
                                 const KvPlace& dest, const ReshardPlan& plan, TokenRange tokens) {
  const Shadow from = fill_shadow(model, source, tokens);
  const Shadow expected = fill_shadow(model, dest, tokens);
  Shadow to = expected;
  for (auto& [key, page] : to) std::ranges::fill(page.bytes, 0);
  for (int32_t reader = 0; reader < dest.layout.ranks(); ++reader) {
    for (const int32_t holder : plan.sources_of(reader)) {
      for (int32_t layer = 0; layer < static_cast<int32_t>(model.size()); ++layer) {
        for (const PageCopy& page : plan.pages(holder, reader, layer, tokens)) {
          const auto source_page = from.find({holder, page.copy->source_group, page.source_block});
          const auto dest_page = to.find({reader, page.copy->dest_group, page.dest_block});
          if (source_page == from.end()) return "reads a page that is not there";
          if (dest_page == to.end()) return "writes a page that is not there";
          for (const CopyRun& run : page.copy->runs) {
            for (uint64_t i = 0; i < run.count; ++i) {
              for (uint64_t byte = 0; byte < run.dest_bytes; ++byte) {
                const uint64_t s =
                    run.source_offset + i * run.source_stride + page.source_shift + byte;
                const uint64_t d = run.dest_offset + i * run.dest_stride + page.dest_shift + byte;
                if (s >= source_page->second.bytes.size()) return "reads outside a page";
                if (d >= dest_page->second.bytes.size()) return "writes outside a page";
                dest_page->second.bytes[d] = source_page->second.bytes[s];
                if (++dest_page->second.writes[d] > 1) return "writes a byte twice";
              }
            }
          }
        }
      }
    }
  }
  for (const auto& [key, page] : expected) {
    if (to.at(key).bytes != page.bytes) return "a byte is missing or wrong";
  }
  return "";
}

// Small, but of every kind: what they have in common is only the model.
class RandomLayouts {
 public:
  explicit RandomLayouts(uint64_t seed) : random_(seed) {}

  int32_t pick(int32_t from, int32_t to) {
    return std::uniform_int_distribution<int32_t>(from, to)(random_);
  }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[pick(0, static_cast<int32_t>(values.size()) - 1)];
  }

  std::vector<LayerShape> model() {
    const int32_t heads = one_of({1, 2, 3, 4, 6, 8});
    const int32_t k_dim = pick(1, 3);
    const int32_t v_dim = one_of({k_dim, pick(1, 3)});
    const int32_t kind = pick(0, 2);  // heads, latent, both
    std::vector<LayerShape> out;
    const int32_t layers = pick(1, 6);
    for (int32_t i = 0; i < layers; ++i) {
      if (kind == 1 || (kind == 2 && pick(0, 1) == 1)) {
        out.push_back({true, 1, k_dim + 1, 0});
      } else {
        out.push_back({false, heads, k_dim, v_dim});
      }
    }
    return out;
  }

  KvPlace place(const std::vector<LayerShape>& model, const ValueFormat& format) {
    KvPlace out;
    KvLayout& layout = out.layout;
    int32_t heads = 1;
    for (const LayerShape& shape : model) heads = std::max(heads, shape.heads);
    do {
      layout.tensor_ranks = one_of({1, 1, 2, 3, 4, 6, 8});
    } while (heads % layout.tensor_ranks != 0 && layout.tensor_ranks % heads != 0);
    layout.data_ranks = one_of({1, 1, 2, 3});
    out.owner = pick(0, layout.data_ranks - 1);
    layout.latent = one_of({LatentPlacement::kReplicated, LatentPlacement::kByBlock});
    layout.block_tokens = pick(1, 6);
    layout.format = format;
    const auto layers = static_cast<int32_t>(model.size());
    for (int32_t layer = 1; layer < layers; ++layer) {
      if (pick(0, 2) == 0) layout.stages.push_back(layer);
    }
    // Groups: by shape, split at random; slots in random order, sometimes with gaps.
    const int32_t parts = pick(1, 3);
    for (const LayerShape& shape : model)
      layout.pages.push_back({(shape.latent ? 0 : parts) + pick(0, parts - 1), 0});
    std::vector<int32_t> slots(model.size());
    for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int32_t>(i);
    if (pick(0, 1) == 1) std::ranges::shuffle(slots, random_);
    for (size_t i = 0; i < slots.size(); ++i) layout.pages[i].slot = slots[i];
    return out;
  }

  ValueFormat format() { return {1, one_of({1, 2}), one_of({0, 0, 1, 2})}; }

 private:
  std::mt19937_64 random_;
};

}  // namespace tandem::kv
