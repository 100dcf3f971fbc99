#include "kv/reshard/reshard_plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

namespace tandem::kv {

namespace {

constexpr int64_t kMaxPieces = 1 << 16;  // of one period
constexpr size_t kMaxCopies = 1 << 20;

std::pair<int32_t, int32_t> ranks_of(const ReshardCopy& copy) {
  return {copy.dest_rank, copy.source_rank};
}

// Layers first + i * step whose places in both pages also advance by a constant step.
struct LayerRun {
  int32_t first = 0;
  int32_t step = 1;
  int32_t count = 1;
};

// The overlap of one source block with one dest block; repeats every period.
struct Piece {
  int64_t source_block;
  int64_t dest_block;
  int32_t source_token;
  int32_t dest_token;
  int32_t tokens;
};
struct Pieces {
  std::vector<Piece> list;
  int64_t source_period = 1;  // in blocks
  int64_t dest_period = 1;
};

// Offsets within a page of one rank.
struct Geometry {
  uint64_t k_plane;
  uint64_t v_plane;
  uint64_t layer;
  uint64_t head() const { return k_plane + v_plane; }
};

Geometry geometry(const LayerShape& shape, const KvLayout& layout) {
  const auto tokens = static_cast<uint64_t>(layout.block_tokens);
  const auto plane = [&](int32_t dim) {
    const auto values =
        static_cast<uint64_t>(dim) * static_cast<uint64_t>(layout.format.value_bytes);
    return dim == 0 ? 0 : tokens * (values + static_cast<uint64_t>(layout.format.scale_bytes));
  };
  const int32_t local = shape.latent ? 1 : std::max(1, shape.heads / layout.tensor_ranks);
  Geometry out{plane(shape.k_dim), plane(shape.v_dim), 0};
  out.layer = out.head() * static_cast<uint64_t>(local);
  return out;
}

bool by_block(const LayerShape& shape, const KvLayout& layout) {
  return shape.latent && layout.latent == LatentPlacement::kByBlock;
}

Result<Pieces> pieces(const LayerShape& shape, const KvLayout& source, const KvLayout& dest) {
  const int64_t source_tokens = source.block_tokens;
  const int64_t dest_tokens = dest.block_tokens;
  const int64_t period =
      std::lcm(source_tokens * (by_block(shape, source) ? source.tensor_ranks : 1),
               dest_tokens * (by_block(shape, dest) ? dest.tensor_ranks : 1));
  Pieces out;
  out.source_period = period / source_tokens;
  out.dest_period = period / dest_tokens;
  if (out.source_period + out.dest_period > kMaxPieces)
    return make_error(409, "kv_layout",
                      "The two workers' blocks meet only every " + std::to_string(period) +
                          " tokens: choose block sizes and ranks with common factors.");
  for (int64_t token = 0; token < period;) {
    const int64_t end = std::min((token / source_tokens + 1) * source_tokens,
                                 (token / dest_tokens + 1) * dest_tokens);
    out.list.push_back(
        {token / source_tokens, token / dest_tokens, static_cast<int32_t>(token % source_tokens),
         static_cast<int32_t>(token % dest_tokens), static_cast<int32_t>(end - token)});
    token = end;
  }
  return out;
}

// Tensor ranks that hold heads [first, first + heads): first_rank .. first_rank + copies - 1.
struct Slice {
  int32_t first_head;
  int32_t heads;
  int32_t first_rank;
  int32_t copies;
};
Slice slice_of(const LayerShape& shape, const KvLayout& layout, int32_t tensor_rank) {
  if (shape.latent) return {0, 1, 0, layout.tensor_ranks};
  if (layout.tensor_ranks <= shape.heads) {
    const int32_t heads = shape.heads / layout.tensor_ranks;
    return {tensor_rank * heads, heads, tensor_rank, 1};
  }
  const int32_t copies = layout.tensor_ranks / shape.heads;
  return {tensor_rank / copies, 1, tensor_rank / copies * copies, copies};
}

class Generator {
 public:
  Generator(const std::vector<LayerShape>& model, const KvPlace& source, const KvPlace& dest)
      : model_(model), source_(source), dest_(dest) {}

  Result<std::vector<ReshardCopy>> run() {
    // Layers that lie in the same kind of page on both sides.
    std::map<std::tuple<int32_t, int32_t, int32_t, int32_t>, std::vector<int32_t>> classes;
    for (int32_t layer = 0; layer < static_cast<int32_t>(model_.size()); ++layer) {
      const auto at = static_cast<size_t>(layer);
      classes[{stage(source_.layout, layer), stage(dest_.layout, layer),
               source_.layout.pages[at].group, dest_.layout.pages[at].group}]
          .push_back(layer);
    }
    for (const auto& [key, layers] : classes) {
      const LayerShape& shape = model_[static_cast<size_t>(layers.front())];
      TANDEM_TRY(parts, pieces(shape, source_.layout, dest_.layout));
      for (const LayerRun& run : layer_runs(layers)) {
        for (int32_t rank = 0; rank < dest_.layout.tensor_ranks; ++rank)
          read_into(rank, run, shape, parts);
        if (copies_.size() > kMaxCopies)
          return make_error(409, "kv_layout",
                            "A plan between these two workers would need more than " +
                                std::to_string(kMaxCopies) + " copies.");
      }
    }
    return std::move(copies_);
  }

 private:
  static int32_t stage(const KvLayout& layout, int32_t layer) {
    return static_cast<int32_t>(std::ranges::upper_bound(layout.stages, layer) -
                                layout.stages.begin()) -
           1;
  }
  static int32_t rank(const KvPlace& place, int32_t stage, int32_t tensor_rank) {
    return (stage * place.layout.data_ranks + place.owner) * place.layout.tensor_ranks +
           tensor_rank;
  }

  int32_t slot(const KvPlace& place, int32_t layer) const {
    return place.layout.pages[static_cast<size_t>(layer)].slot;
  }

  std::vector<LayerRun> layer_runs(const std::vector<int32_t>& layers) const {
    std::vector<LayerRun> out;
    const auto delta = [&](int32_t a, int32_t b) {
      return std::tuple(b - a, slot(source_, b) - slot(source_, a),
                        slot(dest_, b) - slot(dest_, a));
    };
    for (size_t i = 0; i < layers.size();) {
      size_t end = i + 1;
      // Offsets only grow, so that a run's strides fit unsigned numbers.
      if (end < layers.size() && slot(source_, layers[i]) < slot(source_, layers[end]) &&
          slot(dest_, layers[i]) < slot(dest_, layers[end])) {
        const auto step = delta(layers[i], layers[end]);
        while (end < layers.size() && delta(layers[end - 1], layers[end]) == step) ++end;
      }
      out.push_back(
          {layers[i], end - i > 1 ? layers[i + 1] - layers[i] : 1, static_cast<int32_t>(end - i)});
      i = end;
    }
    return out;
  }

  // Everything that tensor rank `reader` of the dest needs of these layers.
  void read_into(int32_t reader, const LayerRun& layers, const LayerShape& shape,
                 const Pieces& parts) {
    const Slice want = slice_of(shape, dest_.layout, reader);
    for (int32_t from = 0; from < source_.layout.tensor_ranks;) {
      const Slice have = slice_of(shape, source_.layout, from);
      from = have.first_rank + have.copies;
      const int32_t first = std::max(want.first_head, have.first_head);
      const int32_t end = std::min(want.first_head + want.heads, have.first_head + have.heads);
      if (first >= end) continue;
      for (size_t i = 0; i < parts.list.size(); ++i) {
        const Piece& piece = parts.list[i];
        if (by_block(shape, dest_.layout) && piece.dest_block % dest_.layout.tensor_ranks != reader)
          continue;
        ReshardCopy copy = base_copy(layers, piece);
        copy.dest_rank = rank(dest_, stage(dest_.layout, layers.first), reader);
        copy.first_head = first;
        copy.heads = end - first;
        add_runs(copy, shape, first - have.first_head, first - want.first_head);
        share(copy, shape, have, want.copies, reader - want.first_rank, static_cast<int64_t>(i),
              parts);
      }
    }
  }

  ReshardCopy base_copy(const LayerRun& layers, const Piece& piece) const {
    const auto at = static_cast<size_t>(layers.first);
    ReshardCopy copy;
    copy.source_group = source_.layout.pages[at].group;
    copy.dest_group = dest_.layout.pages[at].group;
    copy.first_layer = layers.first;
    copy.layer_step = layers.step;
    copy.layers = layers.count;
    copy.source_block = piece.source_block;
    copy.dest_block = piece.dest_block;
    copy.source_token = piece.source_token;
    copy.dest_token = piece.dest_token;
    copy.tokens = piece.tokens;
    return copy;
  }

  // Deals the occurrences of a piece out to the source ranks that hold it.
  void share(const ReshardCopy& copy, const LayerShape& shape, const Slice& have, int32_t readers,
             int32_t reader, int64_t piece, const Pieces& parts) {
    const int32_t from_stage = stage(source_.layout, copy.first_layer);
    int32_t first_holder = have.first_rank;
    int32_t holders = have.copies;
    if (by_block(shape, source_.layout)) {
      first_holder = static_cast<int32_t>(copy.source_block % source_.layout.tensor_ranks);
      holders = 1;
    }
    const int32_t sets = std::gcd(holders, readers);
    const int32_t turns = holders / sets;
    for (int32_t turn = 0; turn < turns; ++turn) {
      ReshardCopy part = copy;
      const auto holder = static_cast<int32_t>((turn + reader / sets + piece) % turns);
      part.source_rank = rank(source_, from_stage, first_holder + reader % sets * turns + holder);
      part.source_block += turn * parts.source_period;
      part.dest_block += turn * parts.dest_period;
      part.source_step = turns * parts.source_period;
      part.dest_step = turns * parts.dest_period;
      copies_.push_back(std::move(part));
    }
  }

  void add_runs(ReshardCopy& copy, const LayerShape& shape, int32_t source_head,
                int32_t dest_head) const {
    const Geometry from = geometry(shape, source_.layout);
    const Geometry to = geometry(shape, dest_.layout);
    const auto heads = static_cast<uint64_t>(copy.heads);
    const uint64_t source_base =
        static_cast<uint64_t>(slot(source_, copy.first_layer)) * from.layer +
        static_cast<uint64_t>(source_head) * from.head();
    const uint64_t dest_base = static_cast<uint64_t>(slot(dest_, copy.first_layer)) * to.layer +
                               static_cast<uint64_t>(dest_head) * to.head();
    if (copy.layers > 1) {
      const int32_t next = copy.first_layer + copy.layer_step;
      copy.source_layer_stride =
          static_cast<uint64_t>(slot(source_, next) - slot(source_, copy.first_layer)) * from.layer;
      copy.dest_layer_stride =
          static_cast<uint64_t>(slot(dest_, next) - slot(dest_, copy.first_layer)) * to.layer;
    }
    if (copy.tokens == source_.layout.block_tokens && copy.tokens == dest_.layout.block_tokens) {
      copy.runs.push_back(
          {source_base, dest_base, 0, 0, heads * from.head(), heads * to.head(), 1});
      return;
    }
    for (uint64_t head = 0; head < heads; ++head) {
      const uint64_t source_k = source_base + head * from.head();
      const uint64_t dest_k = dest_base + head * to.head();
      add_plane(copy, source_k, dest_k, shape.k_dim, !shape.latent);
      if (shape.v_dim > 0)
        add_plane(copy, source_k + from.k_plane, dest_k + to.k_plane, shape.v_dim, false);
    }
  }

  // Some tokens of one plane: each dim's run of them when transposed, else one run.
  void add_plane(ReshardCopy& copy, uint64_t source, uint64_t dest, int32_t dim,
                 bool transposed) const {
    const auto value = static_cast<uint64_t>(source_.layout.format.value_bytes);
    const auto scale = static_cast<uint64_t>(source_.layout.format.scale_bytes);
    const auto source_tokens = static_cast<uint64_t>(source_.layout.block_tokens);
    const auto dest_tokens = static_cast<uint64_t>(dest_.layout.block_tokens);
    const auto source_token = static_cast<uint64_t>(copy.source_token);
    const auto dest_token = static_cast<uint64_t>(copy.dest_token);
    const auto tokens = static_cast<uint64_t>(copy.tokens);
    const auto dims = static_cast<uint64_t>(dim);
    if (transposed) {
      copy.runs.push_back({source + source_token * value, dest + dest_token * value,
                           source_tokens * value, dest_tokens * value, tokens * value,
                           tokens * value, static_cast<uint32_t>(dim)});
    } else {
      const uint64_t row = dims * value;
      copy.runs.push_back({source + source_token * row, dest + dest_token * row, 0, 0, tokens * row,
                           tokens * row, 1});
    }
    if (scale > 0)
      copy.runs.push_back({source + source_tokens * dims * value + source_token * scale,
                           dest + dest_tokens * dims * value + dest_token * scale, 0, 0,
                           tokens * scale, tokens * scale, 1});
  }

  const std::vector<LayerShape>& model_;
  const KvPlace& source_;
  const KvPlace& dest_;
  std::vector<ReshardCopy> copies_;
};

}  // namespace

uint64_t ReshardCopy::dest_bytes() const {
  uint64_t sum = 0;
  for (const CopyRun& run : runs) sum += run.dest_bytes * run.count;
  return sum;
}

Result<ReshardPlan> ReshardPlan::make(const std::vector<LayerShape>& model, const KvPlace& source,
                                      const KvPlace& dest) {
  TANDEM_CHECK(check_pair(model, source, dest));
  TANDEM_TRY(copies, Generator(model, source, dest).run());
  return ReshardPlan(dest.layout.block_tokens, std::move(copies));
}

ReshardPlan::ReshardPlan(int32_t dest_block_tokens, std::vector<ReshardCopy> copies)
    : dest_block_tokens_(dest_block_tokens), copies_(std::move(copies)) {
  std::ranges::sort(copies_, {}, ranks_of);
}

std::vector<PageCopy> ReshardPlan::pages(int32_t source_rank, int32_t dest_rank, int32_t layer,
                                         TokenRange tokens) const {
  std::vector<PageCopy> out;
  const auto mine =
      std::ranges::equal_range(copies_, std::pair(dest_rank, source_rank), {}, ranks_of);
  for (const ReshardCopy& copy : mine) {
    const int32_t past = layer - copy.first_layer;
    if (past < 0 || past % copy.layer_step != 0 || past / copy.layer_step >= copy.layers) continue;
    const auto index = static_cast<uint64_t>(past / copy.layer_step);
    // The piece's tokens of occurrence i are begin + i * step .. + copy.tokens - 1.
    const int64_t begin = copy.dest_block * dest_block_tokens_ + copy.dest_token;
    const int64_t step = copy.dest_step * dest_block_tokens_;
    const int64_t skip = tokens.first - copy.tokens - begin;  // the last that ends too early
    for (int64_t i = skip < 0 ? 0 : skip / step + 1; begin + i * step < tokens.end; ++i)
      out.push_back({&copy, copy.source_block + i * copy.source_step,
                     copy.dest_block + i * copy.dest_step, index * copy.source_layer_stride,
                     index * copy.dest_layer_stride});
  }
  std::ranges::sort(out, {}, &PageCopy::source_block);
  return out;
}

std::vector<int32_t> ReshardPlan::sources_of(int32_t dest_rank) const {
  std::vector<int32_t> out;
  for (const ReshardCopy& copy : copies_) {
    if (copy.dest_rank == dest_rank && (out.empty() || out.back() != copy.source_rank))
      out.push_back(copy.source_rank);
  }
  return out;
}

}  // namespace tandem::kv
