// `tandem inspect`: what is in a model file, and what serving it takes.
#include <cstdio>
#include <map>

#include "base/bytes.h"
#include "cli/commands.h"
#include "config/options.h"
#include "engine/tokenizer_source.h"
#include "hub/model_name.h"
#include "model/registry.h"
#include "ops/page_layout.h"
#include "weights/checkpoint.h"

namespace tandem::cli {
namespace {

void print_config(const model::ModelConfig& config) {
  std::printf("architecture     %s\n", config.architecture.c_str());
  std::printf("layers           %d\n", config.layers);
  std::printf("hidden, ffn      %d, %d\n", config.hidden, config.ffn);
  std::printf("heads            %d query, %d KV, %d wide\n", config.heads, config.kv_heads,
              config.head_dim);
  std::printf("vocabulary       %d%s\n", config.vocab,
              config.tied_embedding ? " (output tied to the embedding)" : "");
  std::printf("context          %d tokens\n", config.context_length);
  std::printf("rope             theta %g over %d dimensions\n",
              static_cast<double>(config.rope_theta), config.rope_dims);
  if (config.window > 0)
    std::printf("window           %d tokens in some layers; they give back KV that is older\n",
                config.window);
  for (const auto dtype : ops::kAllKvDtypes) {
    if (dtype == ops::KvDtype::kF16) continue;  // no worker's choice
    const ops::PageLayout layout{dtype,           ops::kCpuLayoutId, config.layers,
                                 config.kv_heads, config.head_dim,   16};
    std::printf("KV, %-12s %zu bytes a token; 1 GiB holds %zu tokens\n",
                std::string(ops::kv_dtype_name(dtype)).c_str(), layout.page_bytes() / 16,
                (size_t{1} << 30) / (layout.page_bytes() / 16));
  }
}

void print_tensors(const weights::Checkpoint& checkpoint, bool all) {
  struct Sum {
    size_t count = 0;
    size_t bytes = 0;
  };
  std::map<std::string, Sum> formats;
  int64_t parameters = 0;
  for (const auto& tensor : checkpoint.tensors()) {
    Sum& sum = formats[std::string(weights::format_name(tensor.format))];
    ++sum.count;
    sum.bytes += tensor.bytes.size();
    parameters += tensor.rows() * tensor.columns();
    if (all) {
      std::printf("  %-36s %-6s [%lld, %lld]\n", tensor.name.c_str(),
                  std::string(weights::format_name(tensor.format)).c_str(),
                  static_cast<long long>(tensor.rows()), static_cast<long long>(tensor.columns()));
    }
  }
  std::printf("parameters       %.1f million\n", static_cast<double>(parameters) / 1e6);
  for (const auto& [name, sum] : formats) {
    std::printf("  %-6s         %zu tensors, %s\n", name.c_str(), sum.count,
                format_bytes(sum.bytes).c_str());
  }
}

}  // namespace

int run_inspect(const Arguments& arguments) {
  config::Options options("inspect",
                          "Shows what is in a model file, and the memory that serving it takes.");
  std::string path;
  bool tensors = false;
  options.positional(
      path, "MODEL",
      "path of a GGUF file or of a Hugging Face directory, or ORG/NAME[:FILE] of a pulled model");
  options.flag(tensors, "tensors", "lists every tensor");
  options.example("tandem inspect models/smollm2-135m-instruct.Q4_1.gguf");
  auto parsed = options.parse(arguments);
  if (!parsed) return report(parsed.error());
  if (parsed->help) {
    std::fputs(parsed->help->c_str(), stdout);
    return 0;
  }
  auto found = hub::find_model(path, hub::default_models_directory());
  if (!found) return report(found.error());
  path = found->path;
  auto checkpoint = weights::Checkpoint::open(path);
  if (!checkpoint) return report(checkpoint.error());
  std::printf("file             %s, %s\n", path.c_str(),
              format_bytes(checkpoint->file_bytes()).c_str());
  std::printf("digest           %s\n", engine::lineage_of(*checkpoint).c_str());
  const auto config = model::read_model_config(*checkpoint);
  if (!config) {
    std::printf("not servable     %s\n", config.error().message.c_str());
  } else {
    print_config(*config);
  }
  print_tensors(*checkpoint, tensors);
  const auto spec = engine::tokenizer_spec_of(*checkpoint);
  if (!spec) {
    std::printf("tokenizer        %s\n", spec.error().message.c_str());
  } else {
    std::printf("tokenizer        %s, %zu tokens, pre-tokenizer %s\n", spec->kind.c_str(),
                spec->tokens.size(), spec->pre.empty() ? "default" : spec->pre.c_str());
    std::printf("chat template    %s\n",
                spec->chat_template.empty() ? "none: /v1/completions only" : "yes");
  }
  return config ? 0 : 1;
}

}  // namespace tandem::cli
