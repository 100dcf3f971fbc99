#include "kv/reshard/coverage.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <tuple>

namespace tandem::kv {

namespace {

enum Plane : int32_t { kKeys, kValues, kKeyScales, kValueScales };

// What a byte of a page is. Bytes that follow it in the page have the next `position`, up to `left`
// of them. `position` counts from the sequence's first token.
struct Coordinate {
  int32_t layer;
  int32_t head;
  int32_t plane;
  int32_t row;  // of K: the dim
  int64_t position;
  uint64_t left;
  int64_t token;
  bool same_place(const Coordinate& other) const {
    return std::tie(layer, head, plane, row, position) ==
           std::tie(other.layer, other.head, other.plane, other.row, other.position);
  }
};

tl::unexpected<Error> wrong(const ReshardCopy& copy, const std::string& what) {
  return make_error(500, "kv_coverage",
                    "The copy of layer " + std::to_string(copy.first_layer) + " from rank " +
                        std::to_string(copy.source_rank) + " to rank " +
                        std::to_string(copy.dest_rank) + " " + what + ".");
}

// One worker, read from the place of a byte to its meaning.
class Side {
 public:
  Side(const std::vector<LayerShape>& model, const KvPlace& place)
      : model_(model), place_(place), layout_(place.layout) {
    for (size_t layer = 0; layer < model.size(); ++layer) {
      int32_t stage = 0;
      for (size_t i = 1; i < layout_.stages.size(); ++i)
        stage += layout_.stages[i] <= static_cast<int32_t>(layer);
      layer_at_[{stage, layout_.pages[layer].group, layout_.pages[layer].slot}] =
          static_cast<int32_t>(layer);
    }
  }

  bool owns(int32_t rank) const {
    return rank >= 0 && rank < layout_.ranks() && owner_of(rank) == place_.owner;
  }
  int32_t stage_of(int32_t rank) const { return rank / layout_.tensor_ranks / layout_.data_ranks; }
  int32_t tensor_of(int32_t rank) const { return rank % layout_.tensor_ranks; }
  int32_t rank_of(int32_t stage, int32_t tensor) const {
    return (stage * layout_.data_ranks + place_.owner) * layout_.tensor_ranks + tensor;
  }
  const KvLayout& layout() const { return layout_; }
  // (stage, group, slot) -> layer
  const std::map<std::tuple<int32_t, int32_t, int32_t>, int32_t>& layers() const {
    return layer_at_;
  }
  // Blocks b with b % spread == tensor rank are held (spread 1: all of them).
  int32_t spread(const LayerShape& shape) const {
    return shape.latent && layout_.latent == LatentPlacement::kByBlock ? layout_.tensor_ranks : 1;
  }
  bool holds_series(const LayerShape& shape, int32_t rank, int64_t block, int64_t step) const {
    const int32_t of = spread(shape);
    return of == 1 || (block % of == tensor_of(rank) && step % of == 0);
  }

  int32_t heads_held(const LayerShape& shape) const {
    return shape.heads > layout_.tensor_ranks ? shape.heads / layout_.tensor_ranks : 1;
  }
  int32_t first_head(const LayerShape& shape, int32_t rank) const {
    return static_cast<int32_t>(int64_t{tensor_of(rank)} * shape.heads / layout_.tensor_ranks);
  }
  uint64_t plane_bytes(int32_t dim) const {
    const auto tokens = static_cast<uint64_t>(layout_.block_tokens);
    return dim == 0 ? 0 : tokens * (row_bytes(dim) + scale_bytes());
  }
  uint64_t head_bytes(const LayerShape& shape) const {
    return plane_bytes(shape.k_dim) + plane_bytes(shape.v_dim);
  }
  uint64_t layer_bytes(const LayerShape& shape) const {
    return head_bytes(shape) * static_cast<uint64_t>(heads_held(shape));
  }

  // Nothing when no layer of that rank has such a byte.
  std::optional<Coordinate> locate(int32_t rank, int32_t group, const LayerShape& shape,
                                   int64_t block, uint64_t offset) const {
    const uint64_t slot = offset / layer_bytes(shape);
    if (slot > static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) return std::nullopt;
    const auto found = layer_at_.find({stage_of(rank), group, static_cast<int32_t>(slot)});
    if (found == layer_at_.end() || model_[static_cast<size_t>(found->second)] != shape)
      return std::nullopt;
    offset %= layer_bytes(shape);
    Coordinate out{};
    out.layer = found->second;
    out.head = first_head(shape, rank) + static_cast<int32_t>(offset / head_bytes(shape));
    offset %= head_bytes(shape);
    const bool values = offset >= plane_bytes(shape.k_dim);
    if (values) offset -= plane_bytes(shape.k_dim);
    locate_in_plane(values, !values && !shape.latent, values ? shape.v_dim : shape.k_dim, block,
                    offset, out);
    return out;
  }

 private:
  int32_t owner_of(int32_t rank) const { return rank / layout_.tensor_ranks % layout_.data_ranks; }
  uint64_t value_bytes() const { return static_cast<uint64_t>(layout_.format.value_bytes); }
  uint64_t scale_bytes() const { return static_cast<uint64_t>(layout_.format.scale_bytes); }
  uint64_t row_bytes(int32_t dim) const { return static_cast<uint64_t>(dim) * value_bytes(); }

  void locate_in_plane(bool values, bool transposed, int32_t dim, int64_t block, uint64_t offset,
                       Coordinate& out) const {
    const auto tokens = static_cast<uint64_t>(layout_.block_tokens);
    const uint64_t value_end = tokens * row_bytes(dim);
    uint64_t token_bytes = transposed ? value_bytes() : row_bytes(dim);
    out.plane = values ? kValues : kKeys;
    if (offset >= value_end) {
      offset -= value_end;
      token_bytes = scale_bytes();
      out.plane = values ? kValueScales : kKeyScales;
    } else if (transposed) {
      out.row = static_cast<int32_t>(offset / (tokens * token_bytes));
      offset %= tokens * token_bytes;
    }
    out.position =
        block * static_cast<int64_t>(tokens * token_bytes) + static_cast<int64_t>(offset);
    out.left = tokens * token_bytes - offset;
    out.token = static_cast<int64_t>(offset / token_bytes);
  }

  const std::vector<LayerShape>& model_;
  const KvPlace& place_;
  const KvLayout& layout_;
  std::map<std::tuple<int32_t, int32_t, int32_t>, int32_t> layer_at_;
};

struct Edge {
  uint64_t offset;
  size_t copy;
};

class Proof {
 public:
  Proof(const std::vector<LayerShape>& model, const KvPlace& source, const KvPlace& dest,
        std::span<const ReshardCopy> copies)
      : model_(model), source_(model, source), dest_(model, dest), copies_(copies) {}

  Status run() {
    for (const ReshardCopy& copy : copies_) {
      TANDEM_CHECK(check_series(copy));
      for (int32_t i = 0; i < copy.layers; ++i) TANDEM_CHECK(check_layer(copy, i));
    }
    // Every page of every rank that keeps the sequence, whether or not a copy names it.
    std::set<std::pair<int32_t, int32_t>> pages;  // stage, group
    for (const auto& [place, layer] : dest_.layers())
      pages.emplace(std::get<0>(place), std::get<1>(place));
    for (const auto& [stage, group] : pages) {
      for (int32_t tensor = 0; tensor < dest_.layout().tensor_ranks; ++tensor)
        TANDEM_CHECK(check_page(stage, group, tensor));
    }
    return {};
  }

 private:
  const LayerShape& shape_of(const ReshardCopy& copy) const {
    return model_[static_cast<size_t>(copy.first_layer)];
  }

  Status check_series(const ReshardCopy& copy) const {
    const auto layers = static_cast<int64_t>(model_.size());
    if (copy.layers < 1 || copy.layer_step < 1 || copy.first_layer < 0 ||
        copy.first_layer + int64_t{copy.layers - 1} * copy.layer_step >= layers)
      return wrong(copy, "names layers that the model does not have");
    if (!source_.owns(copy.source_rank) || !dest_.owns(copy.dest_rank))
      return wrong(copy, "names a rank that does not keep the sequence");
    const int64_t source_tokens = source_.layout().block_tokens;
    const int64_t dest_tokens = dest_.layout().block_tokens;
    const bool inside = copy.source_token >= 0 && copy.dest_token >= 0 && copy.tokens >= 1 &&
                        copy.source_token + int64_t{copy.tokens} <= source_tokens &&
                        copy.dest_token + int64_t{copy.tokens} <= dest_tokens;
    const int64_t most = int64_t{1} << 40;
    if (!inside || copy.source_block < 0 || copy.source_block > most || copy.source_step < 1 ||
        copy.source_step > most || copy.dest_step < 1 || copy.dest_step > most)
      return wrong(copy, "names blocks or tokens that do not exist");
    if (copy.dest_block < 0 || copy.dest_block >= copy.dest_step)
      return wrong(copy, "leaves out the first blocks of its series");
    if (copy.source_block * source_tokens + copy.source_token !=
            copy.dest_block * dest_tokens + copy.dest_token ||
        copy.source_step * source_tokens != copy.dest_step * dest_tokens)
      return wrong(copy, "puts tokens at another position");
    const LayerShape& shape = shape_of(copy);
    if (!source_.holds_series(shape, copy.source_rank, copy.source_block, copy.source_step))
      return wrong(copy, "reads blocks that its source does not hold");
    if (!dest_.holds_series(shape, copy.dest_rank, copy.dest_block, copy.dest_step))
      return wrong(copy, "writes blocks that its dest does not hold");
    return {};
  }

  // Every byte of the copy's `index`-th layer means the same on both sides, and is within what the
  // copy says it moves.
  Status check_layer(const ReshardCopy& copy, int32_t index) {
    const LayerShape& shape = shape_of(copy);
    const int32_t layer = copy.first_layer + index * copy.layer_step;
    for (const CopyRun& run : copy.runs) {
      if (run.count < 1 || run.source_bytes < 1 || run.dest_bytes < 1)
        return wrong(copy, "has an empty run");
      for (uint64_t i = 0; i < run.count; ++i) {
        const uint64_t from = run.source_offset + i * run.source_stride +
                              static_cast<uint64_t>(index) * copy.source_layer_stride;
        const uint64_t to = run.dest_offset + i * run.dest_stride +
                            static_cast<uint64_t>(index) * copy.dest_layer_stride;
        TANDEM_CHECK(source_.layout().format == dest_.layout().format
                         ? check_bytes(copy, shape, layer, from, to, run)
                         : check_heads(copy, shape, layer, from, to, run));
        const auto page = std::pair(copy.dest_rank, copy.dest_group);
        const auto number = static_cast<size_t>(&copy - copies_.data());
        starts_[page].push_back({to, number});
        ends_[page].push_back({to + run.dest_bytes, number});
      }
    }
    return {};
  }

  Status check_bytes(const ReshardCopy& copy, const LayerShape& shape, int32_t layer, uint64_t from,
                     uint64_t to, const CopyRun& run) const {
    if (run.source_bytes != run.dest_bytes) return wrong(copy, "changes the number of bytes");
    for (uint64_t done = 0; done < run.dest_bytes;) {
      const auto source = source_.locate(copy.source_rank, copy.source_group, shape,
                                         copy.source_block, from + done);
      const auto dest =
          dest_.locate(copy.dest_rank, copy.dest_group, shape, copy.dest_block, to + done);
      if (!source) return wrong(copy, "reads bytes that its source does not hold");
      if (!dest) return wrong(copy, "writes outside its dest's layers");
      if (!source->same_place(*dest)) return wrong(copy, "puts bytes at another place");
      const uint64_t step = std::min({source->left, dest->left, run.dest_bytes - done});
      const bool stated = source->layer == layer && source->head >= copy.first_head &&
                          source->head < copy.first_head + copy.heads &&
                          source->token >= copy.source_token && dest->token >= copy.dest_token;
      const auto last = dest_.locate(copy.dest_rank, copy.dest_group, shape, copy.dest_block,
                                     to + done + step - 1);
      if (!stated || last->token >= copy.dest_token + copy.tokens)
        return wrong(copy, "moves something else than it says");
      done += step;
    }
    return {};
  }

  // Converted values: whole heads of one layer, the same ones on both sides.
  Status check_heads(const ReshardCopy& copy, const LayerShape& shape, int32_t layer, uint64_t from,
                     uint64_t to, const CopyRun& run) const {
    const uint64_t source_head = source_.head_bytes(shape);
    const uint64_t dest_head = dest_.head_bytes(shape);
    const uint64_t heads = run.dest_bytes / dest_head;
    if (from % source_head != 0 || to % dest_head != 0 || run.dest_bytes % dest_head != 0 ||
        run.source_bytes != heads * source_head || heads > static_cast<uint64_t>(copy.heads))
      return wrong(copy, "converts a part of a head");
    for (uint64_t i = 0; i < heads; ++i) {
      const auto source = source_.locate(copy.source_rank, copy.source_group, shape,
                                         copy.source_block, from + i * source_head);
      const auto dest =
          dest_.locate(copy.dest_rank, copy.dest_group, shape, copy.dest_block, to + i * dest_head);
      if (!source || !dest) return wrong(copy, "converts bytes that are not there");
      if (source->layer != layer || dest->layer != layer || source->head != dest->head ||
          source->head < copy.first_head || source->head >= copy.first_head + copy.heads)
        return wrong(copy, "converts another head");
    }
    return {};
  }

  // Sweeps over the bytes of one kind of page.
  Status check_page(int32_t stage, int32_t group, int32_t tensor) {
    const int32_t rank = dest_.rank_of(stage, tensor);
    std::vector<Edge>& starts = starts_[{rank, group}];
    std::vector<Edge>& ends = ends_[{rank, group}];
    std::ranges::sort(starts, {}, &Edge::offset);
    std::ranges::sort(ends, {}, &Edge::offset);
    std::multiset<size_t> active;
    std::map<std::vector<size_t>, bool> known;
    size_t next_start = 0;
    size_t next_end = 0;
    for (auto at = dest_.layers().lower_bound({stage, group, 0});
         at != dest_.layers().end() && std::get<0>(at->first) == stage &&
         std::get<1>(at->first) == group;
         ++at) {
      const LayerShape& shape = model_[static_cast<size_t>(at->second)];
      uint64_t offset = static_cast<uint64_t>(std::get<2>(at->first)) * dest_.layer_bytes(shape);
      const uint64_t end = offset + dest_.layer_bytes(shape);
      while (offset < end) {
        while (next_end < ends.size() && ends[next_end].offset <= offset)
          take_out(active, ends, next_end, starts, next_start, offset);
        while (next_start < starts.size() && starts[next_start].offset <= offset)
          active.insert(starts[next_start++].copy);
        const std::vector<size_t> set(active.begin(), active.end());
        const auto [exact, added] = known.try_emplace(set, false);
        if (added) exact->second = covers_once(set, dest_.spread(shape));
        if (!exact->second)
          return make_error(500, "kv_coverage",
                            "Byte " + std::to_string(offset) + " of layer " +
                                std::to_string(at->second) + " in pages of rank " +
                                std::to_string(rank) + " is not written exactly once.");
        uint64_t until = end;
        if (next_start < starts.size()) until = std::min(until, starts[next_start].offset);
        if (next_end < ends.size()) until = std::min(until, ends[next_end].offset);
        offset = until;
      }
    }
    return {};
  }

  // A run that ends at or before `offset` has started before it ends.
  static void take_out(std::multiset<size_t>& active, const std::vector<Edge>& ends,
                       size_t& next_end, const std::vector<Edge>& starts, size_t& next_start,
                       uint64_t offset) {
    while (next_start < starts.size() && starts[next_start].offset < offset)
      active.insert(starts[next_start++].copy);
    active.erase(active.find(ends[next_end++].copy));
  }

  // The series are disjoint and fill every `spread`-th block.
  bool covers_once(const std::vector<size_t>& set, int32_t spread) const {
    int64_t common = spread;
    for (const size_t number : set) {
      const int64_t step = copies_[number].dest_step;
      common = common / std::gcd(common, step) * step;
      if (common > (int64_t{1} << 61)) return false;
    }
    __extension__ __int128 density = 0;
    for (size_t i = 0; i < set.size(); ++i) {
      const ReshardCopy& a = copies_[set[i]];
      density += common / a.dest_step;
      for (size_t j = 0; j < i; ++j) {
        const ReshardCopy& b = copies_[set[j]];
        if ((a.dest_block - b.dest_block) % std::gcd(a.dest_step, b.dest_step) == 0) return false;
      }
    }
    return density == common / spread;
  }

  const std::vector<LayerShape>& model_;
  const Side source_;
  const Side dest_;
  std::span<const ReshardCopy> copies_;
  std::map<std::pair<int32_t, int32_t>, std::vector<Edge>> starts_, ends_;
};

}  // namespace

Status prove_coverage(const std::vector<LayerShape>& model, const KvPlace& source,
                      const KvPlace& dest, std::span<const ReshardCopy> copies) {
  TANDEM_CHECK(check_pair(model, source, dest));
  return Proof(model, source, dest, copies).run();
}

}  // namespace tandem::kv
