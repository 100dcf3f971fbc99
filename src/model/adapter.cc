#include "model/adapter.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

namespace tandem::model {
namespace {

constexpr int32_t kMaxRank = 4096;

tl::unexpected<Error> invalid_adapter(std::string message) {
  return make_error(400, "invalid_adapter", std::move(message));
}
tl::unexpected<Error> unsupported_adapter(std::string message) {
  return make_error(400, "unsupported_adapter", std::move(message));
}

// A module's name in adapters, and the projections it stands for: several when it is fused.
struct Module {
  std::string_view hf;
  std::string_view gguf;
  std::vector<Projection> parts;
};

std::vector<Module> modules_of(const DecoderSpec& base) {
  using P = Projection;
  std::vector<Module> modules = {{"self_attn.o_proj", "attn_output", {P::kAttentionOut}},
                                 {"mlp.down_proj", "ffn_down", {P::kDown}}};
  if (base.fused_qkv) {
    modules.push_back({"self_attn.qkv_proj", "attn_qkv", {P::kQ, P::kK, P::kV}});
  } else {
    modules.push_back({"self_attn.q_proj", "attn_q", {P::kQ}});
    modules.push_back({"self_attn.k_proj", "attn_k", {P::kK}});
    modules.push_back({"self_attn.v_proj", "attn_v", {P::kV}});
  }
  if (base.fused_gate_up) {
    modules.push_back({"mlp.gate_up_proj", "ffn_up", {P::kGate, P::kUp}});
  } else {
    modules.push_back({"mlp.gate_proj", "ffn_gate", {P::kGate}});
    modules.push_back({"mlp.up_proj", "ffn_up", {P::kUp}});
  }
  return modules;
}

// How an adapter scales its products: by alpha, divided by the rank or its root.
struct Scaling {
  double alpha = 0;  // 0: the scale is 1
  bool by_root = false;

  float of(int32_t rank) const {
    if (alpha == 0) return 1.0F;
    return static_cast<float>(alpha / (by_root ? std::sqrt(rank) : static_cast<double>(rank)));
  }
};

// Some ways to start an adapter's training also change the base's weights, and the adapter is only
// right on top of those.
Status check_start(const ConfigReader& config) {
  const JsonValue* start = config.find("init_lora_weights");
  if (start == nullptr || start->is_bool()) return {};
  const std::string name = start->is_string() ? start->as_string().substr(0, 64) : "";
  if (name == "gaussian" || name == "eva" || name == "orthogonal") return {};
  return unsupported_adapter("adapters that change the base's weights (init_lora_weights \"" +
                             name + "\") are not supported");
}

Result<Scaling> read_peft_config(const JsonValue& document) {
  const ConfigReader config(document, "adapter_config.json: ");
  for (const std::string_view key :
       {"auto_mapping", "base_model_name_or_path", "revision", "inference_mode", "task_type",
        "lora_dropout", "target_modules", "peft_version", "r", "exclude_modules",
        "ensure_weight_tying", "qalora_group_size", "layers_to_transform", "layers_pattern",
        "runtime_config", "loftq_config", "corda_config", "eva_config", "megatron_core"}) {
    config.ignore(key);  // the tensors tell what is adapted, and with which rank
  }
  TANDEM_TRY(type, config.string("peft_type", "LORA"));
  if (type != "LORA") return unsupported_adapter("the adapter's peft_type is " + type);
  TANDEM_CHECK(check_start(config));
  TANDEM_TRY(bias, config.string("bias", "none"));
  if (bias != "none") return unsupported_adapter("adapters with biases are not supported");
  TANDEM_TRY(alpha, config.positive_real("lora_alpha"));
  TANDEM_TRY(by_root, config.boolean("use_rslora", false));
  TANDEM_TRY(transposed, config.boolean("fan_in_fan_out", false));
  if (transposed) return unsupported_adapter("fan_in_fan_out adapters are not supported");
  if (const Status rest = config.finish(); !rest) return unsupported_adapter(rest.error().message);
  return Scaling{.alpha = alpha, .by_root = by_root};
}

Result<Scaling> read_gguf_adapter(const weights::GgufFile& file) {
  const auto type = file.string("general.type");
  const auto kind = file.string("adapter.type");
  if (!type || *type != "adapter" || !kind || *kind != "lora")
    return unsupported_adapter("the file is no LoRA adapter");
  TANDEM_TRY(alpha, file.real("adapter.lora.alpha"));
  if (!(alpha >= 0) || alpha > 1e6) return invalid_adapter("adapter.lora.alpha is out of range");
  return Scaling{.alpha = alpha};
}

// The two halves of one module's adapter.
struct Halves {
  const weights::Tensor* a = nullptr;
  const weights::Tensor* b = nullptr;
};

struct Place {
  int32_t layer = 0;
  size_t module = 0;
  bool is_b = false;
};

// "…layers.3.self_attn.q_proj.lora_A.weight" or "blk.3.attn_q.weight.lora_a".
std::optional<Place> place_of(std::string_view name, bool gguf,
                              const std::vector<Module>& modules) {
  Place place;
  const auto cut = [&](std::string_view end, bool is_b) {
    if (!name.ends_with(end)) return false;
    name.remove_suffix(end.size());
    place.is_b = is_b;
    return true;
  };
  const std::string_view root = gguf ? "blk." : "layers.";
  if (gguf ? !cut(".weight.lora_a", false) && !cut(".weight.lora_b", true)
           : !cut(".lora_A.weight", false) && !cut(".lora_B.weight", true)) {
    return std::nullopt;
  }
  const size_t at = name.find(root);
  if (at == std::string_view::npos) return std::nullopt;
  name.remove_prefix(at + root.size());
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), place.layer);
  if (error != std::errc() || end == name.data() + name.size() || *end != '.') return std::nullopt;
  name.remove_prefix(static_cast<size_t>(end - name.data()) + 1);
  for (place.module = 0; place.module < modules.size(); ++place.module) {
    const Module& module = modules[place.module];
    if (name == (gguf ? module.gguf : module.hf)) return place;
  }
  return std::nullopt;
}

std::vector<float> decode(const weights::Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.rows() * tensor.columns()));
  const auto columns = static_cast<size_t>(tensor.columns());
  for (int64_t row = 0; row < tensor.rows(); ++row) {
    weights::dequantize_row(tensor.format, tensor.row(row),
                            std::span(values).subspan(static_cast<size_t>(row) * columns, columns));
  }
  return values;
}

// Reorders the rows of q or k between half-split order (head, half, pair) and adjacent order
// (head, pair, half).
std::vector<float> reorder_heads(const std::vector<float>& rows, int32_t count, int32_t head_dim,
                                 size_t width, bool to_adjacent) {
  std::vector<float> out(rows.size());
  for (int32_t row = 0; row < count; ++row) {
    const int32_t head = row / head_dim * head_dim;
    const int32_t inside = row % head_dim;
    const int32_t half = inside / (head_dim / 2);
    const int32_t pair = inside % (head_dim / 2);
    const int32_t adjacent = head + 2 * pair + half;
    const auto from = static_cast<size_t>(to_adjacent ? row : adjacent) * width;
    const auto to = static_cast<size_t>(to_adjacent ? adjacent : row) * width;
    std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(from), width,
                out.begin() + static_cast<std::ptrdiff_t>(to));
  }
  return out;
}

class AdapterReader {
 public:
  AdapterReader(const DecoderSpec& base, const ops::CpuExecutor& executor, Scaling scaling)
      : base_(base), executor_(executor), scaling_(scaling) {
    adapter_.layers.resize(static_cast<size_t>(base.config.layers));
  }

  // `reorder`: q and k rows are in the other pairing's order than the base's.
  Status add(int32_t layer, const Module& module, const Halves& halves, bool reorder) {
    const std::string what = "layer " + std::to_string(layer) + " " + std::string(module.hf);
    if (layer < 0 || layer >= base_.config.layers)
      return invalid_adapter("the adapter has " + what + "; the model has " +
                             std::to_string(base_.config.layers) + " layers");
    if (halves.a == nullptr || halves.b == nullptr)
      return invalid_adapter("the adapter has only one half of " + what);
    int32_t outputs = 0;
    for (const Projection part : module.parts)
      outputs += projection_shape(base_.config, part).outputs;
    const int32_t inputs = projection_shape(base_.config, module.parts.front()).inputs;
    const int64_t rank = halves.a->rows();
    if (halves.a->columns() != inputs || halves.b->rows() != outputs ||
        halves.b->columns() != rank || rank < 1 || rank > kMaxRank) {
      return invalid_adapter("the adapter's " + what +
                             " does not fit the model: " + std::to_string(halves.b->rows()) +
                             " x " + std::to_string(halves.b->columns()) + " times " +
                             std::to_string(rank) + " x " + std::to_string(halves.a->columns()) +
                             " for " + std::to_string(outputs) + " x " + std::to_string(inputs));
    }
    return add_parts(layer, module, decode(*halves.a), decode(*halves.b),
                     static_cast<int32_t>(rank), reorder);
  }

  Adapter take() { return std::move(adapter_); }

 private:
  Status add_parts(int32_t layer, const Module& module, const std::vector<float>& a,
                   const std::vector<float>& b, int32_t rank, bool reorder) {
    const auto width = static_cast<size_t>(rank);
    size_t begin = 0;
    for (const Projection part : module.parts) {
      const ProjectionShape shape = projection_shape(base_.config, part);
      const size_t size = static_cast<size_t>(shape.outputs) * width;
      std::vector<float> rows(b.begin() + static_cast<std::ptrdiff_t>(begin),
                              b.begin() + static_cast<std::ptrdiff_t>(begin + size));
      begin += size;
      if (reorder && (part == Projection::kQ || part == Projection::kK)) {
        const bool to_adjacent = base_.ropes[0].pairing == ops::RopePairing::kAdjacent;
        rows = reorder_heads(rows, shape.outputs, base_.config.head_dim, width, to_adjacent);
      }
      ops::LowRank low_rank;
      TANDEM_TRY(packed_a, pack(a, rank, shape.inputs));
      TANDEM_TRY(packed_b, pack(rows, shape.outputs, rank));
      low_rank.a = std::move(packed_a);
      low_rank.b = std::move(packed_b);
      low_rank.scale = scaling_.of(rank);
      adapter_.bytes += low_rank.a.bytes() + low_rank.b.bytes();
      adapter_.layers[static_cast<size_t>(layer)][static_cast<size_t>(part)] = std::move(low_rank);
    }
    adapter_.rank = std::max(adapter_.rank, rank);
    return {};
  }

  Result<ops::PackedMatrix> pack(const std::vector<float>& values, int32_t rows, int32_t columns) {
    return ops::PackedMatrix::pack(weights::Format::kF32, rows, columns,
                                   std::as_bytes(std::span(values)), executor_.threads());
  }

  const DecoderSpec& base_;
  const ops::CpuExecutor& executor_;
  Scaling scaling_;
  Adapter adapter_;
};

}  // namespace

ProjectionShape projection_shape(const ModelConfig& c, Projection projection) {
  const int32_t q = c.heads * c.head_dim;
  const int32_t kv = c.kv_heads * c.head_dim;
  switch (projection) {
    case Projection::kQ:
      return {c.hidden, q};
    case Projection::kK:
    case Projection::kV:
      return {c.hidden, kv};
    case Projection::kAttentionOut:
      return {q, c.hidden};
    case Projection::kGate:
    case Projection::kUp:
      return {c.hidden, c.ffn};
    case Projection::kDown:
      return {c.ffn, c.hidden};
  }
  return {};
}

Result<Adapter> read_adapter(const weights::Checkpoint& files, const DecoderSpec& base,
                             bool base_is_gguf, const ops::CpuExecutor& executor) {
  const bool gguf = files.is_gguf();
  Scaling scaling;
  if (gguf) {
    TANDEM_TRY(read, read_gguf_adapter(*files.gguf()));
    scaling = read;
  } else {
    const JsonValue* document = files.json("adapter_config.json");
    if (document == nullptr) return invalid_adapter("the adapter has no adapter_config.json");
    TANDEM_TRY(read, read_peft_config(*document));
    scaling = read;
  }
  const std::vector<Module> modules = modules_of(base);
  std::map<std::pair<int32_t, size_t>, Halves> found;
  for (const weights::Tensor& tensor : files.tensors()) {
    const auto place = place_of(tensor.name, gguf, modules);
    if (!place) {
      return unsupported_adapter(
          "the adapter has a tensor that is no low-rank half of q, k, v, o, gate, up or down: " +
          tensor.name.substr(0, 128));
    }
    Halves& halves = found[{place->layer, place->module}];
    (place->is_b ? halves.b : halves.a) = &tensor;
  }
  if (found.empty()) return invalid_adapter("the adapter has no tensors");
  // Only Llama's and its kin's GGUFs order q and k for adjacent pairs.
  const bool adjacent_gguf = base.gguf_pairing == ops::RopePairing::kAdjacent;
  AdapterReader reader(base, executor, scaling);
  for (const auto& [place, halves] : found) {
    TANDEM_CHECK(reader.add(place.first, modules[place.second], halves,
                            adjacent_gguf && gguf != base_is_gguf));
  }
  return reader.take();
}

}  // namespace tandem::model
